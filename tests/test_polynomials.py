"""e_k against exact integer arithmetic, and where it is exactly zero."""

import zlib
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flint import arb, ctx, fmpz_mat
from kernels import KERNELS, TRUE_RANK, enumerated_minors, factors

from numpyro_ndpp import normalizer, size_law, size_scales
from numpyro_ndpp.kernel import gram

D = 200
SIZES = [1, 2, 20, 100, 199, 200]
QUICK_SIZES = [1, 100, 200]
CONDS = [1, 1e6]
# log e_0 .. e_200 of the kernels below, one column for each of CONDS.
STORED = Path(__file__).with_name("exact_log_esps.txt")
CHECKSUM = {1: 552720707, 1e6: 3175689301}


def integer_kernel(cond):
    """X (400, 200) and W, times 2²² and 2⁸: integers."""
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.normal(size=(2 * D, D)))[0]
    right = np.linalg.qr(rng.normal(size=(D, D)))[0]
    X = np.round((left * np.logspace(0, -np.log10(cond) / 2, D)) @ right.T * 2**22)
    half = np.round(rng.normal(size=(D // 2, D // 2)) * 2**8)
    W = np.zeros((D, D))
    W[: D // 2, : D // 2] = 2**8 * np.eye(D // 2)
    W[D // 2 :, D // 2 :] = half - half.T
    return X, W


@cache
def exact_case(cond):
    """X and W of short binary fractions, and log e_0 .. e_200 of X W Xᵀ by exact integer arithmetic."""
    X, W = integer_kernel(cond)
    assert zlib.crc32(X.astype(np.int64).tobytes()) == CHECKSUM[cond], "not the kernel of the stored numbers"
    return X / 2**22, W / 2**8, np.loadtxt(STORED)[:, CONDS.index(cond)]


@pytest.mark.slow
@pytest.mark.parametrize("cond", CONDS)
def test_stored_numbers_are_those_of_exact_arithmetic(cond):
    """Takes minutes: the characteristic polynomial of W XᵀX, in integers of thousands of digits."""
    as_integers = [fmpz_mat(*A.shape, [int(entry) for entry in A.ravel()]) for A in integer_kernel(cond)]
    coefficients = (as_integers[1] * (as_integers[0].transpose() * as_integers[0])).charpoly()
    ctx.prec = 128
    log_e = []
    for k in range(D + 1):
        e_k = coefficients[D - k] * (-1) ** k
        log_e.append(float((arb(e_k).log() - k * (2 * 22 + 8) * arb(2).log()).mid()))
    np.testing.assert_allclose(exact_case(cond)[2], log_e, rtol=1e-15, atol=0)


def quick_if(condition, *values):
    return pytest.param(*values, marks=[] if condition else pytest.mark.slow)


@pytest.mark.parametrize("k", [quick_if(k in QUICK_SIZES, k) for k in SIZES])
@pytest.mark.parametrize("cond", CONDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_log_esp_against_exact_arithmetic(cond, dtype, k):
    X, W, exact = exact_case(cond)
    X, W = jnp.asarray(X, dtype), jnp.asarray(W, dtype)
    error = np.abs(np.asarray(normalizer.log_sum_esp(W, gram(X), k, k, D)) - exact[k])
    assert error <= (1e-9 if dtype == np.float64 else 1e-3 * np.abs(exact[k]))


@pytest.mark.parametrize("cond", CONDS)
def test_all_coefficients_against_exact_arithmetic(cond):
    X, W, exact = exact_case(cond)
    log_e = size_law.log_esps(jnp.asarray(W), gram(jnp.asarray(X)))
    np.testing.assert_allclose(log_e, exact, atol=1e-9, rtol=0)
    # In float32 the eigenvalues below eps times the largest are noise; no size that they decide is likely.
    X, W = jnp.float32(X), jnp.float32(W)
    single = np.asarray(size_law.log_esps(W, gram(X)))
    probs, expected = (np.exp(np.asarray(a, float) - np.logaddexp.reduce(a)) for a in (single, exact))
    np.testing.assert_allclose(probs, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("low", "high"),
    [quick_if(pair in [(1, D), (90, 110)], *pair) for pair in [(0, D), (1, D), (0, 3), (90, 110), (150, 199)]],
)
@pytest.mark.parametrize("cond", CONDS)
def test_log_sum_over_a_range_against_exact_arithmetic(cond, low, high):
    X, W, exact = exact_case(cond)
    value = normalizer.log_sum_esp(jnp.asarray(W), gram(jnp.asarray(X)), low, high, D)
    np.testing.assert_allclose(value, np.logaddexp.reduce(exact[low : high + 1]), atol=1e-9, rtol=0)


@partial(jax.jit, static_argnames="rank")
def coefficients_in_three_ways(X, W, rank):
    """The true rank, all coefficients at once, and each but the first by a circle of its own."""
    C = gram(X)
    nodes = normalizer.num_nodes(0, rank, rank)
    one_size = jax.vmap(lambda k: normalizer.log_circle_sum(W, C, None, k, k, k[None], nodes))
    return normalizer.true_rank(W, C), size_law.log_esps(W, C), one_size(jnp.arange(1, rank + 1))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", [quick_if(name != "n < d", name) for name in KERNELS])
def test_zero_above_the_true_rank_and_nowhere_else(name, dtype):
    X, W = factors(name, dtype)
    d = len(W)
    rank = min(10, d)
    true_rank, log_e, one_by_one = coefficients_in_three_ways(X, W, rank)
    assert true_rank == TRUE_RANK[name]
    sums = np.zeros(d + 1)
    for subset, minor in enumerated_minors(name).items():
        sums[len(subset)] += minor
    with np.errstate(divide="ignore"):
        expected = np.log(sums)
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == np.float64 else {"rtol": 1e-3, "atol": 5e-3}
    np.testing.assert_allclose(log_e, expected, **tolerance)
    np.testing.assert_allclose(one_by_one, expected[1 : rank + 1], **tolerance)


def test_a_small_symmetric_part_is_not_taken_for_none():
    """Features of B that are nearly alike: W ∘ C is large and cancels, and the trace is small beside it."""
    rng = np.random.default_rng(0)
    n, d = 200, 20
    V, B = 0.01 * rng.normal(size=(n, d)), 1 + 0.02 * rng.normal(size=(n, d))
    D = rng.normal(size=(d, d))
    X = np.concatenate([V, B], axis=1).astype(np.float32)
    W = np.zeros((2 * d, 2 * d), np.float32)
    W[:d, :d], W[d:, d:] = np.eye(d), D - D.T
    one = normalizer.log_sum_esp(W, X.T @ X, 1, 1, 2 * d)
    np.testing.assert_allclose(one, np.log(np.sum(V**2)), rtol=1e-2)


def test_number_of_nodes_suits_one_size():
    assert normalizer.num_nodes(100, 100, 200) == 100
    assert normalizer.num_nodes(1, 1, 200) == 24
    assert normalizer.num_nodes(200, 200, 200) == 12
    assert normalizer.num_nodes(1, 200, 200) == 204
    assert all(normalizer.num_nodes(k, k, 200) % 4 == 0 for k in range(201))


@jax.jit
def mean_sizes_at_the_scales(X, W, mean_size):
    C = gram(X)
    M = normalizer.pencil(W, C)
    rough, _ = normalizer.solve_log_scale(M, mean_size, mean_size)
    scales = size_scales.log_scale_of_mean_size(W, C, mean_size, 0, 8, 8), rough
    return [normalizer.size_moments(M, scale)[0] for scale in scales]


@pytest.mark.parametrize("mean_size", [0.01, 1.0, 3.7, 7.9])
@pytest.mark.parametrize("name", ["ordinary", "near skew", "scaled 1e6", "scaled 1e-6", "cond(C) 1e6"])
def test_scale_of_a_mean_size(name, mean_size):
    reached, rough = mean_sizes_at_the_scales(*factors(name), mean_size)
    np.testing.assert_allclose(reached, mean_size, rtol=1e-6)
    np.testing.assert_allclose(rough, mean_size, atol=0.1)


@pytest.mark.parametrize(("low", "high"), [(1, 12), (0, 9), pytest.param(2, 12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sums_that_leave_out_what_hardly_counts(dtype, low, high):
    """Of a diagonal kernel, value and slopes in closed form: limits that leave out nearly nothing, and nearly all."""
    d = 12
    eigenvalues = np.random.default_rng(0).uniform(0.5, 2.0, d)
    scales = np.logspace(-4, 4, 33)

    def sum_of(numbers, low, high):
        return np.sum(np.abs(np.poly(-numbers))[max(low, 0) : high + 1])  # e_0, e_1, ...

    def closed_form(numbers):
        total = sum_of(numbers, low, high)
        others = [sum_of(np.delete(numbers, i), low - 1, high - 1) for i in range(d)]
        return np.log(total), np.array(others) / total

    @jax.jit
    def value_slope_and_way(C):
        value, slope = jax.value_and_grad(partial(normalizer.log_sum_esp, low=low, high=high, rank=d), 1)(W, C)
        return value, jnp.diagonal(slope), normalizer._log_sum_of_most(normalizer.pencil(W, C), low, high, d)[1]

    W = jnp.eye(d, dtype=dtype)
    found = [value_slope_and_way(jnp.diag(jnp.asarray(scale * eigenvalues, dtype))) for scale in scales]
    assert {bool(by_all) for _, _, by_all in found} == {True, False}
    tolerance = 1e-10 if dtype == np.float64 else 2e-4
    for scale, (value, slope, _) in zip(scales, found, strict=True):
        expected, slopes = closed_form(scale * eigenvalues)
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(slope * scale, slopes * scale, rtol=tolerance, atol=tolerance)
