"""A free distribution of the size: every member against enumeration, and against NDPP and KNDPP where they agree."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from chi_square import chi_square_p_value
from flint import arb, arb_mat, ctx
from jax import random
from kernels import HARDEST, KERNELS, PARTS, TRUE_RANK, N, all_subsets, factors, inclusion, minors_above_rounding, sizes
from numpyro.infer import MCMC, SVI, Predictive, Trace_ELBO

from numpyro_ndpp import (
    KNDPP,
    NDPP,
    Cholesky,
    Exact,
    Rejection,
    SizedNDPP,
    SubsetGibbs,
    UpDown,
    circles,
    pad_subsets,
    platforms,
    size_law,
    size_law_at_once,
)
from numpyro_ndpp.circles import log_coefficients, num_places, place_circles, place_nodes
from numpyro_ndpp.eigenvalue_products import of_eigenvalues
from numpyro_ndpp.kernel import gram
from numpyro_ndpp.normalizer import log_circle_sum, log_sum_esp, pencil
from numpyro_ndpp.size_bounds import bound_sizes, log_concave
from numpyro_ndpp.size_law import log_esps
from numpyro_ndpp.size_law_at_once import by_bounds, log_esps_at_once

D = 8
NAMES = [name for name in KERNELS if name != "n < d"]
LOGITS = np.log(np.array([0.05, 0.2, 0.1, 0.3, 0.02, 0.1, 0.08, 0.05, 0.1]))
SUBSETS = all_subsets(N, 0, D)
PADDED = np.asarray(pad_subsets(SUBSETS, N, D))


def stacked(names=NAMES):
    """All kernels of the table in one batch: one compilation."""
    X, W = (np.stack(parts) for parts in zip(*(factors(name) for name in names), strict=True))
    return X, W


def enumerated(name, logits=LOGITS, low=0, high=D, include=(), exclude=()):
    """P(T) of every T: π of a size that has a subset, shared out among its minors, then Bayes' rule."""
    minors, weights = minors_above_rounding(name), {}
    for size in range(low, min(high, len(logits) - 1) + 1):
        of_size = {subset: minor for subset, minor in minors.items() if len(subset) == size}
        total = sum(of_size.values())
        for subset, minor in of_size.items():
            if total and set(include) <= set(subset) and not set(exclude) & set(subset):
                weights[tuple(i for i in subset if i not in include)] = np.exp(logits[size]) * minor / total
    total = sum(weights.values())
    return {T: weight / total for T, weight in weights.items()} if total else None


def probabilities(law, subsets):
    return np.array([law.get(subset, 0.0) for subset in subsets])


@pytest.fixture(scope="module")
def batch():
    return SizedNDPP.from_factors(*stacked(), LOGITS)


def test_log_prob_equals_enumeration(batch):
    values = np.exp(np.asarray(batch.log_prob(PADDED[:, None])))
    for number, name in enumerate(NAMES):
        expected = probabilities(enumerated(name), SUBSETS)
        np.testing.assert_allclose(values[:, number], expected, atol=1e-10, rtol=1e-7, err_msg=name)
        np.testing.assert_allclose(values[:, number].sum(), 1.0, atol=1e-9)
    np.testing.assert_allclose(
        batch.multihot().log_prob(np.eye(N, dtype=int)[:2, None]), batch.log_prob([[[0]], [[1]]])
    )


def test_sizes_and_inclusion_equal_enumeration(batch):
    size_probs, included = np.exp(np.asarray(batch.size_log_prob())), np.asarray(batch.inclusion_probs())
    for number, name in enumerate(NAMES):
        law = enumerated(name)
        np.testing.assert_allclose(size_probs[number], sizes(law, D + 1), atol=1e-10, err_msg=name)
        np.testing.assert_allclose(included[number], inclusion(law), atol=1e-8, err_msg=name)


def test_marginals_equal_enumeration(batch):
    sets = [(0, 1), (4,), (2, 5, 6), ()]
    values = np.exp(np.asarray(batch.marginal_log_prob(np.asarray(pad_subsets(sets, N, 3))[:, None])))
    for number, name in enumerate(NAMES):
        law = enumerated(name)
        expected = [sum(p for subset, p in law.items() if set(items) <= set(subset)) for items in sets]
        np.testing.assert_allclose(values[:, number], expected, atol=1e-8, err_msg=name)


@pytest.mark.slow
def test_conditioned_it_follows_bayes_rule():
    names = ["ordinary", "near skew", "symmetric", "d1 < d2"]
    given = SizedNDPP.from_factors(*stacked(names), LOGITS, min_size=1, max_size=6).condition([0, 7], exclude=[3])
    others = [subset for subset in SUBSETS if not {0, 7} & set(subset) and len(subset) <= 6]
    values = np.exp(np.asarray(given.log_prob(np.asarray(pad_subsets(others, N, 6))[:, None])))
    size_probs, included = np.exp(np.asarray(given.size_log_prob())), np.asarray(given.inclusion_probs())
    for number, name in enumerate(names):
        law = enumerated(name, low=1, high=6, include=(0, 7), exclude=(3,))
        np.testing.assert_allclose(values[:, number], probabilities(law, others), atol=1e-9, err_msg=name)
        np.testing.assert_allclose(size_probs[number], sizes(law, D + 1), atol=1e-9, err_msg=name)
        np.testing.assert_allclose(included[number], inclusion(law), atol=1e-7, err_msg=name)


def test_it_is_the_ndpp_of_that_distribution_of_the_size():
    V, B, skew = PARTS["ordinary"]
    ndpp = NDPP(V, B, skew)
    sized = SizedNDPP(3.0 * V, 3.0 * B, skew, ndpp.size_log_prob())  # its scale does not count
    np.testing.assert_allclose(sized.log_prob(PADDED), ndpp.log_prob(PADDED), atol=1e-9)
    np.testing.assert_allclose(sized.inclusion_probs(), ndpp.inclusion_probs(), atol=1e-9)


@pytest.mark.slow
def test_it_is_the_kndpp_of_a_size_that_is_certain():
    V, B, skew = PARTS["ordinary"]
    kndpp = KNDPP(V, B, skew, 3)
    certain = np.where(np.arange(D + 1) == 3, 0.0, -np.inf)
    triples = PADDED[[len(subset) == 3 for subset in SUBSETS]][:, :3]
    for sized in (SizedNDPP(V, B, skew, certain), SizedNDPP(V, B, skew, LOGITS, min_size=3, max_size=3)):
        np.testing.assert_allclose(sized.log_prob(triples), kndpp.log_prob(triples), atol=1e-9)
        np.testing.assert_allclose(sized.inclusion_probs(), kndpp.inclusion_probs(), atol=1e-9)


@pytest.mark.slow
def test_sizes_without_a_subset_leave_their_probability_to_the_others():
    V, B, skew = PARTS["skew pairs"]
    law = SizedNDPP(V, B, skew, LOGITS)
    even = np.exp(LOGITS[::2]) / np.exp(LOGITS[::2]).sum()
    np.testing.assert_allclose(np.exp(law.size_log_prob())[::2], even, atol=1e-12)
    np.testing.assert_array_equal(law.size_log_prob()[1::2], -np.inf)
    odd_only = SizedNDPP(V, B, skew, np.where(np.arange(D + 1) % 2, LOGITS, -np.inf), sampler=Cholesky())
    assert odd_only.log_normalizer == -np.inf
    np.testing.assert_array_equal(odd_only.log_prob(PADDED), -np.inf)
    np.testing.assert_array_equal(odd_only.inclusion_probs(), 0.0)
    with pytest.raises(ValueError, match="probability zero"):
        odd_only.sample(random.key(0), (3,))


def test_sizes_by_a_distribution_are_truncated():
    V, B, skew = PARTS["ordinary"]
    sizes_of = dist.NegativeBinomial2(2.0, 1.5)
    law = SizedNDPP(V, B, skew, sizes_of, min_size=1, max_size=5)
    expected = np.exp(np.asarray(sizes_of.log_prob(np.arange(1, 6))))
    np.testing.assert_allclose(np.exp(law.size_log_prob())[1:6], expected / expected.sum(), atol=1e-12)
    few = SizedNDPP(V, B, skew, dist.Binomial(2, 0.5))  # no size above 2
    np.testing.assert_allclose(np.exp(few.size_log_prob())[:4], [0.25, 0.5, 0.25, 0], atol=1e-12)


BASKETS = [(0,), (1, 4, 6), (2, 3, 5, 8, 9), (0, 2, 4, 7)]


def _exactly(V, B, D, logits):
    """Σ log P(S) over the baskets, P(2 ∈ S) and log P(1, 5 ∈ S), by enumeration, in ninety digits."""
    L = V * V.transpose() + B * (D - D.transpose()) * B.transpose()
    minor = {S: arb_mat([[L[i, j] for j in S] for i in S]).det() if S else arb(1) for S in SUBSETS}
    weights = [logit.exp() for logit in logits]
    sums = [sum((minor[S] for S in SUBSETS if len(S) == size), arb(0)) for size in range(len(weights))]

    def prob(subsets):
        return sum((weights[len(S)] * minor[S] / sums[len(S)] for S in subsets), arb(0)) / sum(weights, arb(0))

    both = prob([S for S in SUBSETS if {1, 5} <= set(S)]).log()
    return sum((prob([S]).log() for S in BASKETS), arb(0)) + prob([S for S in SUBSETS if 2 in S]) + both


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ordinary", "near skew"])
def test_gradients_equal_exact_differences(name):
    """Differences of a value in float64 are too rough: a near-skew kernel's has an error of 5e-12."""
    arguments = *(np.asarray(part) for part in PARTS[name]), LOGITS
    padded = np.asarray(pad_subsets(BASKETS, N, 5))

    def value(V, B, D, logits):
        law = SizedNDPP(V, B, D, logits, validate_args=False)
        return law.log_prob(padded).sum() + law.inclusion_probs()[2] + law.marginal_log_prob(jnp.array([1, 5]))

    found, slopes = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2, 3)))(*arguments)
    precision, ctx.prec = ctx.prec, 300
    step = arb("1e-40")
    exact = [arb_mat([[arb(float(x)) for x in row] for row in part]) for part in arguments[:3]]
    exact.append([arb(float(x)) for x in LOGITS])
    at = _exactly(*exact)
    np.testing.assert_allclose(found, float(at.mid()), rtol=1e-10)
    for number, argument in enumerate(arguments):
        for place in (
            np.ndindex(argument.shape) if name == "near skew" else [(0,) * argument.ndim, (3,) * argument.ndim]
        ):
            moved = list(exact)
            moved[number] = list(exact[number]) if argument.ndim == 1 else arb_mat(exact[number])
            index = place[0] if argument.ndim == 1 else place
            moved[number][index] = moved[number][index] + step
            slope = float(((_exactly(*moved) - at) / step).mid())
            np.testing.assert_allclose(slopes[number][place], slope, rtol=1e-8, atol=1e-8)
    ctx.prec = precision


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, 0))
def _slopes(W, C, dW):
    """Derivatives of all coefficients along dW: by few circles for all sizes, and by a circle for each of them."""
    rank, sizes = len(W), jnp.arange(len(W) + 1)
    value, by_few = jax.jvp(lambda W: log_esps(W, C), (W,), (dW,))
    again, _ = log_coefficients(pencil(W, C), value, sizes >= 0, rank + 1)
    by_one = [jax.jvp(lambda W, k=k: log_sum_esp(W, C, k, k, rank), (W,), (dW,))[1] for k in range(1, rank + 1, 2)]
    return value, again, by_few, jnp.stack(by_one)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-8), (np.float32, 1e-3)])
def test_few_circles_serve_all_sizes(dtype, tolerance):
    names = [name for name in NAMES if TRUE_RANK[name] == D and "skew" not in name and "cond" not in name]
    X, W = stacked(names)
    C = np.stack([gram(x) for x in X])
    dW = np.random.default_rng(0).normal(size=W.shape)
    scale = np.trace(C, axis1=1, axis2=2)[:, None, None]
    value, again, by_few, by_one = _slopes(W.astype(dtype), (C / scale).astype(dtype), dW.astype(dtype))
    np.testing.assert_allclose(again, value, atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(by_few[:, 1::2], by_one, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [pytest.param(np.float64, 1e-8, marks=pytest.mark.slow), (np.float32, 1e-3)]
)
def test_bounds_serve_where_they_say_so(dtype, tolerance):
    """Without eigenvalues: as accurate, or not called accurate, as where a size is impossible."""
    most, names = 4, [name for name in NAMES if "cond" not in name]
    X, W = stacked(names)
    C = np.stack([gram(x) for x in X])
    C = C / np.trace(C, axis1=1, axis2=2)[:, None, None]
    dW = np.random.default_rng(0).normal(size=W.shape)

    @jax.jit
    @jax.vmap
    def at_once(W, C, dW):
        is_accurate = by_bounds(most, 0, W, C)[-1]
        return *jax.jvp(lambda W: log_esps_at_once(most, 0, W, C), (W,), (dW,)), is_accurate

    found, slopes, is_accurate = at_once(W.astype(dtype), C.astype(dtype), dW.astype(dtype))
    expected, of_expected = jax.jit(jax.vmap(lambda W, C, dW: jax.jvp(lambda W: log_esps(W, C, most), (W,), (dW,))))(
        W, C, dW
    )
    good = np.asarray(is_accurate)
    np.testing.assert_allclose(found[good][:, : most + 1], expected[good], atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(slopes[good][:, : most + 1], of_expected[good], atol=tolerance, rtol=tolerance)
    assert not np.isneginf(expected[good]).any()
    assert {name for name, is_good in zip(names, good, strict=True) if is_good} >= {"ordinary", "d1 < d2", "d1 > d2"}
    assert not good[[names.index(name) for name in ("skew", "near skew", "skew pairs")]].any()


@pytest.mark.parametrize("d1", [3, 6])
def test_bounds_by_cholesky(d1):
    """The block that is symmetric is eliminated first: the same bounds, which are none too small."""
    rng = np.random.default_rng(d1)
    V, B, D = rng.normal(size=(20, d1)), rng.normal(size=(20, 6 - d1)), rng.normal(size=(6 - d1, 6 - d1))
    law = NDPP(V, B, D)
    W, C = law.W, gram(law.X)
    found, expected = bound_sizes(W, C, 5, d1), bound_sizes(W, C, 5, 0)
    np.testing.assert_allclose(found.log_e, expected.log_e, atol=1e-9)
    assert found.is_usable == expected.is_usable
    exact = np.asarray(log_esps(W, C))
    assert (found.log_e >= exact - 1e-9).all()
    assert (found.log_e[:6] < exact[:6] + 3).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ordinary", "near skew"])
def test_an_accelerator_has_the_same_weights(name, monkeypatch):
    """By bounds where they serve, by eigenvalues where they do not: values and gradients are those of a CPU."""
    X, W = factors(name)
    C = gram(X) / np.trace(gram(X))
    wanted = jax.jit(jax.value_and_grad(lambda W: log_esps(W, C, 4).sum()))(W)
    monkeypatch.setattr(size_law, "platform", lambda: platforms._ACCELERATOR)
    assert jax.jit(lambda W: by_bounds(4, 0, W, C)[-1])(W) == (name == "ordinary")
    found = jax.jit(jax.value_and_grad(lambda W: log_esps.__wrapped__(W, C, 4).sum()))(W)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fewest"), [("ordinary", 128), ("ordinary", 4), ("near skew", 128)])
def test_an_accelerator_has_the_same_second_derivatives(name, fewest, monkeypatch):
    """With as many nodes as most kernels need, with more, and by eigenvalues."""
    monkeypatch.setattr(size_law_at_once, "_FEWEST_NODES", fewest)
    monkeypatch.setattr(size_law_at_once, "MORE_NODES", 65)
    X, W = factors(name)
    C, dW = gram(X) / np.trace(gram(X)), np.random.default_rng(0).normal(size=W.shape)

    def twice(weights):
        def once(W):
            return jax.jvp(lambda W: weights(W, C, 4)[:5], (W,), (dW,))[1]

        return jax.jit(lambda W: (once(W), jax.jvp(once, (W,), (dW,))[1], jax.grad(lambda W: once(W).sum())(W)))(W)

    is_enough = jax.jit(lambda W: by_bounds(4, 0, W, C)[-1])(W)
    assert is_enough == (name == "ordinary" and fewest == 128)
    found = twice(lambda W, C, most: log_esps_at_once(most, 0, W, C))
    for ours, theirs in zip(found, twice(log_esps), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_every_size_has_its_nodes():
    """Pairs of eigenvalues far from each other: each circle serves few sizes, and there are many circles."""
    d, rng = 64, np.random.default_rng(0)
    pair = np.arange(d) // 2
    C = np.diag(np.exp(-1.4 * pair))
    W = 0.05 * np.eye(d) + (pair[:, None] == pair) * np.sign(np.arange(d) - np.arange(d)[:, None])
    dW, sizes = rng.normal(size=(d, d)), np.arange(d + 1)
    circles = place_circles(log_esps(W, C), sizes >= 0)
    assert d + 49 < circles.num_upper.sum() <= num_places(d + 1, np.float64)
    _, slopes = jax.jit(lambda W: jax.jvp(lambda W: log_esps(W, C), (W,), (dW,)))(W)
    by_one = jax.jit(lambda k: jax.jvp(lambda W: log_circle_sum(W, C, None, k, k, sizes, d + 4), (W,), (dW,))[1])
    some = np.append(np.arange(1, 50, 8), np.arange(50, d))
    np.testing.assert_allclose(slopes[some], [by_one(k) for k in some], rtol=1e-7, atol=1e-7)


@pytest.mark.slow
def test_rare_sizes_share_circles():
    """Of a kernel that is nearly skew odd sizes are rare at any radius: no room for a circle of their own."""
    d, rng = 64, np.random.default_rng(0)
    X, K, dW = rng.normal(size=(400, d)) / 7, rng.normal(size=(d // 2, d // 2)), rng.normal(size=(d, d))
    W = 1e-3 * np.eye(d)
    W[d // 2 :, d // 2 :] = K - K.T
    C, sizes = X.T @ X, np.arange(d + 1)
    log_e = log_esps(W.astype(np.float32), C.astype(np.float32))
    assert place_circles(log_e, sizes <= 32).num_upper.sum() > num_places(33, np.float32)
    assert place_circles(log_e, sizes <= 32, log_whole=log_concave(log_e)).num_upper.sum() < num_places(33, np.float32)
    slopes = jax.jit(lambda W, C, dW: jax.jvp(lambda W: log_esps(W, C, 32), (W,), (dW * W,)))
    (value, slope), (exact, of_exact) = (slopes(*(x.astype(t) for x in (W, C, dW))) for t in (np.float32, np.float64))
    np.testing.assert_allclose(value, exact, atol=2e-3)
    np.testing.assert_allclose(slope, of_exact, atol=2e-3, rtol=2e-3)
    for k in (1, 15, 32):
        by_one = jax.jvp(lambda W, k=k: log_sum_esp(W, C, k, k, d), (W,), (dW * W,))
        np.testing.assert_allclose((exact[k], of_exact[k]), by_one, rtol=1e-7)


def test_a_log_concave_sequence_above():
    log_e = jnp.log(jnp.array([1.0, 0.5, 8.0, 4.0, 0.0, 1.0, 0.0]))
    above = log_concave(log_e)
    assert (above >= log_e).all()
    assert np.isneginf(above[-1])
    np.testing.assert_allclose(above[jnp.array([0, 2, 3])], log_e[jnp.array([0, 2, 3])], atol=1e-14)
    np.testing.assert_array_less(np.diff(above[:-1], 2), 1e-12)


SAMPLERS = [Exact(), *(pytest.param(each, marks=pytest.mark.slow) for each in (Cholesky(), UpDown(), Rejection()))]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=type)
def test_draws_have_the_law(sampler):
    # A test of 4,000 draws by chi-square; with a fixed key it does not fail by chance from run to run.
    V, B, skew = PARTS["ordinary"]
    law = SizedNDPP(V, 0.3 * np.asarray(B), skew, LOGITS[:5], sampler=sampler)
    if isinstance(sampler, UpDown):
        law = law.with_sampler(UpDown(num_steps=20))
    draws = np.asarray(law.multihot().sample(random.key(1), (4000,)))
    subsets = [subset for subset in SUBSETS if len(subset) <= 4]
    probs = np.exp(np.asarray(law.log_prob(np.asarray(pad_subsets(subsets, N, 4)))))
    assert chi_square_p_value(dict(zip(subsets, probs, strict=True)), draws) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", HARDEST)
@pytest.mark.parametrize("sampler", [Cholesky(), UpDown(num_steps=30), Exact()], ids=type)
def test_draws_have_the_law_on_hard_kernels(name, sampler):
    # Where odd sizes are rare at every scale of the kernel, drawing until the size is met takes too long.
    kernel = "d1 < d2" if name == "near skew" and not isinstance(sampler, UpDown) else name
    law = SizedNDPP.from_factors(*factors(kernel), LOGITS[:7], sampler=sampler)
    draws = np.asarray(law.multihot().sample(random.key(2), (4000,)))
    assert chi_square_p_value(enumerated(kernel, LOGITS[:7]), draws) > 1e-4
    if name in ("ordinary", "near skew"):
        given = law.condition([0], exclude=[3])
        draws = np.asarray(given.multihot().sample(random.key(3), (4000,)))
        assert chi_square_p_value(enumerated(kernel, LOGITS[:7], include=(0,), exclude=(3,)), draws) > 1e-4


@pytest.mark.slow
def test_greedy_chooses_among_the_sizes(batch):
    best = np.asarray(batch.greedy())
    values = np.asarray(batch.log_prob(best))
    by_size = np.stack([np.asarray(batch.log_prob(batch.greedy(k))) for k in (1, 3)])
    assert (values >= by_size - 1e-9).all()
    assert np.isfinite(values).all()


@pytest.mark.slow
def test_latent_subsets_are_drawn_by_subset_gibbs():
    V, B, skew = (np.asarray(part)[:6] if len(part) == N else np.asarray(part) for part in PARTS["ordinary"])
    logits = LOGITS[:5]
    law = SizedNDPP(V, B, skew, logits)
    subsets = all_subsets(6, 0, 4)
    shift = np.linspace(-1.0, 1.0, 6)

    def model():
        subset = numpyro.sample("subset", law.multihot())
        numpyro.sample("y", dist.Normal(jnp.dot(subset, shift), 0.7), obs=0.4)

    mcmc = MCMC(SubsetGibbs(model, "subset", num_moves=5), num_warmup=100, num_samples=6000, progress_bar=False)
    mcmc.run(random.key(0), init_params={"subset": jnp.zeros(6, int)})
    drawn = np.asarray(mcmc.get_samples()["subset"]) @ 2 ** np.arange(6)
    indicator = np.array([[item in subset for item in range(6)] for subset in subsets])
    log_post = np.asarray(law.log_prob(np.asarray(pad_subsets(subsets, 6, 4))))
    log_post = log_post + np.asarray(dist.Normal(indicator @ shift, 0.7).log_prob(0.4))
    expected = np.zeros(64)
    expected[indicator @ 2 ** np.arange(6)] = np.exp(log_post - np.logaddexp.reduce(log_post))
    observed = np.bincount(drawn, minlength=64) / len(drawn)
    assert 0.5 * np.abs(observed - expected).sum() < 0.06


def test_sizes_are_learned_by_svi():
    rng = np.random.default_rng(0)
    V = rng.normal(size=(N, 4))
    baskets = np.asarray(pad_subsets([rng.choice(N, 1 + (i % 3), replace=False) for i in range(60)], N, 4))

    def model():
        logits = numpyro.param("logits", jnp.zeros(5))
        numpyro.sample("baskets", SizedNDPP(V, size_logits=logits).expand([60]), obs=baskets)

    svi = SVI(model, lambda: None, numpyro.optim.Adam(0.1), Trace_ELBO())
    result = svi.run(random.key(0), 200, progress_bar=False)
    learned = np.asarray(jax.nn.softmax(result.params["logits"]))
    np.testing.assert_allclose(learned, [0, 1 / 3, 1 / 3, 1 / 3, 0], atol=0.02)
    predicted = Predictive(model, params=result.params, num_samples=2)(random.key(1))["baskets"]
    assert predicted.shape == (2, 60, 4)


def test_mistakes_are_named():
    V, B, skew = PARTS["ordinary"]
    for logits, message in (
        (None, "size_logits must be .* it is missing"),
        (0.0, "size_logits must be .* got shape"),
        (np.zeros(12), r"sizes 0 to 11, but no subset has more than min\(num_items=10, rank=8\)"),
        (np.array([0.0, np.nan]), "got nan for size 1"),
        (np.full(3, -np.inf), "one size at least"),
        (dist.Normal(0.0, 1.0), "must be of sizes"),
    ):
        with pytest.raises(ValueError, match=message):
            SizedNDPP(V, B, skew, logits, validate_args=True)
    with pytest.raises(ValueError, match="max_size is 5, but size_logits has the sizes 0 to 2"):
        SizedNDPP(V, B, skew, np.zeros(3), max_size=5)
    with pytest.raises(NotImplementedError, match="size_logits"):
        SizedNDPP(V, B, skew, LOGITS).with_expected_size(3.0)
    with pytest.raises(ValueError, match="no marginal kernel"):
        SizedNDPP(V, B, skew, LOGITS).dense_marginal_kernel()


@pytest.mark.slow
def test_wide_circles_serve_many_sizes():
    """At d = 64 most nodes come from traces: derivatives against differences, and float32 against float64."""
    rng = np.random.default_rng(1)
    d = 64
    X, dW, K = rng.normal(size=(300, d)) / 8, rng.normal(size=(d, d)), rng.normal(size=(32, 32)) / 4
    W = np.eye(d)
    W[32:, 32:] = K - K.T
    C = X.T @ X

    @jax.jit
    def slopes(W, C, dW):
        return jax.jvp(lambda W: log_esps(W, C, 50), (W,), (dW,))

    _, by_circles = slopes(W, C, dW)
    _, in_float32 = slopes(*(array.astype(np.float32) for array in (W, C, dW)))
    value = jax.jit(lambda W: log_esps(W, C, 50))
    step = 1e-5
    differences = (value(W + step * dW) - value(W - step * dW)) / (2 * step)
    scale = np.abs(by_circles).max()
    np.testing.assert_allclose(by_circles, differences, atol=1e-7 * scale)
    assert in_float32.dtype == jnp.float32
    np.testing.assert_allclose(in_float32, by_circles, atol=1e-4 * scale)

    # A complex factorisation for a few nodes only: most of them are those of wide circles.
    @jax.jit
    def placed(W, C):
        log_e = log_esps(W, C)
        of_sizes = place_circles(log_e, jnp.arange(d + 1) <= 50)
        return of_sizes, *place_nodes(of_sizes, log_e, jnp.linalg.eigvals(W @ C), 99)

    of_sizes, nodes, is_wide = placed(W.astype(np.float32), C.astype(np.float32))
    assert nodes.is_single.sum() < nodes.counts.sum() < of_sizes.num_upper.sum() < 99
    assert is_wide.sum() >= 2
    # Where one eigenvalue makes f vanish its derivative does not: such a node of a wide circle is computed alone.
    assert (is_wide[nodes.first] & nodes.is_single).any()


def test_nodes_beyond_the_first_few_and_kernels_without_nodes(monkeypatch):
    """Nodes in chunks of two, those beyond the first four behind a condition, and beside a kernel that is zero."""
    rng = np.random.default_rng(5)
    d = 9
    X, skew, g = rng.normal(size=(20, d)) * np.logspace(0, 1, d), rng.normal(size=(d, d)), rng.normal(size=d + 1)
    W, C, wanted = np.eye(d) + skew - skew.T, X.T @ X, np.arange(d + 1) > 0
    log_e = log_esps(W, C)
    nodes, _ = place_nodes(place_circles(log_e, wanted), log_e, jnp.linalg.eigvals(W @ C), 81)
    assert nodes.is_single.sum() > 6

    def slopes():
        def total(W, C):
            poly, eigenvalues = pencil(W, C), jnp.linalg.eigvals(jax.lax.stop_gradient(W @ C))
            log_e = of_eigenvalues(eigenvalues)
            values, _ = log_coefficients(poly, log_e, wanted, d, eigenvalues)
            return jnp.sum(values * g)

        batch = [np.stack([array, array]) for array in (W, C)]
        batch[1][1] = 0
        return jax.jit(jax.value_and_grad(total, (0, 1)))(W, C), jax.jit(jax.vmap(jax.grad(total, (0, 1))))(*batch)

    alone, _ = slopes()
    monkeypatch.setattr(circles, "_FEW_NODES", 4)
    monkeypatch.setattr(circles, "platform", lambda: platforms.platform()._replace(circle_chunk_bytes=4 * 8 * d**2))
    in_chunks, of_batch = slopes()
    for first, second, batch in zip(*map(jax.tree.leaves, (alone[1], in_chunks[1], of_batch)), strict=True):
        np.testing.assert_allclose(second, first, atol=1e-9 * np.abs(first).max())
        np.testing.assert_allclose(batch[0], first, atol=1e-9 * np.abs(first).max())
        np.testing.assert_array_equal(batch[1], 0)
