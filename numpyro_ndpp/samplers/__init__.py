"""The samplers: small immutable settings objects that turn a kernel and keys into subsets.

Each has ``prepare(X, W, min_size, max_size)``, which gives a pytree, ``draw(state, key)`` for one subset and
``sample(state, keys)`` for many.
"""

from numpyro_ndpp.samplers.cholesky import Cholesky
from numpyro_ndpp.samplers.updown import UpDown

__all__ = ["Cholesky", "UpDown"]
