r"""SizedNDPP: subsets whose size has a distribution of its own, and given the size a k-NDPP.

.. math:: P(S) = π_{|S|} \frac{\det L_S}{e_{|S|}}, \qquad e_k = \sum_{|S|=k} \det L_S .

The sizes of an NDPP are those of a sum of coins: their variance is at most about twice the mean. Those of data may have
any variance. Here π is any distribution over 0 .. max_size: parameters, a histogram, a distribution of NumPyro.

Reference: Kulesza and Taskar (2011), *k-DPPs: fixed-size determinantal point processes*, ICML, where a k-DPP is what is
left of a DPP given its size.
"""

from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from numpyro.distributions import Distribution
from numpyro.distributions.batch_util import vmap_over
from numpyro.distributions.util import lazy_property

from numpyro_ndpp.base import SubsetDistribution, vmap_over_parameters
from numpyro_ndpp.constraints import finite_matrix, log_weights, positive_semidefinite_part
from numpyro_ndpp.drawing import compiled
from numpyro_ndpp.greedy import greedy_subsets
from numpyro_ndpp.kernel import Kernel
from numpyro_ndpp.minors import log_minor
from numpyro_ndpp.of_parameters import OfFactors, OfParts
from numpyro_ndpp.parameters import factors_of, parts_of, size_logits_of
from numpyro_ndpp.probabilities import log_sum, log_weights_of_sizes, size_weights_of
from numpyro_ndpp.samplers import Sampler, UpDown
from numpyro_ndpp.target import Target, per_kernel

__all__ = ["FactorSizedNDPP", "SizedNDPP"]


class _FreeSize(SubsetDistribution):
    """Members that differ where the size has a distribution of its own."""

    size_logits: Any

    @lazy_property
    def log_size_weights(self) -> Array:
        """log (π_s / e_s) (..., max_size+1), up to a constant, of the whole kernel, whatever was excluded later."""
        return self._log_size_weights()

    @compiled()
    def _log_size_weights(self) -> Array:
        (low, high), sizes = self.whole_sizes, jnp.arange(self.size_logits.shape[-1])
        size_logits = jnp.where((sizes >= low) & (sizes <= high), self.size_logits, -jnp.inf)

        def of_kernel(X: Array, W: Array, K: Array, size_logits: Array) -> Array:
            return size_weights_of(Kernel(X, W, K), size_logits)

        of_kernels = jnp.vectorize(of_kernel, signature="(n,d),(d,d),(e,e),(w)->(w)")
        return of_kernels(self.X, self.W, self.inner_block, size_logits)

    @lazy_property
    def log_normalizer(self) -> Array:
        """log Σ π_s over the sizes s of which there is a subset; for what is conditioned the sum of what is left of it.

        Up to the constant that ``size_logits`` leave open.
        """
        return self._log_normalizer_for(self.log_size_weights)

    def _log_normalizer_for(self, log_size_weights: Array | None) -> Array:
        if self._pinned is not None or self._excluded is not None:
            return super().log_normalizer
        # Which sizes there are is no matter of derivatives.
        return _log_sums(self.size_logits, lax.stop_gradient(log_size_weights))

    def greedy(self, k: int | None = None, *, num_exchanges: int = 0) -> Array:
        """As that of :meth:`numpyro_ndpp.NDPP.greedy`; without k the most probable of the greedy subsets of all sizes.

        O(n d) an item.
        """
        if k is None and num_exchanges == 0 and self.max_size:
            return self._greedy_of_sizes()
        return super().greedy(k, num_exchanges=num_exchanges)

    @compiled()
    def _greedy_of_sizes(self) -> Array:
        def of_kernel(target: Target) -> Array:
            kernel, pinned = target.kernel, target.items
            C, width = kernel.C, target.width
            log_weights = log_weights_of_sizes(target, C)[: width + 1] > -jnp.inf
            subsets = greedy_subsets(kernel, C, log_weights, pinned)
            sizes = jnp.sum(subsets < kernel.num_items, axis=1)
            minors = lax.map(lambda subset: log_minor(kernel, jnp.sort(jnp.append(pinned, subset))), subsets)
            number = jnp.sum(pinned < kernel.num_items)
            weights = target.log_size_weights.at[sizes + number].get(mode="fill", fill_value=-jnp.inf)  # type: ignore[union-attr]
            values = jnp.where((sizes == jnp.arange(width + 1)) & (weights > -jnp.inf), minors + weights, -jnp.inf)
            return jnp.sort(subsets[jnp.argmax(values)])

        return per_kernel(of_kernel, self.target, "(k)")

    def with_expected_size(self, expected_size: ArrayLike) -> NoReturn:
        """There is none: the mean size is that of ``size_logits``.

        :raises NotImplementedError: always.
        """
        raise NotImplementedError("the sizes of a SizedNDPP are those of size_logits: give it others")


@jax.jit
def _log_sums(size_logits: Array, log_size_weights: Array) -> Array:
    def of_kernel(size_logits: Array, weights: Array) -> Array:
        total = log_sum(jnp.where(weights == -jnp.inf, -jnp.inf, size_logits))
        return jnp.where(jnp.isnan(weights).any(), jnp.nan, total)  # a kernel with NaN gives NaN

    return jnp.vectorize(of_kernel, signature="(w),(w)->()")(size_logits, log_size_weights)


class SizedNDPP(_FreeSize, OfParts):
    r"""Nonsymmetric determinantal point process with any distribution π of the size,

    .. math:: P(S) = π_{|S|} \frac{\det L_S}{e_{|S|}}, \qquad L = V V^\top + B (D - D^\top) B^\top ,

    with e_k the k-th elementary symmetric polynomial of the eigenvalues of L: the size is drawn from π, then the subset
    from the :class:`~numpyro_ndpp.KNDPP` of that size. Where L has no subset of some size, π is that of the others.

    Members, samplers and conditioning are those of :class:`~numpyro_ndpp.NDPP`. Beyond what that costs, values and
    gradients take O(J d³), J nodes on a few circles, for all subsets and sizes together.

    :param V, B, D: the kernel, as for :class:`~numpyro_ndpp.NDPP`. Its scale does not count.
    :param size_logits: log π_s up to a constant, for s = 0, 1, ..., max_size (..., max_size+1); -inf for a size that is
        not there. A histogram is ``jnp.log(counts)``. Or a discrete distribution of NumPyro, such as ``Poisson(8.0)``,
        truncated to the sizes allowed.
    :param min_size, max_size: the smallest and the largest size. Default: 0, and the last one of ``size_logits``, or
        min(n, d₁ + d₂) for a distribution.
    :param sampler: the sampler behind :meth:`sample`. ``Exact`` and ``Cholesky`` draw subsets of the kernel, scaled for
        the size, until one has it: some two and a half standard deviations of the size, but very many where a kernel
        is nearly skew and the size is odd.
    :raises ValueError: as for :class:`~numpyro_ndpp.NDPP`, for more sizes than min(n, d₁ + d₂), for ``size_logits``
        with NaN or +inf or with -inf throughout, and for a distribution that is not discrete.

    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> from numpyro_ndpp import SizedNDPP
    >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])  # items 0 and 1 are alike: they repel
    >>> baskets = SizedNDPP(V, size_logits=jnp.log(jnp.array([0.1, 0.2, 0.7])))
    >>> [f"{p:.3f}" for p in jnp.exp(baskets.log_prob(jnp.array([[3, 3], [2, 3], [0, 1], [0, 2]])))]
    ['0.100', '0.071', '0.004', '0.385']
    >>> [f"{p:.2f}" for p in jnp.exp(SizedNDPP(V, size_logits=dist.Poisson(1.0)).size_log_prob())]
    ['0.40', '0.40', '0.20']
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "V": finite_matrix,
        "B": finite_matrix,
        "D": finite_matrix,
        "size_logits": log_weights,
    }

    def __init__(
        self,
        V: ArrayLike,
        B: ArrayLike | None = None,
        D: ArrayLike | None = None,
        size_logits: ArrayLike | Distribution | None = None,
        *,
        min_size: int = 0,
        max_size: int | None = None,
        sampler: Sampler = UpDown(),
        validate_args: bool | None = None,
    ) -> None:
        (self.V, self.B, self.D), batch_shape, shape = parts_of(V, B, D)
        self.size_logits, limits = size_logits_of(size_logits, min_size, max_size, *shape, self.V.dtype)
        batch_shape = lax.broadcast_shapes(batch_shape, self.size_logits.shape[:-1])
        super().__init__(batch_shape, limits, sampler, validate_args)

    @staticmethod
    def from_factors(
        X: ArrayLike,
        W: ArrayLike | None = None,
        size_logits: ArrayLike | Distribution | None = None,
        *,
        min_size: int = 0,
        max_size: int | None = None,
        sampler: Sampler = UpDown(),
        validate_args: bool | None = None,
    ) -> "FactorSizedNDPP":
        """The same of the kernel L = X W Xᵀ, for any W whose symmetric part is positive semidefinite up to rounding.

        Without W it is the identity: L = X Xᵀ. The other arguments are those of :class:`SizedNDPP`.
        """
        settings: dict[str, Any] = {"sampler": sampler, "validate_args": validate_args}
        return FactorSizedNDPP(X, W, size_logits, min_size=min_size, max_size=max_size, **settings)


class FactorSizedNDPP(_FreeSize, OfFactors):
    """The :class:`SizedNDPP` of the kernel L = X W Xᵀ, as :meth:`numpyro_ndpp.SizedNDPP.from_factors` gives it."""

    arg_constraints: ClassVar[dict[str, Any]] = {
        "X": finite_matrix,
        "W": positive_semidefinite_part,
        "size_logits": log_weights,
    }

    def __init__(
        self,
        X: ArrayLike,
        W: ArrayLike | None = None,
        size_logits: ArrayLike | Distribution | None = None,
        *,
        min_size: int = 0,
        max_size: int | None = None,
        sampler: Sampler = UpDown(),
        validate_args: bool | None = None,
    ) -> None:
        (self.X, self.W), batch_shape, shape = factors_of(X, W)
        self.size_logits, limits = size_logits_of(size_logits, min_size, max_size, *shape, self.X.dtype)
        batch_shape = lax.broadcast_shapes(batch_shape, self.size_logits.shape[:-1])
        super().__init__(batch_shape, limits, sampler, validate_args)


def _vmap_over(dist: _FreeSize, pinned: int | None = None, excluded: int | None = None, **axes: int | None) -> Any:
    return vmap_over_parameters(dist, pinned, excluded, **axes)


for _class in (SizedNDPP, FactorSizedNDPP):
    vmap_over.register(_class, _vmap_over)
