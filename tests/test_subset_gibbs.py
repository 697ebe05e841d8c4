"""Latent subsets: moves against enumeration, posteriors against enumeration and quadrature."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from jax.extend.core import jaxprs_in_params
from kernels import KERNELS, PARTS, SKEW, N, all_subsets, enumerated_minors
from numpyro.infer import MCMC, NUTS, Gibbs, HMCGibbs

from numpyro_ndpp import KNDPP, NDPP, Cholesky, Contour, SubsetGibbs, UpDown, pad_subsets, to_multihot
from numpyro_ndpp.samplers.moves import move

NUM_SAMPLES = 50_000
n, d = 8, 4


# --- Moves -----------------------------------------------------------------------------------------------------------


@jax.jit
def moves(walk, keys, starts, dropped, added):
    """Moves from many starts; kernels of one shape share what is compiled."""
    return jax.vmap(partial(move, walk), in_axes=(0, 0, None, None))(keys, starts, dropped, added)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "ordinary" else pytest.mark.slow)
        for name in KERNELS
        if name != "cond(C) 1e6"
    ],
)
def test_hastings_ratio_of_moves_equals_enumeration(name):
    """C(size, r) Z_s(A) / (C(size', s) Z_r(A)), where A is the smaller of the two subsets."""
    minors = enumerated_minors(name)
    law = NDPP(*PARTS[name])
    walk = law.prepared_state()
    starts = law.sample(random.key(0), (40,))
    num_checked = 0

    def total(A, count):
        rest = [item for item in range(N) if item not in A]
        return sum(minors.get(tuple(sorted((*A, *T))), 0.0) for T in itertools.combinations(rest, count))

    for dropped, added in [(0, 1), (1, 0), (0, 2), (2, 0)]:
        proposed, log_ratio = moves(walk, random.split(random.key(1), 40), starts, dropped, added)
        for before, after, value in zip(starts.tolist(), proposed.tolist(), log_ratio.tolist(), strict=True):
            S, T = ({item for item in subset if item < N} for subset in (before, after))
            if value == -math.inf:
                assert S == T
                continue
            assert len(T) == len(S) - dropped + added
            A = tuple(sorted(S & T))
            assert len(A) == min(len(S), len(T))
            if min(total(A, added), total(A, dropped)) == 0:
                # a subset of an odd size under a skew kernel, which only rounding makes possible
                assert name in SKEW
                assert abs(value) > 30
                continue
            expected = math.comb(len(S), dropped) * total(A, added) / (math.comb(len(T), added) * total(A, dropped))
            assert value == pytest.approx(math.log(expected), abs=1e-6)
            num_checked += 1
    assert num_checked >= 20


def test_exchanges_need_no_ratio():
    law = NDPP(*PARTS["ordinary"])
    start = np.append(law.greedy(4), np.full(4, N))
    starts = jnp.asarray(np.tile(start, (40, 1)), jnp.int32)
    for number in (1, 2):
        proposed, log_ratio = moves(law.prepared_state(), random.split(random.key(0), 40), starts, number, number)
        assert (log_ratio == 0).all()
        assert (np.sum(np.asarray(proposed) < N, axis=1) == 4).all()


# --- Posteriors ------------------------------------------------------------------------------------------------------


def regression_data():
    key_x, key_y = random.split(random.key(3))
    base = random.normal(key_x, (30, 3))
    features = jnp.concatenate([base, base + 0.4 * random.normal(random.key(4), (30, 3)), base[:, :2] ** 2], axis=1)
    y = features[:, 0] - 0.7 * features[:, 4] + 0.8 * random.normal(key_y, (30,))
    return features, y


KERNEL = [np.random.default_rng(5).normal(size=shape) for shape in [(n, d), (n, d), (d, d)]]


def prior(k, sampler=UpDown()):
    V, B, D = KERNEL
    return NDPP(V, B, D, max_size=4, sampler=sampler) if k is None else KNDPP(V, B, D, k=k, sampler=sampler)


def log_marginal_likelihood(mask, features, y, noise):
    """log N(y; 0, noise² I + features_S features_Sᵀ): weights of a standard normal law integrated out."""
    covariance = noise**2 * jnp.eye(len(y)) + (features * mask) @ features.T
    return dist.MultivariateNormal(0, covariance).log_prob(y)


def regression(features, y, k=None, multihot=False, sampler=UpDown()):
    """The weights are integrated out; the noise is a latent site for NUTS."""
    law = prior(k, sampler)
    mask = numpyro.sample("S", law.multihot()) if multihot else to_multihot(numpyro.sample("S", law), n)
    noise = numpyro.sample("noise", dist.LogNormal(0, 0.3))
    numpyro.factor("y", log_marginal_likelihood(mask, features, y, noise))


def exact_regression_posterior(k):
    """By enumeration over subsets and quadrature over the noise."""
    features, y = regression_data()
    subsets = all_subsets(n, 0 if k is None else k, 4 if k is None else k)
    padded = pad_subsets(subsets, n)
    log_prior = prior(k).log_prob(padded)
    grid = np.linspace(-1.5, 1.5, 121)
    noise = jnp.exp(jnp.asarray(grid))
    log_weight = dist.Normal(0, 0.3).log_prob(jnp.log(noise))  # in log noise the grid is even
    masks = to_multihot(padded, n)

    def of_subset(mask):
        return jax.nn.logsumexp(jax.vmap(lambda s: log_marginal_likelihood(mask, features, y, s))(noise) + log_weight)

    log_posterior = log_prior + jax.lax.map(of_subset, masks)
    return subsets, np.asarray(jax.nn.softmax(log_posterior))


def kernel_model(k=None):
    """A kernel whose strength is another latent site, and a subset seen through noise."""
    V, B, D = KERNEL
    strength = numpyro.sample("strength", dist.Normal(0, 1))
    scale = jnp.exp(0.5 * strength)
    if k is None:
        S = numpyro.sample("S", NDPP(scale * V, B, D, max_size=4))
    else:
        S = numpyro.sample("S", KNDPP(scale * V, B, D, k=k))
    mask = to_multihot(S, n)
    seen = jnp.array([1.0, 0.2, 0.8, 0.0, 0.5, 0.9, 0.1, 0.4])
    with numpyro.plate("items", n):
        numpyro.sample("seen", dist.Normal(mask, 0.7), obs=seen)


def exact_kernel_posterior(k):
    V, B, D = (jnp.asarray(part) for part in KERNEL)
    subsets = all_subsets(n, 0 if k is None else k, 4 if k is None else k)
    padded = pad_subsets(subsets, n)
    seen = jnp.array([1.0, 0.2, 0.8, 0.0, 0.5, 0.9, 0.1, 0.4])
    log_likelihood = dist.Normal(to_multihot(padded, n), 0.7).log_prob(seen).sum(-1)
    strengths = jnp.linspace(-4.5, 4.5, 121)

    def log_prior(strength):
        parts = jnp.exp(0.5 * strength) * V, B, D
        law = NDPP(*parts, max_size=4) if k is None else KNDPP(*parts, k=k)
        return law.log_prob(padded) + dist.Normal(0, 1).log_prob(strength)

    log_joint = jax.nn.logsumexp(jax.lax.map(log_prior, strengths), axis=0)
    return subsets, np.asarray(jax.nn.softmax(log_joint + log_likelihood))


def total_variation(draws, subsets, probs):
    """Between the frequencies of subsets (s, n), as masks, and their probabilities."""
    weights = 1 << np.arange(n)
    counts = np.bincount(np.asarray(draws) @ weights, minlength=1 << n) / len(draws)
    expected = np.zeros(1 << n)
    for subset, p in zip(subsets, probs, strict=True):
        expected[sum(1 << item for item in subset)] = p
    return 0.5 * np.abs(counts - expected).sum()


def kernel_of(way, model, data, **settings):
    block = SubsetGibbs(model, "S", **settings)
    nuts = NUTS(model, max_tree_depth=3)
    if way == "Gibbs":
        return Gibbs([(block, ["S"]), (nuts, None)])
    return HMCGibbs(nuts, block.gibbs_fn(*data), ["S"])


def run(kernel, *args, num_samples=NUM_SAMPLES, num_chains=50, extra_fields=(), seed=0):
    mcmc = MCMC(
        kernel,
        num_warmup=200,
        num_samples=num_samples // num_chains,
        num_chains=num_chains,
        chain_method=jax.vmap,
        progress_bar=False,
    )
    mcmc.run(random.key(seed), *args, extra_fields=extra_fields)
    return mcmc


WAYS_AND_SIZES = list(itertools.product(["Gibbs", "HMCGibbs"], [3, None]))


@pytest.mark.slow
@pytest.mark.parametrize(("way", "k"), WAYS_AND_SIZES)
def test_posterior_of_a_regression_equals_enumeration(way, k):
    features, y = regression_data()

    def model(features, y):
        regression(features, y, k)

    mcmc = run(kernel_of(way, model, (features, y)), features, y)
    masks = to_multihot(mcmc.get_samples()["S"], n)
    assert total_variation(masks, *exact_regression_posterior(k)) < 0.06


@pytest.mark.slow
@pytest.mark.parametrize(("way", "k"), WAYS_AND_SIZES)
def test_posterior_with_a_latent_kernel_equals_enumeration(way, k):
    def model():
        kernel_model(k)

    mcmc = run(kernel_of(way, model, (), num_moves=4))
    masks = to_multihot(mcmc.get_samples()["S"], n)
    assert total_variation(masks, *exact_kernel_posterior(k)) < 0.06


@pytest.mark.slow
def test_fresh_exact_draws_and_the_multihot_view():
    features, y = regression_data()

    def model(features, y):
        regression(features, y, 3, multihot=True, sampler=Contour())

    kernel = kernel_of("HMCGibbs", model, (features, y), num_moves=4, fresh=0.3)
    mcmc = run(kernel, features, y, num_samples=20_000)
    assert total_variation(mcmc.get_samples()["S"], *exact_regression_posterior(3)) < 0.06


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")  # NumPyro's, for extra fields under vmap
def test_two_subset_sites_and_the_acceptance_rate():
    """Two sites in one block: each has its own posterior. The acceptance rate comes as an extra field."""
    seen = jnp.array([1.0, 0.2, 0.8, 0.0, 0.5, 0.9, 0.1, 0.4])

    def model():
        for site, k in (("first", 2), ("second", 3)):
            mask = to_multihot(numpyro.sample(site, prior(k)), n)
            shift = numpyro.sample(f"shift of {site}", dist.Normal(0, 0.1))
            numpyro.sample(f"seen {site}", dist.Normal(mask + shift, 0.7).to_event(1), obs=seen)

    sites = ["first", "second"]
    kernel = Gibbs([(SubsetGibbs(model, sites), sites), (NUTS(model, max_tree_depth=3), None)])
    mcmc = run(kernel, num_samples=10_000, extra_fields=("block_states.0.accept_prob",))
    accept_prob = mcmc.get_extra_fields()["block_states.0.accept_prob"]
    assert accept_prob.shape == (10_000,)
    assert 0.1 < accept_prob.mean() < 1
    for site, k in (("first", 2), ("second", 3)):
        subsets = all_subsets(n, k, k)
        padded = pad_subsets(subsets, n)
        shifts = jnp.linspace(-0.5, 0.5, 41)
        log_likelihood = jax.vmap(
            lambda shift, padded=padded: dist.Normal(to_multihot(padded, n) + shift, 0.7).log_prob(seen).sum(-1)
        )(shifts)
        log_likelihood = jax.nn.logsumexp(log_likelihood + dist.Normal(0, 0.1).log_prob(shifts)[:, None], axis=0)
        probs = np.asarray(jax.nn.softmax(prior(k).log_prob(padded) + log_likelihood))
        assert total_variation(to_multihot(mcmc.get_samples()[site], n), subsets, probs) < 0.06


# --- Bad input -------------------------------------------------------------------------------------------------------


def bad_model(y=None, sampler=Cholesky()):
    numpyro.sample("S", prior(2, sampler))
    numpyro.sample("observed", prior(2, sampler), obs=jnp.array([0, 1]))
    numpyro.sample("x", dist.Normal(0, 1))


@pytest.mark.parametrize(
    ("site", "message"),
    [
        ("T", r"site 'T' is not in the model; its latent sites are \['S', 'x'\]"),
        ("observed", "site 'observed' is observed"),
        ("x", "site 'x' has a Normal; SubsetGibbs updates an NDPP or KNDPP"),
    ],
)
def test_bad_sites(site, message):
    with pytest.raises(ValueError, match=message):
        SubsetGibbs(bad_model, site).gibbs_fn()


def test_bad_settings():
    with pytest.raises(ValueError, match="num_moves must be at least 1, got 0"):
        SubsetGibbs(bad_model, "S", num_moves=0)
    with pytest.raises(ValueError, match=r"fresh must be a finite number at least 0 and at most 1, got 2.0"):
        SubsetGibbs(bad_model, "S", fresh=2.0)
    with pytest.raises(ValueError, match=r"fresh draws must be exact, but site 'S' has the sampler UpDown"):
        SubsetGibbs(bad_model, "S", fresh=0.5).gibbs_fn(sampler=UpDown(num_steps=1))
    with pytest.raises(ValueError, match="site must be the name of a site"):
        SubsetGibbs(bad_model, [])


@pytest.mark.parametrize(
    ("law", "start"),
    [
        (lambda: NDPP(*PARTS["ordinary"], max_size=2, sampler=Cholesky()).multihot(), np.ones(N, int)),
        (lambda: NDPP(*PARTS["ordinary"], sampler=Cholesky()).condition([0]), np.array([0, 2, *[N] * 6])),
    ],
    ids=["too many for a view", "pinned already"],
)
def test_start_that_is_no_value_of_its_law(law, start):
    kernel = SubsetGibbs(lambda: numpyro.sample("S", law()), "S")
    with pytest.raises(ValueError, match="site 'S' cannot start at"):
        kernel.init(random.key(0), 0, {"S": start}, (), None)


def test_likelihood_that_is_not_a_number_is_left():
    def model():
        chosen = numpyro.sample("S", NDPP(*PARTS["ordinary"], sampler=Cholesky()).multihot())
        numpyro.factor("trouble", jnp.where(chosen[0] == 1, jnp.nan, 0.0))

    kernel = SubsetGibbs(model, "S")
    state = kernel.init(random.key(0), 0, {"S": np.arange(N) < 2}, (), None)
    update = jax.jit(lambda state: kernel.sample(state, (), None))
    for _ in range(5):
        state = update(state)
    assert state.z["S"][0] == 0


def test_fresh_draws_are_prepared_once_in_an_update():
    """Also where the kernel depends on another site: fresh draws add no product over all items to a move."""
    size = 40

    def model():
        scale = numpyro.sample("scale", dist.LogNormal(0, 0.1))
        features = scale * jnp.cos(jnp.arange(3.0 * size)).reshape(size, 3)
        numpyro.sample("S", KNDPP(features, jnp.zeros((size, 1)), jnp.zeros((1, 1)), k=2, sampler=Cholesky()))

    def grams(jaxpr, within):
        """For every product over all items, whether it is in a loop."""
        for equation in jaxpr.eqns:
            shapes = [variable.aval.shape for variable in (*equation.invars, *equation.outvars)]
            if equation.primitive.name == "dot_general" and shapes == [(4, size), (size, 4), (4, 4)]:
                yield within
            for inner in jaxprs_in_params(equation.params):
                yield from grams(inner, within or equation.primitive.name in ("while", "scan"))

    def number_in_moves(fresh):
        update = SubsetGibbs(model, "S", fresh=fresh, num_moves=3).gibbs_fn()
        jaxpr = jax.make_jaxpr(update)(random.key(0), {"S": jnp.array([0, 1])}, {"scale": jnp.ones(())})
        return sum(grams(jaxpr.jaxpr, False))

    # One is that of the prior's own log-probability, which is dropped when it is compiled.
    assert number_in_moves(0.5) == number_in_moves(0.0) == 1
