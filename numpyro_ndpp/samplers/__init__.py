"""The samplers: small immutable settings objects that turn a kernel and keys into subsets.

All are a :class:`Sampler`: ``prepare(target)`` gives a pytree, ``sample(state, keys)`` subsets, and ``failure(state)``
says why a draw was not made.
"""

from numpyro_ndpp.samplers.base import Sampler
from numpyro_ndpp.samplers.cholesky import Cholesky
from numpyro_ndpp.samplers.contour import Contour
from numpyro_ndpp.samplers.exact import Exact
from numpyro_ndpp.samplers.rejection import Rejection
from numpyro_ndpp.samplers.updown import UpDown

__all__ = ["Cholesky", "Contour", "Exact", "Rejection", "Sampler", "UpDown"]
