"""The laws against enumeration of all subsets, for every kernel of the table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import KERNELS, PARTS, TRUE_RANK, N, all_subsets, enumerated_law, inclusion, sizes

from numpyro_ndpp import KNDPP, NDPP, pad_subsets

SUBSETS = {rank: all_subsets(N, 0, rank) for rank in (8, 10)}
PADDED = {rank: pad_subsets(SUBSETS[rank], N, N) for rank in (8, 10)}
SIZE_LIMITS = [(0, 8), (1, 8), (2, 4), (0, 3), (6, 6)]


def law_of(name, **kwargs):
    return NDPP(*PARTS[name], validate_args=False, **kwargs)


def factored(name, k=None, **kwargs):
    """The law by its factors: most kernels of the table then share one shape, and what was compiled for it."""
    law = law_of(name)
    if k is None:
        return NDPP.from_factors(law.X, law.W, validate_args=False, **kwargs)
    return KNDPP.from_factors(law.X, law.W, k, validate_args=False)


@jax.jit
def log_prob(law, values):
    return law.log_prob(values)


@jax.jit
def inclusion_probs(law):
    return law.inclusion_probs()


def expected_probs(name, low, high):
    law = enumerated_law(name, low, high)
    rank = 10 if min(N, law_of(name).rank) == 10 else 8
    return np.array([law.get(subset, 0.0) for subset in SUBSETS[rank]]), PADDED[rank]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("low", "high"), SIZE_LIMITS)
def test_log_prob_sums_to_one_and_equals_enumeration(name, low, high):
    if low > TRUE_RANK[name]:
        return
    law = factored(name, min_size=low, max_size=high if high < 8 else None)
    expected, values = expected_probs(name, low, high if high < 8 else N)
    probs = np.exp(log_prob(law, values))
    assert abs(probs.sum() - 1) < 1e-10
    np.testing.assert_allclose(probs, expected, atol=1e-11)


def check_size(name, k):
    law = factored(name, k)
    probs = np.exp(log_prob(law, pad_subsets(all_subsets(N, k, k), N, k)))
    possible = k <= TRUE_RANK[name] and not (name in ("skew", "skew pairs") and k % 2)
    assert abs(probs.sum() - possible) < 1e-10
    if possible and k > 0:
        np.testing.assert_allclose(inclusion_probs(law), inclusion(enumerated_law(name, k, k)), atol=1e-9)


# Every shape and size is compiled anew: the quick test takes each kernel at the sizes that differ in kind.
@pytest.mark.parametrize("name", KERNELS)
def test_sizes_that_differ_in_kind_sum_to_one(name):
    rank = min(N, law_of(name).rank)
    for k in [0, 1, 2, 3, TRUE_RANK[name]] if rank == 8 else [0, 1, 2]:
        check_size(name, k)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_every_size_sums_to_one(name):
    for k in range(min(N, law_of(name).rank) + 1):
        check_size(name, k)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("low", "high"), SIZE_LIMITS[:3])
def test_inclusion_and_size_equal_enumeration(name, low, high):
    law = factored(name, min_size=low, max_size=high if high < 8 else None)
    exact = enumerated_law(name, low, high if high < 8 else N)
    np.testing.assert_allclose(law.inclusion_probs(), inclusion(exact), atol=1e-10)
    np.testing.assert_allclose(np.exp(law.size_log_prob()), sizes(exact, law.rank + 1), atol=1e-10)
    assert law.size_log_prob().shape == (law.rank + 1,)


def test_symmetric_kernel_is_the_ordinary_dpp():
    V = np.random.default_rng(0).normal(size=(6, 3))
    L = V @ V.T
    law = NDPP(V, np.zeros((6, 0)), np.zeros((0, 0)))
    np.testing.assert_allclose(law.log_normalizer, np.linalg.slogdet(np.eye(6) + L)[1])
    np.testing.assert_allclose(law.inclusion_probs(), np.diag(L @ np.linalg.inv(np.eye(6) + L)))


@pytest.mark.parametrize("name", ["ordinary", "skew pairs and V", "odd d2", "n < d"])
def test_from_factors_is_the_same_law(name):
    law = law_of(name)
    by_factors = NDPP.from_factors(law.X, law.W)
    values = PADDED[8][::17]
    np.testing.assert_allclose(np.exp(by_factors.log_prob(values)), np.exp(law.log_prob(values)), atol=1e-13)
    np.testing.assert_allclose(by_factors.inclusion_probs(), law.inclusion_probs(), atol=1e-13)
    fixed, fixed_factored = KNDPP(*PARTS[name], 4), KNDPP.from_factors(law.X, law.W, 4)
    np.testing.assert_allclose(fixed_factored.log_normalizer, fixed.log_normalizer)


def test_values_of_any_width():
    law = law_of("ordinary")
    narrow = law.log_prob(jnp.array([2, 5]))
    wide = law.log_prob(jnp.array([2, 5] + [N] * 30))
    np.testing.assert_allclose(narrow, wide, rtol=1e-14)
    np.testing.assert_allclose(law.log_prob(jnp.zeros((3, 0), int)), -law.log_normalizer)  # the empty basket


def test_sizes_zero_and_one_and_true_rank():
    parts = PARTS["odd d2"]
    assert KNDPP(*parts, 0).log_prob(jnp.zeros(0, int)) == 0
    assert KNDPP(*parts, 0).event_shape == (0,)
    np.testing.assert_allclose(KNDPP(*parts, 0).inclusion_probs(), 0)
    np.testing.assert_allclose(KNDPP(*parts, 1).inclusion_probs().sum(), 1)
    np.testing.assert_allclose(KNDPP(*parts, 7).inclusion_probs().sum(), 7)
    assert KNDPP(*parts, 8).log_normalizer == -jnp.inf
    assert KNDPP(*parts, 8, validate_args=False).log_prob(jnp.arange(8)) == -jnp.inf


@pytest.mark.parametrize("k", [None, 3])
def test_batch_of_kernels_equals_one_by_one(k):
    rng = np.random.default_rng(1)
    V, B, D = rng.normal(size=(3, 1, 6, 2)), rng.normal(size=(2, 6, 3)), rng.normal(size=(3, 3))

    def make(V, B, D):
        return NDPP(V, B, D) if k is None else KNDPP(V, B, D, k)

    batch = make(V, B, D)
    assert batch.batch_shape == (3, 2)
    values = pad_subsets([[0, 1, 4], [2, 3, 5], [1, 2, 3], [0, 2, 4]], 6, 5 if k is None else k)
    shared = batch.log_prob(values[:, None, None])
    paired = batch.log_prob(jnp.broadcast_to(values[:2], (7, 3, 2, values.shape[-1])))
    assert shared.shape == (4, 3, 2)
    assert paired.shape == (7, 3, 2)
    draws = batch.sample(jax.random.key(0), (4,))
    assert draws.shape == (4, 3, 2, *batch.event_shape)
    for i in range(3):
        for j in range(2):
            one = make(V[i, 0], B[j], D)
            np.testing.assert_allclose(shared[:, i, j], one.log_prob(values), rtol=1e-12)
            np.testing.assert_allclose(paired[:, i, j], one.log_prob(values[j]), rtol=1e-12)
            np.testing.assert_allclose(batch.log_normalizer[i, j], one.log_normalizer, rtol=1e-12)
            np.testing.assert_allclose(batch.inclusion_probs()[i, j], one.inclusion_probs(), rtol=1e-10)
            np.testing.assert_allclose(batch.size_log_prob()[i, j], one.size_log_prob(), rtol=1e-10)
            assert (batch.mode[i, j] == one.mode).all()


@pytest.mark.parametrize(("low", "high"), [(0, None), (1, None), (2, 5)])
def test_with_expected_size(low, high):
    law = law_of("ordinary", min_size=low, max_size=high).with_expected_size(3.25)
    np.testing.assert_allclose(law.inclusion_probs().sum(), 3.25, rtol=1e-10)
    assert (law.min_size, law.max_size) == (low, high or 8)
    # A change of scale leaves the law given the size alone.
    fixed = KNDPP(law.V, law.B, law.D, 3)
    np.testing.assert_allclose(fixed.inclusion_probs(), KNDPP(*PARTS["ordinary"], 3).inclusion_probs(), rtol=1e-10)


def test_with_expected_size_of_the_others():
    law = KNDPP(*PARTS["ordinary"], 3).with_expected_size(2.5)
    assert isinstance(law, NDPP)
    np.testing.assert_allclose(law.inclusion_probs().sum(), 2.5)
    ordinary = law_of("ordinary")
    np.testing.assert_allclose(
        NDPP.from_factors(ordinary.X, ordinary.W).with_expected_size(2.5).inclusion_probs(), law.inclusion_probs()
    )
    batch = NDPP(np.stack([PARTS["ordinary"][0]] * 2), *PARTS["ordinary"][1:]).with_expected_size(jnp.array([1.0, 2.5]))
    np.testing.assert_allclose(batch.inclusion_probs().sum(-1), [1.0, 2.5])


def test_with_expected_size_is_differentiable():
    V, B, D = map(jnp.asarray, PARTS["ordinary"])

    def log_scale(V, m):
        return jnp.log(NDPP(V, B, D, validate_args=False).with_expected_size(m).V[0, 0] / V[0, 0])

    # At a fixed kernel d m / d log r is the variance of the size, so d(log r / 2)/dm is half its inverse.
    law = NDPP(V, B, D).with_expected_size(2.5)
    p = np.exp(law.size_log_prob())
    variance = p @ np.arange(9) ** 2 - (p @ np.arange(9)) ** 2
    np.testing.assert_allclose(jax.grad(log_scale, 1)(V, 2.5), 0.5 / variance, rtol=1e-8)
    direction = np.random.default_rng(0).normal(size=V.shape)
    step = 1e-5
    numeric = (log_scale(V + step * direction, 2.5) - log_scale(V - step * direction, 2.5)) / (2 * step)
    np.testing.assert_allclose((jax.grad(log_scale)(V, 2.5) * direction).sum(), numeric, rtol=1e-6)


def test_multihot_is_the_same_law():
    law = law_of("ordinary", min_size=1)
    view = law.multihot()
    values = PADDED[8][::11]
    masks = np.zeros((len(values), N), int)
    for mask, subset in zip(masks, SUBSETS[8][::11], strict=True):
        mask[list(subset)] = 1
    np.testing.assert_allclose(view.log_prob(masks), law.log_prob(values), rtol=1e-12)
    np.testing.assert_allclose(view.mean, law.inclusion_probs())
    np.testing.assert_allclose(view.variance, view.mean * (1 - view.mean))
    assert view.log_prob(np.ones(N, int)) == -jnp.inf  # larger than the rank
    draws = view.sample(jax.random.key(0), (50,))
    assert draws.shape == (50, N)
    assert draws.dtype == jnp.int32
    assert (draws.sum(-1) >= 1).all()
    assert view.mode.sum() == (law.mode < N).sum()


def test_float32_agrees_with_float64():
    values = PADDED[8]
    for name in ["ordinary", "symmetric", "d1 < d2", "zero rows", "scaled 1e6"]:
        single = NDPP(*(np.float32(part) for part in PARTS[name]))
        assert single.log_normalizer.dtype == jnp.float32
        probs = np.exp(np.asarray(log_prob(single, values), np.float64))
        np.testing.assert_allclose(probs, np.exp(log_prob(law_of(name), values)), atol=1e-5)
        np.testing.assert_allclose(single.inclusion_probs(), law_of(name).inclusion_probs(), atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_values_in_types_too_narrow_for_the_number_of_items(dtype):
    """JAX writes a number that is compared with an array in the array's type: 300 would be 44."""
    rng, n = np.random.default_rng(0), 40_000 if dtype == np.int16 else 300
    parts = rng.normal(size=(n, 3)), rng.normal(size=(n, 2)), rng.normal(size=(2, 2))
    laws = [KNDPP(*parts, k, validate_args=False) for k in (1, 2)]
    for law in (*laws, NDPP(*parts, validate_args=False)):
        for items in ([3, 44], [3, 100]):
            value = jnp.array(items, dtype)
            assert law.support(value) == law.support(jnp.array(items))
            np.testing.assert_array_equal(law.log_prob(value), law.log_prob(jnp.array(items)))


def test_variance_is_not_negative_where_an_item_is_certain():
    """In float32 some of the sixty probabilities are above one by a rounding."""
    V = jax.random.normal(jax.random.key(0), (10, 6, 6), jnp.float32)
    law = KNDPP(V, jnp.zeros((6, 1), jnp.float32), jnp.zeros((1, 1), jnp.float32), 6)
    assert (law.multihot().variance >= 0).all()


def test_masks_of_unsigned_integers():
    """What is no mask is impossible, also where -1 cannot be written."""
    law = NDPP(jnp.eye(3), jnp.zeros((3, 1)), jnp.zeros((1, 1)), validate_args=False).multihot()
    values = law.log_prob(jnp.array([[1, 0, 1], [2, 1, 1]], jnp.uint8))
    np.testing.assert_allclose(values, [-3 * np.log(2), -np.inf])
