"""Products in pages, inverses and quotients by factors, against NumPy."""

import jax
import numpy as np
import pytest

from numpyro_ndpp.linalg import (
    _inverse_transposed_by_factors,
    _inverse_transposed_by_solving,
    _right_divide_by_factors,
    log_det,
    log_det_and_slope,
    right_divide,
)


@pytest.mark.parametrize("divide", [right_divide, _right_divide_by_factors])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-3)])
def test_quotient(divide, dtype, tolerance):
    rng = np.random.default_rng(1)
    A, B = rng.normal(size=(13, 13)), rng.normal(size=(9, 13))
    A[0, 0] = 0.0
    quotient = jax.jit(divide)(B.astype(dtype), A.astype(dtype))
    assert quotient.dtype == dtype
    np.testing.assert_allclose(quotient, B @ np.linalg.inv(A), atol=tolerance * np.linalg.cond(A))


@pytest.mark.parametrize("invert", [_inverse_transposed_by_factors, _inverse_transposed_by_solving])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 1e-3)])
def test_inverse(invert, dtype, tolerance):
    A = np.random.default_rng(2).normal(size=(3, 9, 9))
    A[:, 0, 0] = 0.0
    inverse, lu, pivots = jax.jit(jax.vmap(invert))(A.astype(dtype))
    assert inverse.dtype == lu.dtype == dtype
    np.testing.assert_allclose(inverse, np.swapaxes(np.linalg.inv(A), 1, 2), atol=tolerance * np.linalg.cond(A).max())
    np.testing.assert_allclose(
        np.prod(np.diagonal(lu, axis1=1, axis2=2), 1) * (-1) ** np.sum(pivots != np.arange(9), 1),
        np.linalg.det(A),
        rtol=tolerance * 100,
    )


def nearly_singular(smallest):
    """A matrix of positive determinant with a smallest singular value as given."""
    U, _, Vt = np.linalg.svd(np.random.default_rng(3).normal(size=(6, 6)))
    singular = np.array([1.0, 0.9, 0.5, 0.3, 0.2, smallest])
    A = (U * singular) @ Vt
    return A * np.where(np.arange(6) == 0, np.sign(np.linalg.det(U @ Vt)), 1.0)


@pytest.mark.parametrize("smallest", [0.1, 1e-9, 1e-13])
def test_slope_of_a_determinant_far_and_near_zero(smallest):
    A, ones = nearly_singular(smallest), np.ones(6)
    value, slope = jax.jit(log_det_and_slope)(A, ones, ones)
    np.testing.assert_allclose(value, np.linalg.slogdet(A)[1], rtol=1e-14 / smallest)
    np.testing.assert_allclose(slope, np.linalg.inv(A).T, rtol=1e-14 / smallest)
    np.testing.assert_allclose(value, log_det(A, ones, ones), rtol=1e-14 / smallest)


def test_a_singular_matrix_has_no_slope():
    A = nearly_singular(0.1)
    A[3] = A[1]
    value, slope = log_det_and_slope(A, np.ones(6), np.ones(6))
    assert value == log_det(A, np.ones(6), np.ones(6)) == -np.inf
    assert (slope == 0).all()


def test_derivatives_of_a_determinant_to_second_order():
    A, scale = nearly_singular(0.1), np.linspace(0.5, 2.0, 6)
    inverse = np.linalg.inv(A)
    hessian = jax.jacfwd(lambda A: log_det_and_slope(A, scale, scale)[1])(A)
    np.testing.assert_allclose(hessian, -np.einsum("li,jk->ijkl", inverse, inverse), atol=1e-10)
    slope = jax.grad(lambda A: log_det_and_slope(A, scale, scale)[0])(A)
    np.testing.assert_allclose(slope, inverse.T, atol=1e-12)
