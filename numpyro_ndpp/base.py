r"""What all distributions of subsets have in common, whatever their parameters.

A distribution is P(S) ∝ det L_S over the subsets of an allowed size that hold the pinned items J (none, unless it was
conditioned) and none of the excluded ones. Its values are the other items, T = S∖J:

.. math:: \log P(T) = \log\det L_{J∪T} - \log\sum_{T'} \det L_{J∪T'} .

Everything is written for one kernel (:mod:`numpyro_ndpp.target`); batches of kernels and of subsets are made here.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from numpyro.distributions import Distribution
from numpyro.distributions.batch_util import vmap_over
from numpyro.distributions.util import lazy_property, validate_sample
from numpyro.util import not_jax_tracer

from numpyro_ndpp import probabilities
from numpyro_ndpp.conditioning import Condition, are_distinct
from numpyro_ndpp.devices import ambient_shards
from numpyro_ndpp.drawing import compiled
from numpyro_ndpp.kernel import gram, marginal_matrix
from numpyro_ndpp.linalg import with_derivatives_of
from numpyro_ndpp.minors import log_minors, log_minors_in_shares
from numpyro_ndpp.modes import HasMode
from numpyro_ndpp.multihot import Multihot
from numpyro_ndpp.next_items import log_next_probs
from numpyro_ndpp.normalizer import log_sum_esp
from numpyro_ndpp.size_scales import log_scale_of_mean_size
from numpyro_ndpp.subsets import check_items, item_numbers
from numpyro_ndpp.target import per_kernel, per_subset

__all__ = ["SubsetDistribution"]


class SubsetDistribution(HasMode):
    """P(S) ∝ det L_S over the subsets of an allowed size that hold the pinned items: the members of all siblings."""

    def log_minors(self, subsets: Array) -> Array:
        """log det L_{J∪T} of sets T (..., m), their leading dimensions broadcast with the batch of kernels."""
        # Devices that share the items share the subsets too.
        shards = None if self.batch_shape else self.shards or ambient_shards()
        of_kernel = log_minors if shards is None else partial(log_minors_in_shares, shards)
        return self._per_subset(of_kernel, self.kernel, self.with_pinned(subsets), "(s)")

    def log_weights(self, subsets: Array) -> Array:
        """log of what P(T) is proportional to, for sets T (..., m): det L_{J∪T}, times the weight of the size."""
        return self._log_weights(subsets, self.log_size_weights)

    def _log_weights(self, subsets: Array, log_size_weights: Array | None) -> Array:
        log_minors = self.log_minors(subsets)
        if log_size_weights is None:
            return log_minors
        sizes = jnp.sum(self.with_pinned(subsets) < self.num_items, axis=-1)
        weights = jnp.vectorize(lambda all, size: all[size], signature="(w),()->()")(log_size_weights, sizes)
        is_none = (log_minors == -jnp.inf) | (weights == -jnp.inf)
        return jnp.where(is_none, -jnp.inf, log_minors + jnp.where(is_none, 0.0, weights))

    def _per_subset(self, function: Callable[..., Array], kernels: Any, subsets: Array, out: str) -> Array:
        self._check_broadcast(subsets)
        return per_subset(function, kernels, len(self.batch_shape), subsets, out)

    def _check_broadcast(self, subsets: Array) -> None:
        try:
            lax.broadcast_shapes(subsets.shape[:-1], self.batch_shape)
        except ValueError:
            raise ValueError(
                f"sets of items of shape {subsets.shape}, the last dimension a set's, must broadcast with a batch of "
                f"shape {self.batch_shape}"
            ) from None

    def _clipped(self, items: Array) -> tuple[Array, Array]:
        """Sets of items (..., m), increasing, and which are proper: no item twice, none pinned, all in range."""
        n = self.num_items
        proper = jnp.all((items >= 0) & (items <= n), axis=-1) & are_distinct(self.with_pinned(items), n)
        return jnp.clip(items, 0, n), proper

    def _after(self, numbers: Array, subsets: Array) -> Array:
        """The subsets (..., m), known only once numbers of the kernels are: empty ones where these are not numbers.

        One after the other: on a CPU two batches of factorisations at once may wait for each other forever. XLA takes
        an optimization barrier out before it plans what runs side by side.
        """
        self._check_broadcast(subsets)
        return jnp.where(jnp.isnan(lax.stop_gradient(numbers))[..., None], self.num_items, subsets)

    # --- Probabilities -----------------------------------------------------------------------------------------------

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: list[Any] | None = None) -> Array:
        """Exact, normalised log-probability of padded subsets of any width (..., m).

        One normaliser, O(n d² + d³) (and O(N d³) with limits on the size, N ≤ d + 4), serves all subsets; each takes
        O(m d² + m² d + m³) at about its own size m. -inf outside the support, with a gradient of zero.

        With validation on, which is NumPyro's default, a warning names a value that is no padded subset, wherever the
        value is known: outside jit, or a constant within it. It is a warning and no error, as for all distributions of
        NumPyro. A subset of a size that is not allowed has probability zero, without a word.

        :raises TypeError: for values that are not integers.
        :raises ValueError: for a single number, and for values that do not broadcast with the batch of kernels.
        """
        value = item_numbers("value", value, "; for 0/1 vectors use multihot()")
        weights = self.log_size_weights  # once: what is traced is not kept
        return self._log_prob(value, self._log_normalizer_for(weights), weights)

    def _log_normalizer_for(self, log_size_weights: Array | None) -> Array:
        """The normaliser where the weights of the sizes are known already."""
        del log_size_weights
        return self.log_normalizer

    @compiled()
    def _log_prob(self, value: Array, log_normalizer: Array, log_size_weights: Array | None) -> Array:
        value = value.astype(jnp.promote_types(value.dtype, jnp.int32))  # may be too narrow for the number of items
        inside = self.contains(value)
        # No subset in the support is larger than max_size, so the columns beyond that are padding.
        subsets = jnp.where(inside[..., None], value, self.num_items)[..., : self.max_size].astype(jnp.int32)
        subsets = self._after(log_normalizer, subsets)  # which itself comes after the weights of the sizes
        log_weight = self._log_weights(subsets, log_size_weights)
        possible = inside & (log_weight > -jnp.inf) & (log_normalizer != -jnp.inf)
        log_prob = jnp.where(possible, log_weight - jnp.where(possible, log_normalizer, 0.0), -jnp.inf)
        # Minor and normaliser have roundings of their own, which must not make more of a subset than certain.
        log_prob = with_derivatives_of(jnp.minimum(log_prob, 0.0), log_prob)
        # A kernel with NaN gives NaN.
        return jnp.where(jnp.isnan(log_normalizer), jnp.nan, log_prob)

    @lazy_property
    def log_normalizer(self) -> Array:
        """log Σ det L_S over the support (batch shape): log det(I + L) without size limits, log e_k for size k."""
        return self._log_normalizers()

    @compiled()
    def _log_normalizers(self) -> Array:
        return per_kernel(probabilities.log_normalizer, self.target, "()")

    @compiled()
    def size_log_prob(self) -> Array:
        """log P(size = j) for j = 0 .. d, (..., d+1). O(d³); all its derivatives together O(J d³), J ≤ d + 49."""
        return per_kernel(probabilities.size_log_probs, self.target, "(s)")

    @compiled()
    def inclusion_probs(self) -> Array:
        r"""P(a ∈ S) for every item a, exact, (..., n). O(n d²) beyond the normaliser, O(n d) memory.

        The derivative of the log-normaliser in the logarithm of item a's quality: with G = ∂ log Z / ∂C it is
        :math:`x_a^\top G x_a`, for G = W (I + C W)⁻¹ without limits on the size.
        """
        return per_kernel(probabilities.inclusion_probs, self.target, "(n)")

    def marginal_log_prob(self, items: ArrayLike) -> Array:
        r"""log P(items ⊆ S), exact and differentiable, of padded sets of items (..., m).

        O(m² d + m³) a set where the size has no limits, :math:`\log\det (X Z X^\top)_{items}` with Z = W (I + C W)⁻¹;
        with limits O(N (d+m)³), N nodes on a circle. -inf for what is no subset of the items.

        :raises ValueError: outside jit, for items out of range or repeated.

        >>> import jax.numpy as jnp
        >>> from numpyro_ndpp import NDPP
        >>> ndpp = NDPP(jnp.eye(3))
        >>> [f"{p:.2f}" for p in jnp.exp(ndpp.marginal_log_prob(jnp.array([[0, 2], [1, 3]])))]
        ['0.25', '0.50']
        """
        items = check_items("items", items, self.num_items)
        are_all_there = not_jax_tracer(items) and bool((np.asarray(items) < self.num_items).all())
        return self._marginal_log_prob(items, num_certain=items.shape[-1] if are_all_there else 0)

    @compiled("num_certain")
    def _marginal_log_prob(self, items: Array, *, num_certain: int) -> Array:
        items, proper = self._clipped(items)
        log_normalizer = self.log_normalizer
        items = self._after(log_normalizer, items)
        target, together = self.target, self.with_pinned(items)
        if target.is_unlimited:
            W, C = self.W, jnp.vectorize(gram, signature="(n,d)->(d,d)")(target.kernel.X)
            Z = jnp.vectorize(marginal_matrix, signature="(d,d),(d,d)->(d,d)")(W, C)
            marginal = target.kernel.with_inner(Z)
            pinned = self._per_subset(log_minors, marginal, self.with_pinned(jnp.zeros(0, jnp.int32)), "(s)")
            log_joint = self._per_subset(log_minors, marginal, together, "(s)")
        else:
            pinned = log_normalizer
            more = replace(target, num_certain=self.num_certain + num_certain)
            log_joint = self._per_subset(probabilities.log_sums_given, more, together, "(s)")
        possible = proper & (log_joint > -jnp.inf) & (pinned > -jnp.inf) & (log_normalizer > -jnp.inf)
        log_prob = jnp.where(possible, log_joint, 0.0) - jnp.where(possible, pinned, 0.0)
        # Where the items are certain, rounding must not make them more than that, nor halve the derivative.
        log_prob = jnp.where(possible, with_derivatives_of(jnp.minimum(log_prob, 0.0), log_prob), -jnp.inf)
        return jnp.where(jnp.isnan(log_normalizer), jnp.nan, log_prob)

    def next_item_log_prob(self, items: ArrayLike) -> Array:
        r"""The log-probability of every item as the one more item that joins ``items`` (..., m): an array (..., n).

        .. math:: P(a \mid J) = \det L_{J∪a} \Big/ \sum_b \det L_{J∪b}

        -inf for the items that are in already. Where no item can join, because ``items`` is too large or no larger
        subset has a positive probability, -inf throughout. O(n m d) for m items. Differentiable, to any order.

        :raises ValueError: outside jit, for items out of range or repeated.

        >>> import jax.numpy as jnp
        >>> from numpyro_ndpp import NDPP
        >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])  # items 0 and 1 are alike: they repel
        >>> ndpp = NDPP(V)
        >>> [f"{p:.2f}" for p in jnp.exp(ndpp.next_item_log_prob(jnp.array([0])))]
        ['0.00', '0.01', '0.99']
        """
        return self._next_item_log_prob(check_items("items", items, self.num_items))

    @compiled()
    def _next_item_log_prob(self, items: Array) -> Array:
        items, proper = self._clipped(items)
        together = self.with_pinned(items)
        log_probs = self._per_subset(log_next_probs, self.kernel, together, "(s,n)")
        room = jnp.sum(together < self.num_items, axis=-1) < self.whole_sizes[1]
        return jnp.where((room & proper)[..., None], log_probs, -jnp.inf)

    # --- Other distributions ------------------------------------------------------------------------------------------

    def condition(self, include: ArrayLike | None = None, exclude: ArrayLike | None = None) -> Self:
        r"""The *other* items T = S∖include, given that S holds all of ``include`` and none of ``exclude``.

        :param include: items (..., j), padded with n if the size of S may vary. A fixed size k shrinks by j.
        :param exclude: items (..., m), padded with n.
        :raises ValueError: outside jit, for an item out of range, repeated, or both included and excluded, and for more
            included items than a subset can have. For a fixed size also if ``include`` is padded.

        Values hold none of the included items. Conditioning twice is conditioning on both. What is included may have
        probability zero: then every subset has log-probability -inf, and :meth:`sample` raises.

        >>> import jax.numpy as jnp
        >>> from numpyro_ndpp import KNDPP
        >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
        >>> ndpp = KNDPP(V, k=2).condition(include=[0])
        >>> ndpp.event_shape
        (1,)
        >>> [f"{p:.2f}" for p in ndpp.inclusion_probs()]
        ['0.00', '0.01', '0.99']
        """
        condition = Condition.of(self, include, exclude)
        other = copy.copy(self)
        for name in ("_rows", "log_normalizer"):  # which belong to this one
            other.__dict__.pop(name, None)
        other._prepared, other._cached = None, None
        other._pinned, other._excluded, other.num_certain = condition
        batch_shapes = [items.shape[:-1] for items in condition[:2] if items is not None]
        other._batch_shape = lax.broadcast_shapes(self.batch_shape, *batch_shapes)
        other._event_shape = (other.max_size,)
        return other

    def with_expected_size(self, expected_size: ArrayLike) -> "SubsetDistribution":
        """The NDPP of the kernel rescaled so that the mean size is ``expected_size``, within the limits on the size.

        :param expected_size: a number between the smallest and the largest size, both exclusive; may be an array of
            the batch's shape, may be traced.
        :raises ValueError: outside jit, for a mean size out of these limits, and, unless validation is switched off,
            for one that no scale reaches.

        Differentiable in the parameters and in ``expected_size``.
        """
        if self._pinned is not None or self._excluded is not None:
            raise NotImplementedError("a conditioned distribution has no scale of its own: rescale, then condition")
        low, high = self._ndpp_size_limits()
        expected_size = jnp.asarray(expected_size, self.X.dtype)
        concrete = not_jax_tracer(expected_size)
        if concrete and not ((np.asarray(expected_size) > low) & (np.asarray(expected_size) < high)).all():
            raise ValueError(f"expected_size must be between {low} and {high}, both exclusive, got {expected_size}")
        log_scale, reached = self._log_scales(expected_size, low=low, high=high)
        scaled = self._scaled_ndpp(
            jnp.exp(log_scale / 2)[..., None, None],
            min_size=low,
            max_size=high,
            sampler=self.sampler,
            validate_args=self._validate_args,
        )
        is_known = concrete and not_jax_tracer(log_scale) and self._validate_args
        if is_known and not (np.abs(np.asarray(reached) - np.asarray(expected_size)) < 1e-2).all():
            raise ValueError(f"expected_size is {expected_size}, but this kernel reaches no more than {reached}")
        return scaled

    @compiled("low", "high")
    def _log_scales(self, expected_size: Array, *, low: int, high: int) -> tuple[Array, Array]:
        """The logarithm of the scale at which every kernel has its expected size, and the size that it has there."""

        def of_kernel(X: Array, W: Array, size: Array) -> tuple[Array, Array]:
            C, limits = gram(X), (low, high, min(X.shape))
            log_scale = log_scale_of_mean_size(W, C, size, *limits)
            mean = jax.grad(lambda u: log_sum_esp(W, jnp.exp(u) * C, *limits))(log_scale)
            return log_scale, lax.stop_gradient(mean)

        return jnp.vectorize(of_kernel, signature="(n,d),(d,e),()->(),()")(self.X, self.W, expected_size)

    def multihot(self) -> Multihot:
        """The same distribution over vectors of n zeros and ones."""
        return Multihot(self, validate_args=self._validate_args)

    def _ndpp_size_limits(self) -> tuple[int, int]:
        return self.whole_sizes

    def _scaled_ndpp(self, root: Array, **settings: Any) -> "SubsetDistribution":
        """The NDPP whose features are multiplied by ``root`` (..., 1, 1)."""
        raise NotImplementedError


def vmap_over_parameters(dist: SubsetDistribution, pinned: int | None, excluded: int | None, **axes: int | None) -> Any:
    """The axes of a distribution's arrays, for NumPyro's ``vmap_over``."""
    axes = {**axes, "_pinned": pinned, "_excluded": excluded}
    # What was prepared for a batch of kernels has that batch in front.
    batched = any(axis is not None for axis in axes.values())
    return vmap_over.dispatch(Distribution)(dist, _prepared=0 if batched else None, **axes)
