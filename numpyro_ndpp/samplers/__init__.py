"""The samplers: small immutable settings objects that turn a kernel and keys into subsets.

Each has ``prepare(X, W, min_size, max_size)``, which gives a pytree, ``draw(state, key)`` for one subset and
``sample(state, keys)`` for many. One whose draws can fail for a reason of its own says so by ``failure(state)``.
"""

from numpyro_ndpp.samplers.cholesky import Cholesky
from numpyro_ndpp.samplers.contour import Contour
from numpyro_ndpp.samplers.exact import Exact
from numpyro_ndpp.samplers.rejection import Rejection
from numpyro_ndpp.samplers.updown import UpDown

__all__ = ["Cholesky", "Contour", "Exact", "Rejection", "UpDown"]
