"""The laws against enumeration of all subsets, for every kernel of the table."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import (
    KERNELS,
    PARTS,
    SKEW,
    TRUE_RANK,
    N,
    all_subsets,
    enumerated_law,
    factored,
    inclusion,
    sizes,
)

from numpyro_ndpp import KNDPP, NDPP, Cholesky, SizedNDPP, UpDown, pad_subsets

SUBSETS = {rank: all_subsets(N, 0, rank) for rank in (8, 10)}
PADDED = {rank: np.asarray(pad_subsets(SUBSETS[rank], N, N)) for rank in (8, 10)}
SIZE_LIMITS = [(0, 8), (1, 8), (2, 4), (0, 3), (6, 6)]


@jax.jit
def members(law, values):
    """What a law tells, in one program: for every kernel of a shape the same."""
    return law.log_prob(values), law.inclusion_probs(), law.size_log_prob()


@jax.jit
def log_prob(law, values):
    return law.log_prob(values)


@jax.jit
def of_fixed_size(law, values):
    return law.log_prob(values), law.inclusion_probs(), law.log_normalizer


@cache
def evaluated_size(name, k):
    """The same three for the law of k items, with all its subsets."""
    return tuple(map(np.asarray, of_fixed_size(factored(name, k), np.asarray(pad_subsets(all_subsets(N, k, k), N, k)))))


@cache
def evaluated(name, low, high):
    """The subsets, and their probabilities, the items' and the sizes' under the law of low to high items."""
    rank = 10 if name == "n < d" else 8
    law = factored(name, min_size=low, max_size=high if high < 8 else None)
    values, *rest = members(law, PADDED[rank])
    return SUBSETS[rank], np.exp(values), np.asarray(rest[0]), np.exp(rest[1])


def with_limits(limits):
    """Every kernel with every pair of limits; slow are (0, 3), and the kernel of another shape with any limits."""
    return [
        pytest.param(name, *pair, marks=pytest.mark.slow if pair == (0, 3) or (name == "n < d" and pair[0]) else [])
        for pair in limits
        for name in KERNELS
    ]


@pytest.mark.parametrize(("name", "low", "high"), with_limits(SIZE_LIMITS))
def test_log_prob_sums_to_one_and_equals_enumeration(name, low, high):
    if low > TRUE_RANK[name]:
        return
    subsets, probs, _, _ = evaluated(name, low, high)
    law = enumerated_law(name, low, high if high < 8 else N)
    assert abs(probs.sum() - 1) < 1e-10
    np.testing.assert_allclose(probs, [law.get(subset, 0.0) for subset in subsets], atol=1e-11)


def check_size(name, k):
    log_probs, included, _ = evaluated_size(name, k)
    possible = k <= TRUE_RANK[name] and not (name in SKEW and k % 2)
    assert abs(np.exp(log_probs).sum() - possible) < 1e-10
    if possible and k > 0:
        np.testing.assert_allclose(included, inclusion(enumerated_law(name, k, k)), atol=1e-9)


# Every size is compiled anew: the quick test takes each kernel at the sizes that differ in kind.
@pytest.mark.parametrize("name", KERNELS)
def test_sizes_that_differ_in_kind_sum_to_one(name):
    for k in [0, 1, 3, 7, 8] if name != "n < d" else [0, 1]:
        check_size(name, k)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_every_size_sums_to_one(name):
    for k in range(min(N, factored(name).rank) + 1):
        check_size(name, k)


@pytest.mark.parametrize(("name", "low", "high"), with_limits(SIZE_LIMITS[:3]))
def test_inclusion_and_size_equal_enumeration(name, low, high):
    _, _, included, size_probs = evaluated(name, low, high)
    exact = enumerated_law(name, low, high if high < 8 else N)
    rank = len(factored(name).W)
    np.testing.assert_allclose(included, inclusion(exact), atol=1e-10)
    np.testing.assert_allclose(size_probs, sizes(exact, rank + 1), atol=1e-10)
    assert size_probs.shape == (rank + 1,)


def test_symmetric_kernel_is_the_ordinary_dpp():
    V = np.random.default_rng(0).normal(size=(6, 3))
    L = V @ V.T
    law = NDPP(V, np.zeros((6, 0)), np.zeros((0, 0)))
    np.testing.assert_allclose(law.log_normalizer, np.linalg.slogdet(np.eye(6) + L)[1])
    np.testing.assert_allclose(law.inclusion_probs(), np.diag(L @ np.linalg.inv(np.eye(6) + L)))


@pytest.mark.parametrize(
    "name",
    ["odd d2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("skew pairs and V", "ordinary", "n < d"))],
)
def test_from_factors_is_the_same_law(name):
    law = NDPP(*PARTS[name])
    np.testing.assert_array_equal(law.X, factored(name).X)
    np.testing.assert_array_equal(law.W, factored(name).W)
    subsets, probs, included, size_probs = evaluated(name, 0, 8)
    values = members(law, PADDED[max(map(len, subsets))])
    for by_parts, by_factors in zip(values, (probs, included, size_probs), strict=True):
        by_parts = by_parts if by_factors is included else np.exp(by_parts)
        np.testing.assert_allclose(by_parts, by_factors, atol=1e-13)
    np.testing.assert_allclose(KNDPP(*PARTS[name], 3).log_normalizer, factored(name, 3).log_normalizer)


def test_values_of_any_width():
    law = factored("ordinary")
    narrow = law.log_prob(jnp.array([2, 5]))
    wide = law.log_prob(jnp.array([2, 5] + [N] * 30))
    np.testing.assert_allclose(narrow, wide, rtol=1e-14)
    np.testing.assert_allclose(law.log_prob(jnp.zeros((3, 0), int)), -law.log_normalizer)  # the empty basket


def test_sizes_zero_and_one_and_true_rank():
    name = "odd d2"
    log_probs, included, _ = evaluated_size(name, 0)
    assert log_probs == 0
    assert factored(name, 0).event_shape == (0,)
    np.testing.assert_allclose(included, 0)
    np.testing.assert_allclose(evaluated_size(name, 1)[1].sum(), 1)
    np.testing.assert_allclose(evaluated_size(name, 7)[1].sum(), 7)
    log_probs, _, log_normalizer = evaluated_size(name, 8)
    assert log_normalizer == -np.inf
    assert (log_probs == -np.inf).all()


def parts_of_a_batch():
    rng = np.random.default_rng(1)
    return rng.normal(size=(3, 1, 6, 2)), rng.normal(size=(2, 6, 3)), rng.normal(size=(3, 3))


@pytest.mark.parametrize(
    ("k", "sampler"),
    [
        (None, Cholesky()),
        pytest.param(3, Cholesky(), marks=pytest.mark.slow),
        pytest.param(None, UpDown(), marks=pytest.mark.slow),
        pytest.param(3, UpDown(), marks=pytest.mark.slow),
    ],
)
def test_draws_of_a_batch_of_kernels(k, sampler):
    parts = parts_of_a_batch()
    batch = NDPP(*parts, sampler=sampler) if k is None else KNDPP(*parts, k, sampler=sampler)
    draws = batch.sample(jax.random.key(0), (4,))
    assert draws.shape == (4, 3, 2, *batch.event_shape)


@pytest.mark.parametrize("k", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_batch_of_kernels_equals_one_by_one(k):
    V, B, D = parts_of_a_batch()

    def make(V, B, D):
        return NDPP(V, B, D) if k is None else KNDPP(V, B, D, k)

    @jax.jit
    def together(law, values):
        return law.log_prob(values), law.log_normalizer, law.inclusion_probs(), law.size_log_prob(), law.mode

    batch = make(V, B, D)
    assert batch.batch_shape == (3, 2)
    values = np.asarray(pad_subsets([[0, 1, 4], [2, 3, 5], [1, 2, 3], [0, 2, 4]], 6, 5 if k is None else k))
    shared, log_normalizer, included, sizes, mode = map(np.asarray, together(batch, values[:, None, None]))
    paired = np.asarray(log_prob(batch, np.broadcast_to(values[:2], (7, 3, 2, values.shape[-1]))))
    assert shared.shape == (4, 3, 2)
    assert paired.shape == (7, 3, 2)
    for i in range(3):
        for j in range(2):
            one = map(np.asarray, together(make(V[i, 0], B[j], D), values))
            log_probs, one_normalizer, one_included, one_sizes, one_mode = one
            np.testing.assert_allclose(shared[:, i, j], log_probs, rtol=1e-12)
            np.testing.assert_allclose(paired[:, i, j], np.full(7, log_probs[j]), rtol=1e-12)
            np.testing.assert_allclose(log_normalizer[i, j], one_normalizer, rtol=1e-12)
            np.testing.assert_allclose(included[i, j], one_included, rtol=1e-10)
            np.testing.assert_allclose(sizes[i, j], one_sizes, rtol=1e-10)
            assert (mode[i, j] == one_mode).all()


@pytest.mark.parametrize(("low", "high"), [(0, None), pytest.param(1, None, marks=pytest.mark.slow), (2, 4)])
def test_with_expected_size(low, high):
    law = factored("ordinary", min_size=low, max_size=high).with_expected_size(3.25)
    np.testing.assert_allclose(np.asarray(members(law, PADDED[8])[1]).sum(), 3.25, rtol=1e-10)
    assert (law.min_size, law.max_size) == (low, high or 8)
    # A change of scale leaves the law given the size alone.
    fixed = KNDPP.from_factors(law.X, law.W, 3)
    included = of_fixed_size(fixed, np.asarray(pad_subsets(all_subsets(N, 3, 3), N)))[1]
    np.testing.assert_allclose(included, evaluated_size("ordinary", 3)[1], rtol=1e-10)


@jax.jit
def inclusion_probs(law):
    return law.inclusion_probs()


def test_with_expected_size_of_the_others():
    law = KNDPP(*PARTS["ordinary"], 3).with_expected_size(2.5)
    assert isinstance(law, NDPP)
    included = np.asarray(inclusion_probs(law))
    np.testing.assert_allclose(included.sum(), 2.5)
    by_factors = factored("ordinary").with_expected_size(2.5)
    np.testing.assert_allclose(members(by_factors, PADDED[8])[1], included)
    batch = NDPP(np.stack([PARTS["ordinary"][0]] * 2), *PARTS["ordinary"][1:]).with_expected_size(jnp.array([1.0, 2.5]))
    np.testing.assert_allclose(np.asarray(inclusion_probs(batch)).sum(-1), [1.0, 2.5])


def test_with_expected_size_is_differentiable():
    V, B, D = PARTS["ordinary"]

    @jax.jit
    def log_scale(V, m):
        def of_first(V, m):
            return jnp.log(NDPP(V, B, D, validate_args=False).with_expected_size(m).V[0, 0] / V[0, 0])

        return jax.value_and_grad(of_first, argnums=(0, 1))(V, m)

    # At a fixed kernel d m / d log r is the variance of the size, so d(log r / 2)/dm is half its inverse.
    p = np.exp(members(factored("ordinary").with_expected_size(2.5), PADDED[8])[2])
    variance = p @ np.arange(9) ** 2 - (p @ np.arange(9)) ** 2
    _, (by_kernel, by_size) = log_scale(V, 2.5)
    np.testing.assert_allclose(by_size, 0.5 / variance, rtol=1e-8)
    direction = np.random.default_rng(0).normal(size=V.shape)
    step = 1e-5
    ends = [float(log_scale(V + by * direction, 2.5)[0]) for by in (step, -step)]
    numeric = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose((np.asarray(by_kernel) * direction).sum(), numeric, rtol=1e-6)


@pytest.mark.parametrize("sampler", [Cholesky(), pytest.param(UpDown(), marks=pytest.mark.slow)])
def test_draws_of_multihot(sampler):
    draws = np.asarray(factored("ordinary", min_size=1, sampler=sampler).multihot().sample(jax.random.key(0), (50,)))
    assert draws.shape == (50, N)
    assert draws.dtype == np.int32
    assert (draws.sum(-1) >= 1).all()


def test_multihot_is_the_same_law():
    law = factored("ordinary", min_size=1)
    view = law.multihot()

    @jax.jit
    def of_view(view, masks):
        return view.log_prob(masks), view.mean, view.variance, view.mode, view.base_dist.mode

    masks = np.zeros((len(SUBSETS[8]) + 1, N), int)
    for mask, subset in zip(masks, SUBSETS[8], strict=False):
        mask[list(subset)] = 1
    masks[-1] = 1
    log_probs, mean, variance, mode, items = map(np.asarray, of_view(view, masks))
    expected, included, _ = members(law, PADDED[8])
    np.testing.assert_allclose(log_probs[:-1], expected, rtol=1e-12)
    assert log_probs[-1] == -np.inf  # larger than the rank
    np.testing.assert_allclose(mean, included)
    np.testing.assert_allclose(variance, mean * (1 - mean))
    assert mode.sum() == (items < N).sum()


def test_float32_agrees_with_float64():
    for name in ["ordinary", "symmetric", "d1 < d2", "zero rows", "scaled 1e6"]:
        single = factored(name, dtype=np.float32)
        assert single.log_normalizer.dtype == jnp.float32
        log_probs, included, _ = members(single, PADDED[8])
        _, expected, expected_inclusion, _ = evaluated(name, 0, 8)
        np.testing.assert_allclose(np.exp(np.asarray(log_probs, np.float64)), expected, atol=1e-5)
        np.testing.assert_allclose(included, expected_inclusion, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [np.int8, *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in (np.uint8, np.int16))]
)
def test_values_in_types_too_narrow_for_the_number_of_items(dtype):
    """JAX writes a number that is compared with an array in the array's type: 300 would be 44."""
    rng, n = np.random.default_rng(0), 40_000 if dtype == np.int16 else 300
    parts = rng.normal(size=(n, 3)), rng.normal(size=(n, 2)), rng.normal(size=(2, 2))
    laws = [KNDPP(*parts, k, validate_args=False) for k in (1, 2)]
    for law in (*laws, NDPP(*parts, validate_args=False)):
        items = np.array([[3, 44], [3, 100]])
        value = jnp.asarray(items.astype(dtype))
        np.testing.assert_array_equal(law.support(value), law.support(jnp.asarray(items)))
        np.testing.assert_array_equal(law.log_prob(value), law.log_prob(jnp.asarray(items)))


def test_variance_is_not_negative_where_an_item_is_certain():
    """In float32 some of the sixty probabilities are above one by a rounding."""
    V = jax.random.normal(jax.random.key(0), (10, 6, 6), jnp.float32)
    law = KNDPP(V, jnp.zeros((6, 1), jnp.float32), jnp.zeros((1, 1), jnp.float32), 6)
    assert (np.asarray(jax.jit(lambda law: law.multihot().variance)(law)) >= 0).all()


def test_masks_of_unsigned_integers():
    """What is no mask is impossible, also where -1 cannot be written."""
    law = NDPP(jnp.eye(3), jnp.zeros((3, 1)), jnp.zeros((1, 1)), validate_args=False).multihot()
    values = law.log_prob(jnp.array([[1, 0, 1], [2, 1, 1]], jnp.uint8))
    np.testing.assert_allclose(values, [-3 * np.log(2), -np.inf])


@pytest.mark.parametrize(
    "law",
    [
        lambda *parts: NDPP(*parts, validate_args=False),
        lambda *parts: NDPP(*parts, min_size=2, max_size=4, validate_args=False),
        pytest.param(lambda *parts: SizedNDPP(*parts, np.zeros(5), validate_args=False), marks=pytest.mark.slow),
    ],
    ids=["NDPP", "limits", "SizedNDPP"],
)
def test_a_kernel_with_nan_gives_nan(law):
    V, B, D = (np.array(part) for part in PARTS["ordinary"])
    V[4, 0] = np.nan
    law = law(V, B, D)
    items = jnp.array([1, 2])
    members = [law.log_normalizer, law.log_prob(items), law.size_log_prob(), law.inclusion_probs()]
    members += [law.marginal_log_prob(items), law.next_item_log_prob(items), law.next_item_log_prob(items[:0])]
    assert all(np.isnan(member).all() for member in members)
