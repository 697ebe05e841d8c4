"""The samplers: small immutable settings objects that turn a kernel and a key into a subset."""

from numpyro_ndpp.samplers.cholesky import Cholesky

__all__ = ["Cholesky"]
