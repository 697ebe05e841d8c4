"""Products in pages, inverses and quotients by factors, against NumPy."""

import jax
import numpy as np
import pytest

from numpyro_ndpp.linalg import (
    _right_divide_by_factors,
    inverse_of_leading,
    matmul_inner,
    matmul_rows,
    right_divide,
)


@pytest.mark.parametrize("used", [0, 1, 16, 21, 40])
def test_products_in_pages(used):
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(40, 7)), rng.normal(size=(7, 5))
    A[used:] = 0
    np.testing.assert_allclose(jax.jit(matmul_rows)(A, B, used), A @ B, atol=1e-13)
    np.testing.assert_allclose(jax.jit(matmul_inner)(B.T @ A.T, A, used), B.T @ A.T @ A, atol=1e-12)


@pytest.mark.parametrize("size", [0, 1, 5, 12])
def test_inverse_of_a_leading_block(size):
    A = np.eye(12)
    A[:size, :size] = np.random.default_rng(size).normal(size=(size, size))
    if size > 1:
        A[0, 0] = 0.0  # the first pivot has to be looked for
    np.testing.assert_allclose(jax.jit(inverse_of_leading)(A, size), np.linalg.inv(A), atol=1e-11)


@pytest.mark.parametrize("divide", [right_divide, _right_divide_by_factors])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-3)])
def test_quotient(divide, dtype, tolerance):
    rng = np.random.default_rng(1)
    A, B = rng.normal(size=(13, 13)), rng.normal(size=(9, 13))
    A[0, 0] = 0.0
    quotient = jax.jit(divide)(B.astype(dtype), A.astype(dtype))
    assert quotient.dtype == dtype
    np.testing.assert_allclose(quotient, B @ np.linalg.inv(A), atol=tolerance * np.linalg.cond(A))
