"""e_k against exact integer arithmetic, and where it is exactly zero."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flint import arb, ctx, fmpz_mat
from kernels import KERNELS, PARTS, TRUE_RANK, enumerated_minors

from numpyro_ndpp import polynomials
from numpyro_ndpp.kernel import gram, inner_matrix

D = 200
SIZES = [1, 2, 20, 100, 199, 200]


def factors(name, dtype=np.float64):
    V, B, D = (np.asarray(part, dtype) for part in PARTS[name])
    X = jnp.concatenate([V, B], axis=1)
    return inner_matrix(V.shape[1], D - D.T), gram(X)


@cache
def exact_case(cond):
    """X (400, 200) and W of short binary fractions, and log e_0 .. e_200 of X W Xᵀ by exact integer arithmetic."""
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.normal(size=(2 * D, D)))[0]
    right = np.linalg.qr(rng.normal(size=(D, D)))[0]
    X = np.round((left * np.logspace(0, -np.log10(cond) / 2, D)) @ right.T * 2**22)
    half = np.round(rng.normal(size=(D // 2, D // 2)) * 2**8)
    W = np.zeros((D, D))
    W[: D // 2, : D // 2] = 2**8 * np.eye(D // 2)
    W[D // 2 :, D // 2 :] = half - half.T
    as_integers = [fmpz_mat(*A.shape, [int(entry) for entry in A.ravel()]) for A in (X, W)]
    coefficients = (as_integers[1] * (as_integers[0].transpose() * as_integers[0])).charpoly()
    ctx.prec = 128
    log_e = []
    for k in range(D + 1):
        e_k = coefficients[D - k] * (-1) ** k
        log_e.append(float((arb(e_k).log() - k * (2 * 22 + 8) * arb(2).log()).mid()))
    return X / 2**22, W / 2**8, np.array(log_e)


@pytest.mark.parametrize("cond", [1, 1e6])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_log_esp_against_exact_arithmetic(cond, dtype):
    X, W, exact = exact_case(cond)
    X, W = jnp.asarray(X, dtype), jnp.asarray(W, dtype)
    C = gram(X)
    values = np.array([polynomials.log_sum_esp(W, C, k, k, D) for k in SIZES])
    error = np.abs(values - exact[SIZES])
    bound = 1e-9 if dtype == np.float64 else 1e-3 * np.abs(exact[SIZES])
    assert (error <= bound).all(), error


@pytest.mark.parametrize("cond", [1, 1e6])
def test_all_coefficients_against_exact_arithmetic(cond):
    X, W, exact = exact_case(cond)
    log_e = polynomials.log_esps(jnp.asarray(W), gram(jnp.asarray(X)))
    np.testing.assert_allclose(log_e, exact, atol=1e-9, rtol=0)
    # In float32 the eigenvalues below eps times the largest are noise; no size that they decide is likely.
    X, W = jnp.float32(X), jnp.float32(W)
    probs, expected = (
        np.exp(np.asarray(a, float) - np.logaddexp.reduce(a)) for a in (polynomials.log_esps(W, gram(X)), exact)
    )
    np.testing.assert_allclose(probs, expected, atol=1e-4)


@pytest.mark.parametrize("cond", [1, 1e6])
def test_log_sum_over_a_range_against_exact_arithmetic(cond):
    X, W, exact = exact_case(cond)
    C = gram(jnp.asarray(X))
    for low, high in [(0, D), (1, D), (0, 3), (90, 110), (150, 199)]:
        value = polynomials.log_sum_esp(jnp.asarray(W), C, low, high, D)
        np.testing.assert_allclose(value, np.logaddexp.reduce(exact[low : high + 1]), atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", KERNELS)
def test_zero_above_the_true_rank_and_nowhere_else(name, dtype):
    W, C = factors(name, dtype)
    assert polynomials.true_rank(W, C) == TRUE_RANK[name]
    d = len(W)
    sums = np.zeros(d + 1)
    for subset, minor in enumerated_minors(name).items():
        sums[len(subset)] += minor
    with np.errstate(divide="ignore"):
        expected = np.log(sums)
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == np.float64 else {"rtol": 1e-3, "atol": 5e-3}
    np.testing.assert_allclose(polynomials.log_esps(W, C), expected, **tolerance)
    rank = min(10, d)
    nodes = polynomials.num_nodes(0, rank, rank)
    one_size = jax.jit(jax.vmap(lambda k: polynomials._log_circle_sum(W, C, None, k, k, k[None], nodes)))
    np.testing.assert_allclose(one_size(jnp.arange(1, rank + 1)), expected[1 : rank + 1], **tolerance)


def test_a_small_symmetric_part_is_not_taken_for_none():
    """Features of B that are nearly alike: W ∘ C is large and cancels, and the trace is small beside it."""
    rng = np.random.default_rng(0)
    n, d = 200, 20
    V, B = 0.01 * rng.normal(size=(n, d)), 1 + 0.02 * rng.normal(size=(n, d))
    D = rng.normal(size=(d, d))
    X = np.concatenate([V, B], axis=1).astype(np.float32)
    W = np.zeros((2 * d, 2 * d), np.float32)
    W[:d, :d], W[d:, d:] = np.eye(d), D - D.T
    one = polynomials.log_sum_esp(W, X.T @ X, 1, 1, 2 * d)
    np.testing.assert_allclose(one, np.log(np.sum(V**2)), rtol=1e-2)


def test_number_of_nodes_suits_one_size():
    assert polynomials.num_nodes(100, 100, 200) == 100
    assert polynomials.num_nodes(1, 1, 200) == 24
    assert polynomials.num_nodes(200, 200, 200) == 12
    assert polynomials.num_nodes(1, 200, 200) == 204
    assert all(polynomials.num_nodes(k, k, 200) % 4 == 0 for k in range(201))


@pytest.mark.parametrize("mean_size", [0.01, 1.0, 3.7, 7.9])
@pytest.mark.parametrize("name", ["ordinary", "near skew", "scaled 1e6", "scaled 1e-6", "cond(C) 1e6"])
def test_scale_of_a_mean_size(name, mean_size):
    W, C = factors(name)
    M = polynomials.pencil(W, C)
    log_scale = polynomials.log_scale_of_mean_size(W, C, mean_size, 0, 8, 8)
    np.testing.assert_allclose(polynomials.size_moments(M, log_scale)[0], mean_size, rtol=1e-6)
    rough = polynomials.solve_log_scale(M, mean_size)
    np.testing.assert_allclose(polynomials.size_moments(M, rough)[0], mean_size, atol=0.1)
