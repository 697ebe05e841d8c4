r"""NDPP and KNDPP, random subsets as NumPyro distributions, by their parameters.

Four siblings stand on one base, which knows a kernel only by its factors X and W, and the sizes by the smallest and the
largest: ``NDPP`` and ``KNDPP`` take V, B, D; what ``from_factors`` returns takes X and W.
"""

from typing import Any

from jax import Array
from jax.typing import ArrayLike

from numpyro_ndpp.base import SubsetDistribution
from numpyro_ndpp.of_parameters import OfFactors, OfParts
from numpyro_ndpp.parameters import factors_of, fixed_size, parts_of, size_limits
from numpyro_ndpp.samplers import Sampler, UpDown

__all__ = ["KNDPP", "NDPP", "FactorKNDPP", "FactorNDPP"]


class _FixedSize(SubsetDistribution):
    """Members that differ where the size is fixed."""

    @property
    def k(self) -> int:
        """The number of items of a value."""
        return self.max_size

    def _ndpp_size_limits(self) -> tuple[int, int]:
        return 0, min(self.num_items, self.rank)


class _Parts(OfParts):
    """Kernels given by V, B and D, with a scale of their own."""

    def _scaled_ndpp(self, root: Array, **settings: Any) -> "NDPP":
        return NDPP(self.V * root, self.B * root, self.D, **settings)


class _Factors(OfFactors):
    """Kernels given by X and W, likewise."""

    def _scaled_ndpp(self, root: Array, **settings: Any) -> "FactorNDPP":
        return FactorNDPP(self.X * root, self.W, **settings)


class NDPP(_Parts):
    r"""Nonsymmetric determinantal point process: a random subset S of n items,

    .. math:: P(S) = \frac{\det L_S}{\det(I + L)}, \qquad L = V V^\top + B (D - D^\top) B^\top .

    V makes like items repel, as an ordinary DPP does; B and D add attraction. Any real values give a valid kernel.
    ``NDPP(V)`` is the ordinary DPP, L = V Vᵀ.

    A value is a vector of item numbers, increasing, filled up with n: see :func:`~numpyro_ndpp.pad_subsets`.

    :param V: features (..., n, d₁) of the symmetric part.
    :param B: features (..., n, d₂) of the skew part. None, like D: there is no skew part.
    :param D: matrix (..., d₂, d₂), of which D - Dᵀ counts.
    :param min_size: smallest size; the distribution is that of the NDPP given that \|S\| is at least that. Default 0.
    :param max_size: largest size, likewise, and the length of the event. Default min(n, d₁ + d₂), above which every
        subset has probability zero.
    :param sampler: the sampler behind :meth:`sample`.
    :raises ValueError: for shapes that do not fit together, B without D, sizes that are not allowed, and, with
        validation on, for parameters that are not finite: the message has the row and the column.

    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from numpyro_ndpp import NDPP
    >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])  # items 0 and 1 are alike: they repel
    >>> B = jnp.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])  # items 0 and 2 attract
    >>> D = jnp.array([[0.0, 2.0], [0.0, 0.0]])
    >>> ndpp = NDPP(V, B, D)
    >>> baskets = jnp.array([[0, 1, 3], [0, 2, 3]])  # {0, 1} and {0, 2}; 3 is padding
    >>> print(np.exp(np.float64(ndpp.log_prob(baskets))).round(3))
    [0.001 0.387]
    >>> print(np.float64(ndpp.inclusion_probs()).round(3))
    [0.719 0.381 0.781]
    >>> print(np.float64(NDPP(V).inclusion_probs()).round(3))
    [0.356 0.291 0.498]
    """

    def __init__(
        self,
        V: ArrayLike,
        B: ArrayLike | None = None,
        D: ArrayLike | None = None,
        *,
        min_size: int = 0,
        max_size: int | None = None,
        sampler: Sampler = UpDown(),
        validate_args: bool | None = None,
    ) -> None:
        (self.V, self.B, self.D), batch_shape, shape = parts_of(V, B, D)
        super().__init__(batch_shape, size_limits(min_size, max_size, *shape), sampler, validate_args)

    @staticmethod
    def from_factors(
        X: ArrayLike,
        W: ArrayLike | None = None,
        *,
        min_size: int = 0,
        max_size: int | None = None,
        sampler: Sampler = UpDown(),
        validate_args: bool | None = None,
    ) -> "FactorNDPP":
        """The NDPP of the kernel L = X W Xᵀ, for any W whose symmetric part is positive semidefinite up to rounding.

        Without W it is the identity: L = X Xᵀ. The other arguments are those of :class:`NDPP`.
        """
        return FactorNDPP(X, W, min_size=min_size, max_size=max_size, sampler=sampler, validate_args=validate_args)


class FactorNDPP(_Factors):
    r"""The :class:`NDPP` of the kernel L = X W Xᵀ, as :meth:`numpyro_ndpp.NDPP.from_factors` gives it.

    :param X: features (..., n, d), one row per item.
    :param W: inner matrix (..., d, d) with W + Wᵀ positive semidefinite up to rounding. Default: the identity.
    """

    def __init__(
        self,
        X: ArrayLike,
        W: ArrayLike | None = None,
        *,
        min_size: int = 0,
        max_size: int | None = None,
        sampler: Sampler = UpDown(),
        validate_args: bool | None = None,
    ) -> None:
        (self.X, self.W), batch_shape, shape = factors_of(X, W)
        super().__init__(batch_shape, size_limits(min_size, max_size, *shape), sampler, validate_args)


class KNDPP(_FixedSize, _Parts):
    r"""Nonsymmetric determinantal point process over the subsets of exactly k items,

    .. math:: P(S) = \frac{\det L_S}{e_k}, \quad |S| = k, \qquad L = V V^\top + B (D - D^\top) B^\top ,

    with e_k the k-th elementary symmetric polynomial of the eigenvalues of L.

    :param V, B, D: the kernel, as for :class:`NDPP`.
    :param k: the size, a Python integer from 0 to min(n, d₁ + d₂). It must be given: ``KNDPP(V, k=10)`` is an ordinary
        k-DPP.
    :param sampler: the sampler behind :meth:`sample`.
    :raises ValueError: as for :class:`NDPP`, and for k out of range or missing.

    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from numpyro_ndpp import KNDPP
    >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> B = jnp.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    >>> D = jnp.array([[0.0, 2.0], [0.0, 0.0]])
    >>> ndpp = KNDPP(V, B, D, k=2)
    >>> print(np.exp(np.float64(ndpp.log_prob(jnp.array([[0, 1], [0, 2], [1, 2]])))).round(3))
    [0.002 0.859 0.139]
    """

    def __init__(
        self,
        V: ArrayLike,
        B: ArrayLike | None = None,
        D: ArrayLike | None = None,
        k: int | None = None,
        *,
        sampler: Sampler = UpDown(),
        validate_args: bool | None = None,
    ) -> None:
        (self.V, self.B, self.D), batch_shape, shape = parts_of(V, B, D)
        super().__init__(batch_shape, fixed_size(k, *shape), sampler, validate_args)

    @staticmethod
    def from_factors(
        X: ArrayLike,
        W: ArrayLike | None = None,
        k: int | None = None,
        *,
        sampler: Sampler = UpDown(),
        validate_args: bool | None = None,
    ) -> "FactorKNDPP":
        """The k-NDPP of the kernel L = X W Xᵀ, for any W whose symmetric part is positive semidefinite to rounding.

        Without W it is the identity: L = X Xᵀ. The other arguments are those of :class:`KNDPP`.
        """
        return FactorKNDPP(X, W, k, sampler=sampler, validate_args=validate_args)


class FactorKNDPP(_FixedSize, _Factors):
    """The :class:`KNDPP` of the kernel L = X W Xᵀ, as :meth:`numpyro_ndpp.KNDPP.from_factors` gives it.

    :param X, W: the kernel, as for :class:`FactorNDPP`.
    :param k: the size, a Python integer from 0 to min(n, d).
    """

    def __init__(
        self,
        X: ArrayLike,
        W: ArrayLike | None = None,
        k: int | None = None,
        *,
        sampler: Sampler = UpDown(),
        validate_args: bool | None = None,
    ) -> None:
        (self.X, self.W), batch_shape, shape = factors_of(X, W)
        super().__init__(batch_shape, fixed_size(k, *shape), sampler, validate_args)
