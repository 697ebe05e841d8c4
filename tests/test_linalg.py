"""Products in pages, inverses and quotients by factors, against NumPy."""

import jax
import numpy as np
import pytest

from numpyro_ndpp.linalg import _right_divide_by_factors, right_divide


@pytest.mark.parametrize("divide", [right_divide, _right_divide_by_factors])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-3)])
def test_quotient(divide, dtype, tolerance):
    rng = np.random.default_rng(1)
    A, B = rng.normal(size=(13, 13)), rng.normal(size=(9, 13))
    A[0, 0] = 0.0
    quotient = jax.jit(divide)(B.astype(dtype), A.astype(dtype))
    assert quotient.dtype == dtype
    np.testing.assert_allclose(quotient, B @ np.linalg.inv(A), atol=tolerance * np.linalg.cond(A))
