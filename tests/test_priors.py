"""Priors over kernels: their density against the papers' objective, orthogonality, plates, bad input."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer.util import log_density

from numpyro_ndpp import NDPP, Rejection, pad_subsets
from numpyro_ndpp.datasets import simulate_baskets
from numpyro_ndpp.priors import (
    basket_model,
    directions,
    item_counts,
    ndpp_prior,
    ondpp_prior,
    orthonormalize,
    symmetric_prior,
    to_event_width,
)

N_ITEMS, RANK = 9, (4, 4)
STRENGTHS = {"alpha": 0.3, "beta": 0.7}


@pytest.fixture(scope="module")
def baskets():
    rng = np.random.default_rng(0)
    lists = [rng.choice(N_ITEMS - 1, size=rng.integers(1, 5), replace=False).tolist() for _ in range(40)]
    return pad_subsets(lists, N_ITEMS)  # the last item is in none


def objective(V, B, K, baskets, alpha, beta):
    """The papers' regularised mean log-likelihood, written out with dense matrices."""
    baskets = np.asarray(baskets)
    L = V @ V.T + B @ K @ B.T
    counts = np.zeros(N_ITEMS)
    total = 0.0
    for row in baskets:
        items = row[row < N_ITEMS]
        counts[items] += 1
        total += np.linalg.slogdet(L[np.ix_(items, items)])[1]
    mean = total / len(baskets) - np.linalg.slogdet(np.eye(N_ITEMS) + L)[1]
    counts = np.maximum(counts, 1)
    return mean - alpha * np.sum(np.sum(V**2, 1) / counts) - beta * np.sum(np.sum(B**2, 1) / counts)


def two_points(model, baskets, draw):
    """log density of the model and the objective at two points: differences leave no constant."""
    counts = item_counts(baskets, N_ITEMS).astype(float)
    density = jax.jit(lambda values: log_density(model, (baskets, counts), {}, values)[0])
    return [(density(values), expected) for values, expected in (draw(np.random.default_rng(seed)) for seed in (1, 2))]


def assert_equal_up_to_a_constant(pairs, number):
    (first, one), (second, two) = pairs
    assert first - second == pytest.approx(number * (one - two), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("name", ["ndpp", "symmetric"])
def test_density_is_the_papers_objective(name, baskets):
    prior = ndpp_prior if name == "ndpp" else symmetric_prior
    strengths = STRENGTHS if name == "ndpp" else {"alpha": STRENGTHS["alpha"]}
    model = partial(basket_model, prior=partial(prior, rank=RANK, **strengths))

    def draw(rng):
        V, B, D = (rng.normal(size=shape) for shape in [(N_ITEMS, 4), (N_ITEMS, 4), (4, 4)])
        values = {"V": V, "B": B, "D": D} if name == "ndpp" else {"V": V}
        return values, objective(V, B * (name == "ndpp"), D - D.T, baskets, **STRENGTHS)

    assert_equal_up_to_a_constant(two_points(model, baskets, draw), len(baskets))


def test_density_of_the_orthogonal_kernel_is_the_papers_objective(baskets):
    gamma = 0.4
    model = partial(basket_model, prior=partial(ondpp_prior, rank=RANK, gamma=gamma, **STRENGTHS))

    def draw(rng):
        values = {
            "V_raw": rng.normal(size=(N_ITEMS, 4)),
            "B_raw": rng.normal(size=(N_ITEMS, 4)),
            "sigma": rng.random(2) + 0.1,
        }
        # The same kernel by Householder's QR and a plain projection.
        scale = np.sqrt(item_counts(baskets, N_ITEMS) / len(baskets))[:, None]
        Q, R = np.linalg.qr(scale * values["B_raw"])
        B = Q * np.sign(np.diag(R))
        V = scale * values["V_raw"]
        V = V - B @ (B.T @ V)
        sigma = values["sigma"]
        K = np.zeros((4, 4))
        K[[0, 2], [1, 3]] = sigma
        price = gamma * np.sum(np.log(1 + 2 * sigma / (sigma**2 + 1)))
        return values, objective(V, B, K - K.T, baskets, **STRENGTHS) - price

    assert_equal_up_to_a_constant(two_points(model, baskets, draw), len(baskets))


def test_anchored_prior_is_centred_on_the_items_own_directions(baskets):
    counts, number = item_counts(baskets, N_ITEMS), len(baskets)
    anchor = directions(random.key(0), N_ITEMS, 4)
    centre = np.sqrt(counts / number)[:, None] * np.asarray(anchor)
    seeded = handlers.seed(partial(symmetric_prior, counts, number, rank=RANK, alpha=2.0, anchor=anchor), 0)
    step = np.zeros((N_ITEMS, 4))
    step[3, 1] = 0.01

    @jax.jit
    def fall_of_density():
        fn = handlers.trace(seeded).get_trace()["V"]["fn"]
        return fn.log_prob(centre) - fn.log_prob(centre + step)

    fall = fall_of_density()
    assert fall == pytest.approx(2.0 * number / counts[3] * 0.01**2, rel=1e-3)  # α N ‖v - centre‖²/μ


def test_price_of_proposals_is_their_expected_number():
    counts = np.full(30, 5)
    seeded = handlers.seed(partial(ondpp_prior, counts, 50, rank=(4, 6), gamma=1.0), 0)
    rng = np.random.default_rng(0)
    values = {"V_raw": rng.normal(size=(30, 4)), "B_raw": rng.normal(size=(30, 6)), "sigma": np.array([0.2, 1.0, 7.0])}

    @jax.jit
    def price_and_law(values):
        substituted = handlers.substitute(seeded, values)
        return handlers.trace(substituted).get_trace()["proposals"]["fn"].log_factor / -50, substituted()

    log_price, law = price_and_law(values)
    assert jnp.exp(log_price) == pytest.approx(float(Rejection().expected_proposals(law)), rel=1e-5)


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
def test_basis_is_orthonormal_in_float32(condition):
    A = np.random.default_rng(0).normal(size=(300, 12)) * np.geomspace(1, 1 / condition, 12)
    Q = np.asarray(jax.jit(orthonormalize)(A.astype(np.float32)))
    assert Q.dtype == np.float32
    assert np.abs(Q.T @ Q - np.eye(12)).max() < 1e-5


def test_orthogonality_holds_in_float32_at_the_papers_rank():
    counts = np.random.default_rng(0).geometric(0.01, 4000)
    values = {"V_raw": directions(random.key(0), 4000, 100), "B_raw": directions(random.key(1), 4000, 100)}
    values["sigma"] = np.ones(50, np.float32)
    seeded = handlers.seed(partial(ondpp_prior, counts, 20_000, rank=(100, 100)), 0)

    @jax.jit
    def parts(values):
        law = handlers.substitute(seeded, values)()
        return law.V, law.B

    V, B = map(np.asarray, parts(values))
    assert B.dtype == np.float32
    assert np.abs(B.T @ B - np.eye(100)).max() < 1e-5
    assert np.abs(V.T @ B).max() < 1e-5


@pytest.mark.parametrize("kind", ["points", pytest.param("AutoDelta", marks=pytest.mark.slow)])
def test_prior_in_a_model_of_its_own(baskets, kind):
    """As the tutorial has it: baskets padded to their own width, a plate with subsampling, SVI; a random strength."""
    counts = item_counts(baskets, N_ITEMS)

    def model(baskets, counts):
        alpha = numpyro.sample("alpha", dist.LogNormal(0.0, 1.0))
        law = ndpp_prior(counts, len(baskets), rank=(5, 4), alpha=alpha)
        with numpyro.plate("baskets", len(baskets), subsample_size=20):
            batch = numpyro.subsample(baskets, event_dim=1)
            numpyro.sample("basket", law, obs=to_event_width(batch, law))

    start = {
        "V": np.random.default_rng(1).normal(size=(N_ITEMS, 5)),
        "B": np.random.default_rng(2).normal(size=(N_ITEMS, 4)),
        "D": np.eye(4, k=1),
    }

    def points(baskets, counts):
        for name, value in {"alpha": np.array(1.0), **start}.items():
            point = numpyro.param(f"{name}_point", jnp.asarray(value))
            numpyro.sample(name, dist.Delta(point, event_dim=value.ndim))

    guide = points
    if kind == "AutoDelta":
        guide = numpyro.infer.autoguide.AutoDelta(model, init_loc_fn=numpyro.infer.init_to_value(values=start))
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.01), numpyro.infer.Trace_ELBO())
    state = None if kind == "AutoDelta" else jax.jit(svi.init)(random.key(0), baskets, counts)
    result = svi.run(random.key(0), 3, baskets, counts, progress_bar=False, init_state=state)
    assert result.losses.shape == (3,)
    assert jnp.isfinite(result.losses).all()


@pytest.mark.filterwarnings("ignore:.*could not be made")
def test_baskets_too_large_for_the_event_are_impossible():
    law = NDPP(jnp.eye(4, 2), jnp.zeros((4, 0)), jnp.zeros((0, 0)))
    rows = to_event_width(jnp.array([[0, 1, 4, 4], [0, 1, 2, 4]]), law)
    assert rows.tolist() == [[0, 1], [-1, -1]]
    large = NDPP(jnp.ones((300, 3)), jnp.zeros((300, 0)), jnp.zeros((0, 0)))
    for dtype in (np.uint8, np.uint32, np.uint64):
        widened = jax.jit(partial(to_event_width, dist=large))(np.array([[1, 44]], dtype))
        assert widened.tolist() == [[1, 44, 300]]
        assert jnp.issubdtype(widened.dtype, jnp.signedinteger)
    assert law.log_prob(rows)[1] == -jnp.inf


def test_counts_of_zero_are_refused():
    for prior in (ndpp_prior, ondpp_prior, symmetric_prior):
        with pytest.raises(ValueError, match="counts must be positive: item_counts has one"):
            handlers.seed(prior, 0)(np.array([2, 0, 1]), 3, rank=(2, 2))


@pytest.mark.parametrize(
    ("prior", "sites", "alpha"),
    [
        (ndpp_prior, "V B D", np.array([1.0, 100.0])),
        (symmetric_prior, "V", np.array([1.0, 100.0])),
        (ondpp_prior, "V_raw B_raw sigma", 3.0),
    ],
)
def test_priors_within_a_plate_are_those_of_each_kernel(prior, sites, alpha):
    counts, shapes = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), {"V": (5, 2), "B": (5, 2), "D": (2, 2), "sigma": (1,)}
    rng = np.random.default_rng(0)
    # As many kernels as V has columns: a strength that went along the wrong axis would fit too.
    values = {site: abs(rng.normal(size=(2, *shapes[site.removesuffix("_raw")]))) for site in sites.split()}

    def shops():
        with numpyro.plate("shops", 2):
            return prior(counts, 7, rank=(2, 2), alpha=alpha)

    def one(alpha):
        return prior(counts, 7, rank=(2, 2), alpha=alpha)

    @partial(jax.jit, static_argnums=0)
    def judged(model, values, *strength):
        law = handlers.seed(handlers.substitute(model, values), 0)(*strength)
        subset = to_event_width(np.array([0, 3]), law)
        return law.log_prob(subset), log_density(model, strength, {}, values)[0]

    log_prob, together = judged(shops, values)
    assert log_prob.shape == (2,)
    one_by_one = [
        judged(one, {site: value[i] for site, value in values.items()}, strength)
        for i, strength in enumerate(np.broadcast_to(alpha, 2))
    ]
    np.testing.assert_allclose(log_prob, [alone for alone, _ in one_by_one], rtol=1e-10)
    np.testing.assert_allclose(together, sum(density for _, density in one_by_one), rtol=1e-10)


def test_counts_of_items_out_of_range_are_refused():
    for baskets in ([[0, 9]], [[-1, 2]]):
        with pytest.raises(ValueError, match=r"baskets: row 0 has item -?\d; items must be 0 to 2"):
            item_counts(np.array(baskets), 3)
    with pytest.raises(TypeError, match="baskets: row 0 has items of type float64; item numbers are integers"):
        item_counts(np.array([[0.5, 2.7]]), 3)
    assert item_counts(np.zeros((0, 2)), 3).tolist() == [1, 1, 1]


def test_priors_have_one_number_for_each_item():
    for prior in (ndpp_prior, ondpp_prior, symmetric_prior):
        with pytest.raises(ValueError, match=r"counts must be one number for each item.* got shapes \(2, 2\)"):
            handlers.seed(prior, 0)(np.ones((2, 2)), 3, rank=(2, 2))
    with pytest.raises(ValueError, match="alpha, beta and gamma must be one number each"):
        handlers.seed(ondpp_prior, 0)(np.ones(4), 3, rank=(2, 2), alpha=np.ones(2))


@pytest.mark.slow
def test_models_run_under_nuts():
    baskets = pad_subsets(simulate_baskets(50).baskets, 12, 8)
    model = partial(basket_model, prior=partial(ndpp_prior, rank=(4, 4), alpha=1.0, beta=1.0))
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model, max_tree_depth=3), num_warmup=3, num_samples=3, progress_bar=False
    )
    mcmc.run(random.key(0), baskets, item_counts(baskets, 12))
    assert jnp.isfinite(mcmc.get_samples()["V"]).all()
