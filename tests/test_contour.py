"""The contour sampler: its conditional probabilities multiplied out, its draws, and the checks that it makes itself.

Chi-square and Kolmogorov-Smirnov tests are at a false-alarm rate of 1e-4 each, with fixed keys.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chi_square import chi_square_p_value
from kernels import HARDEST, KERNELS, PARTS, SKEW, TRUE_RANK, N, dense_kernel, enumerated_law, factors
from scipy import stats

from numpyro_ndpp import KNDPP, NDPP, Contour, to_multihot
from numpyro_ndpp.kernel import Kernel, quadratic_forms
from numpyro_ndpp.samplers import circle
from numpyro_ndpp.samplers import factors as factors_module
from numpyro_ndpp.target import Target

NUM_DRAWS = 2**13


def factored(name, k, dtype=np.float64):
    """The law of a table kernel by its factors, so that all kernels of one rank share what is compiled."""
    return KNDPP.from_factors(*factors(name, dtype), k, sampler=Contour())


def draw_masks(law, key):
    return np.asarray(to_multihot(law.sample(key, (NUM_DRAWS,)), N))


def random_kernel(n, d, dtype=np.float64, cond=None):
    """A kernel as in section 6.1 of Han et al. (2022), or one with cond(XᵀX) as given."""
    rng = np.random.default_rng(0)
    X, D = rng.normal(scale=(2 / d) ** 0.25, size=(n, d)), rng.normal(size=(d // 2, d // 2))
    if cond is not None:
        left, _, right = np.linalg.svd(X, full_matrices=False)
        X = left * np.logspace(0, -np.log10(cond) / 2, d) @ right * np.sqrt(n / d)
    X, D = X.astype(dtype), D.astype(dtype)
    return X[:, : d // 2], X[:, d // 2 :], D


# --- The law ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "num_stages"), [(1.0, 2), pytest.param(5.0, 1, marks=pytest.mark.slow)])
def test_conditional_probabilities_multiply_to_the_law(length, num_stages, monkeypatch):
    """Along every order of every subset: det L_S / e_k / k!, by enumeration."""
    monkeypatch.setitem(circle.STAGE_LENGTH, "float64", length)
    n, d, k = 7, 6, 3
    parts = random_kernel(n, d)
    law = KNDPP(*parts, k=k)
    state = jax.jit(lambda X, W: Contour().prepare(Target.of(Kernel.of(X, W), k, k)))(law.X, law.W)
    assert len(state.schedule) == num_stages
    orders = np.array(list(itertools.permutations(range(n), k)))

    def probability(order):
        product = 1.0
        for number, (high, low) in enumerate(state.schedule):
            stage = jax.tree.map(lambda table, number=number: table[number], state.stages)
            factors = factors_module.enter(state.tree, stage, k, order, 0, jnp.asarray(k - high))
            for slot in range(k - high, k - low):
                Q, _ = factors_module.query(stage, factors, 0, slot)
                masses = quadratic_forms(state.tree.X, Q)
                product *= masses[order[slot]] / jnp.sum(masses)
                factors = factors_module.join(stage, factors, state.tree.X[order[slot]], 0, jnp.asarray(slot))
        return product

    products = np.asarray(jax.jit(jax.vmap(probability))(orders))
    L = dense_kernel(*parts)
    minors = np.array([np.linalg.det(L[np.ix_(order, order)]) for order in orders])
    np.testing.assert_allclose(products, minors / minors.sum(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(products.sum(), 1.0, atol=1e-12)


def possible_sizes(name):
    """0 to 4 and the true rank, but for the odd sizes of a kernel that is skew."""
    sizes = {0, 1, 2, 3, 4, TRUE_RANK[name]}
    return sorted(size for size in sizes if name not in SKEW or size % 2 == 0)


@pytest.mark.parametrize(
    ("name", "k"),
    [
        pytest.param(name, k, marks=[] if name in HARDEST and k == 4 else pytest.mark.slow)
        for name in KERNELS
        for k in possible_sizes(name)
    ],
)
def test_draws_of_one_size_follow_the_law(name, k):
    draws = draw_masks(factored(name, k), jax.random.key(1))
    assert (draws.sum(axis=1) == k).all()
    assert chi_square_p_value(enumerated_law(name, k, k), draws) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "k"),
    [
        ("ordinary", 8),
        ("symmetric", 3),
        ("skew", 4),
        ("near skew", 4),
        ("skew pairs", 6),
        ("skew pairs and V", 3),
        ("repeated rows", 5),
        ("scaled 1e6", 3),
        ("cond(C) 1e6", 4),
    ],
)
def test_float32_draws_follow_the_law(name, k):
    law = factored(name, k, np.float32)
    draws = draw_masks(law, jax.random.key(4))
    assert chi_square_p_value(enumerated_law(name, k, k), draws) > 1e-4


@pytest.mark.slow
def test_inclusion_frequencies_beyond_enumeration():
    n, d, k = 2000, 40, 10
    law = KNDPP(*random_kernel(n, d), k=k, sampler=Contour())
    draws = np.asarray(law.sample(jax.random.key(6), (10_000,)))
    counts = np.bincount(draws.ravel(), minlength=n)
    probs = np.asarray(law.inclusion_probs())
    scores = (counts - len(draws) * probs) / np.sqrt(len(draws) * probs * (1 - probs))
    # A count of ten is not normal yet; a uniform number within the step of its distribution function makes it exact.
    uniform = np.random.default_rng(0).uniform(size=n)
    below, at = stats.binom.cdf(counts - 1, len(draws), probs), stats.binom.pmf(counts, len(draws), probs)
    assert stats.kstest(stats.norm.ppf(below + uniform * at), "norm").pvalue > 1e-4
    assert abs(scores).max() < 6


# --- The checks that come with a draw --------------------------------------------------------------------------------


sample_with_info = jax.jit(Contour().sample_with_info)


def check_masses(n, d, k, dtype, cond, tolerance, num_draws=20):
    law = KNDPP(*random_kernel(n, d, dtype, cond), k=k, sampler=Contour())
    subsets, info = sample_with_info(law.prepared_state(), jax.random.split(jax.random.key(7), num_draws))
    assert (jnp.diff(subsets, axis=1) > 0).all()
    assert (subsets >= 0).all()
    assert (subsets < n).all()
    # Sums of which rho is left have lost as many digits.
    assert (jnp.abs(info.mass_error) * info.rho).max() < tolerance
    assert (info.rho > 0).all()
    assert (info.rho <= 1 + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("cond", [None, 1e6])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-8), (np.float32, 1e-4)])
def test_mass_is_the_number_of_missing_items(dtype, tolerance, cond):
    check_masses(500, 40, 30, dtype, cond, tolerance)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("cond", [None, 1e6])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-8), (np.float32, 1e-4)])
@pytest.mark.parametrize(("d", "k"), [(200, 50), (100, 90)])
def test_mass_is_the_number_of_missing_items_at_size(d, k, dtype, tolerance, cond):
    check_masses(5000, d, k, dtype, cond, tolerance)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("d", "k"), [(200, 50), (100, 90)])
def test_no_item_is_repeated(d, k):
    law = KNDPP(*random_kernel(5000, d, np.float32), k=k, sampler=Contour())
    draws = law.sample(jax.random.key(8), (1000,))
    assert (jnp.diff(draws, axis=1) > 0).all()
    assert (draws < 5000).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_schedule_and_radii(dtype):
    law = KNDPP(*random_kernel(100, 16, dtype), k=12)
    state = jax.jit(Contour().prepare)(law.target)
    schedule = state.schedule
    assert schedule[0][0] == 12
    assert schedule[-1][1] == 0
    assert all(low == high for (_, low), (high, _) in itertools.pairwise(schedule))
    assert len(schedule) == {np.float64: 1, np.float32: 2}[dtype]
    assert (jnp.diff(state.radii) < 0).all()  # the more items are fixed, the fewer may come by chance


def test_radii_in_float32_are_those_in_float64(monkeypatch):
    """Of sizes near the rank too, whose weights are far below those of others, where cond(C) = 10⁶."""
    monkeypatch.setitem(circle.STAGE_LENGTH, "float64", circle.STAGE_LENGTH["float32"])
    radii = []
    for dtype in (np.float32, np.float64):
        law = KNDPP(*random_kernel(100, 40, dtype, 1e6), k=37)
        radii.append(jax.jit(Contour().prepare)(law.target).radii)
    np.testing.assert_allclose(*np.log(radii), atol=0.02)


@pytest.mark.slow
def test_one_radius_alone_cancels(monkeypatch):
    """Without smaller circles the sum loses most of its digits: the reason for stages."""
    law = KNDPP(*random_kernel(100, 60), k=45)
    keys = jax.random.split(jax.random.key(9), 5)

    def worst(length):
        monkeypatch.setitem(circle.STAGE_LENGTH, "float64", length)
        state = jax.jit(lambda X, W: Contour().prepare(Target.of(Kernel.of(X, W), 45, 45)))(law.X, law.W)
        _, info = sample_with_info(state, keys)
        return float(info.rho.min()), float(jnp.abs(info.mass_error).max())

    (rho, error), (rho_alone, error_alone) = worst(5.0), worst(100.0)
    assert error < 1e-10
    assert rho_alone < 0.1 * rho
    assert error_alone > 10 * error


@pytest.mark.parametrize("name", KERNELS)
def test_whitened_features_give_the_same_kernel(name):
    law = NDPP(*(np.asarray(part) for part in PARTS[name]))
    X, W, _ = law.kernel.whitened()
    L = dense_kernel(*PARTS[name])
    np.testing.assert_allclose(X @ W @ X.T, L, atol=1e-9 * np.abs(L).max())
    values = np.linalg.eigvalsh(X.T @ X)
    rank = np.linalg.matrix_rank(np.asarray(law.X))
    np.testing.assert_allclose(values[-rank:], 1.0, atol=1e-6)


# --- Bad input, batches, memory --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "k"), [("skew", 3), ("odd d2", 8)])
def test_impossible_size_is_an_error_and_minus_one_under_jit(name, k):
    law = factored(name, k)
    with pytest.raises(ValueError, match=f"no subset of {k} items could be drawn"):
        law.sample(jax.random.key(0))
    draws = jax.jit(lambda key: law.sample(key, (4,)))(jax.random.key(0))
    assert (draws == -1).all()
    assert (jax.jit(law.log_prob)(draws) == -jnp.inf).all()


def test_nothing_but_empty_subsets():
    assert factored("ordinary", 0).sample(jax.random.key(0), (3,)).shape == (3, 0)


@pytest.mark.slow
def test_batch_of_kernels():
    laws = [factored(name, 3) for name in ("ordinary", "zero rows")]
    batch = KNDPP.from_factors(
        jnp.stack([law.X for law in laws]), jnp.stack([law.W for law in laws]), 3, sampler=Contour()
    )
    draws = batch.prepare().sample(jax.random.key(0), (2000,))
    assert draws.shape == (2000, 2, 3)
    for number, name in enumerate(("ordinary", "zero rows")):
        masks = np.asarray(to_multihot(draws[:, number], N))
        assert chi_square_p_value(enumerated_law(name, 3, 3), masks) > 1e-4


def test_preprocessing_takes_little_memory():
    """At d = 200 the circles of all stages take 0.2 GB for fifty items, in float64."""
    n, d, k = 5000, 200, 50
    X, W = (jax.ShapeDtypeStruct(shape, np.float64) for shape in [(n, d), (d, d)])
    state = jax.eval_shape(lambda X, W: Contour().prepare(Target.of(Kernel.of(X, W), k, k)), X, W)
    assert sum(array.size * array.dtype.itemsize for array in jax.tree.leaves((state.stages, state.C))) < 2e8


def test_keys_of_both_kinds_and_other_types():
    law = factored("ordinary", 4)
    draws = jax.jit(Contour().sample)(law.prepared_state(), jax.random.split(jax.random.PRNGKey(0), 5))
    assert (law.log_prob(draws) > -jnp.inf).all()
    with pytest.raises(ValueError, match="Contour needs a kernel in float32 or float64, got float16"):
        Contour().prepare(Target.of(Kernel.of(law.X.astype(np.float16), law.W.astype(np.float16)), 2, 2))


def test_float32_stays_float32():
    state = factored("ordinary", 4, np.float32).prepared_state()
    assert {array.dtype for array in jax.tree.leaves(state.stages[:5])} == {np.dtype(np.float32)}
