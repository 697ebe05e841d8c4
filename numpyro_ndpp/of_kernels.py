"""What a distribution of subsets is of: a kernel or a batch of them, the allowed sizes, pinned and excluded items."""

import warnings
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Distribution
from numpyro.distributions.util import lazy_property
from numpyro.util import not_jax_tracer

from numpyro_ndpp.checks import check_is_small
from numpyro_ndpp.conditioning import are_distinct, sorted_together
from numpyro_ndpp.constraints import subset
from numpyro_ndpp.devices import Shards, shards_of
from numpyro_ndpp.kernel import Kernel, without
from numpyro_ndpp.parameters import Shape, why_invalid
from numpyro_ndpp.programs import program
from numpyro_ndpp.samplers.base import Sampler, check_sampler
from numpyro_ndpp.subsets import why_no_subset
from numpyro_ndpp.target import Target, per_kernel

__all__ = ["OfKernels"]


@jax.jit
def _without(X: Array, items: Array) -> Array:
    return jnp.vectorize(without, signature="(n,d),(m)->(n,d)")(X, items)


@program("often")
def _dense_kernels(target: Target) -> Array:
    return per_kernel(lambda target: target.kernel.dense(), target, "(n,n)")


@program("often")
def _dense_marginal_kernels(target: Target) -> Array:
    def of_kernel(target: Target) -> Array:
        kernel = target.kernel
        return kernel.with_inner(target.pinned.marginal_matrix(kernel.W, kernel.C)).dense()

    return per_kernel(of_kernel, target, "(n,n)")


class OfKernels(Distribution):
    """P(S) ∝ det L_S over the subsets of an allowed size that hold the pinned items and none of the excluded ones.

    :param batch_shape: the batch's shape.
    :param sizes: the smallest and the largest size.
    """

    reparametrized_params: ClassVar[list[str]] = []
    pytree_data_fields: tuple[str, ...] = ("_pinned", "_excluded")
    pytree_aux_fields: tuple[str, ...] = ("whole_sizes", "num_certain", "sampler", "shards")
    has_enumerate_support = False

    sampler: Sampler
    X: Any
    W: Any
    whole_sizes: tuple[int, int]
    """The smallest and largest size of a subset with its pinned items."""
    num_certain: int
    """How many of the pinned items are known to be no padding."""
    shards: Shards | None
    """The devices that have the rows of X, if there are several."""
    _pinned: Array | None  # None where there is none: then the pytree has no leaf for it
    _excluded: Array | None

    def __init__(
        self, batch_shape: Shape, sizes: tuple[int, int], sampler: Sampler, validate_args: bool | None
    ) -> None:
        self.whole_sizes, self.num_certain, self._pinned, self._excluded = sizes, 0, None, None
        self.sampler = check_sampler(sampler)
        self.shards = self._find_shards()
        super().__init__(batch_shape, sizes[1:], validate_args=validate_args)

    def _find_shards(self) -> Shards | None:
        return shards_of("X", self.X)

    @property
    def num_items(self) -> int:
        """The number n of items."""
        return self.X.shape[-2]

    @property
    def rank(self) -> int:
        """The number d of features, the largest rank that the kernel can have."""
        return self.X.shape[-1]

    @property
    def min_size(self) -> int:
        """The smallest number of items that a value can have."""
        return max(0, self.whole_sizes[0] - self._num_pinned)

    @property
    def max_size(self) -> int:
        """The largest number of items that a value can have, the length of the event.

        Where the size varies, pinned items may be padding: then there is room for as many as a whole subset has.
        """
        low, high = self.whole_sizes
        return high - (self._num_pinned if low == high else 0)

    @property
    def _num_pinned(self) -> int:
        """How many pinned items there are, padding included: by the shape, for no array is made to ask for a size."""
        return 0 if self._pinned is None else self._pinned.shape[-1]

    @property
    def pinned(self) -> Array:
        """The items (..., j), padded with n, that are in every subset beside its value."""
        return jnp.zeros(0, jnp.int32) if self._pinned is None else self._pinned

    @property
    def excluded(self) -> Array:
        """The items (..., m), padded with n, that are in no subset."""
        return jnp.zeros(0, jnp.int32) if self._excluded is None else self._excluded

    @property
    def inner_block(self) -> Array:
        """K (..., d₂, d₂) with W = Diag(I, K)."""
        return self.W

    @property
    def kernel(self) -> Kernel:
        """The kernel, or a batch of kernels; the rows of excluded items are zero."""
        return Kernel(self._rows, self.W, self.inner_block)

    @lazy_property
    def _rows(self) -> Array:
        return self.X if self._excluded is None else _without(self.X, self._excluded)

    @property
    def target(self) -> Target:
        """What samplers draw from: the kernel, the pinned items and the allowed sizes."""
        return Target(self.kernel, self.pinned, self.whole_sizes, self.num_certain, self.log_size_weights, self.shards)

    @property
    def log_size_weights(self) -> Array | None:
        """log w_s (..., s) of what each size s weighs beside its determinants; None where all weigh one."""
        return None

    def dense_kernel(self) -> Array:
        r"""The kernel :math:`L = X W X^\top` written out, (..., n, n): P(S) ∝ det L_S. For small n alone.

        O(n² d), and the one array of n × n numbers here beside :meth:`dense_marginal_kernel`. Rows and columns of
        excluded items are zero. :func:`~numpyro_ndpp.recipes.from_dense` is the way back.

        :raises ValueError: for more than 4,096 items, and for a distribution given that some items are in: it has no
            kernel of its own (docs: Given some items).

        >>> import jax.numpy as jnp
        >>> from numpyro_ndpp import NDPP
        >>> print(NDPP(jnp.array([[1.0, 0.0], [1.0, 2.0]])).dense_kernel())
        [[1. 1.]
         [1. 5.]]
        """
        check_is_small("dense_kernel()", self.num_items)
        if self._pinned is not None:
            raise ValueError("dense_kernel() is of the distribution before include: given items it need not have one")
        return _dense_kernels(self.target)

    def dense_marginal_kernel(self) -> Array:
        r"""The marginal kernel :math:`K = L (I + L)^{-1}` written out, (..., n, n): P(J ⊆ S) = det K_J. For small n.

        O(n d² + n² d). :func:`~numpyro_ndpp.recipes.from_marginal` is the way back.

        :raises ValueError: for more than 4,096 items, and with limits on the size, which leave no marginal kernel:
            ``marginal_log_prob`` has what it would give.

        >>> import jax.numpy as jnp
        >>> from numpyro_ndpp import NDPP
        >>> print(NDPP(jnp.eye(2)).dense_marginal_kernel())
        [[0.5 0. ]
         [0.  0.5]]
        """
        check_is_small("dense_marginal_kernel()", self.num_items)
        if not self.target.is_unlimited:
            low, high = self.whole_sizes
            raise ValueError(
                f"dense_marginal_kernel() is for subsets of any size: those of {low} to {high} items have no marginal "
                "kernel; use marginal_log_prob() or inclusion_probs()"
            )
        return _dense_marginal_kernels(self.target)

    @property
    def mean(self) -> NoReturn:
        """There is none: item numbers are names. See ``inclusion_probs()``, and ``multihot()``, which has a mean.

        :raises NotImplementedError: always.
        """
        raise NotImplementedError(
            "a mean of item numbers says nothing: use inclusion_probs(), which is the mean of multihot()"
        )

    @property
    def variance(self) -> NoReturn:
        """There is none, as there is no mean. ``multihot()`` has a variance.

        :raises NotImplementedError: always.
        """
        raise NotImplementedError(
            "a variance of item numbers says nothing: use multihot().variance, or marginal_log_prob() for pairs"
        )

    def entropy(self) -> NoReturn:
        """There is no closed form, and an estimate is not given under this name.

        :raises NotImplementedError: always.
        """
        raise NotImplementedError(
            "the entropy has no closed form: estimate it by -log_prob(sample(key, (number,))).mean()"
        )

    @property
    def support(self) -> Any:
        """Increasing item numbers, filled up with n, of an allowed number."""
        return subset(self.num_items, self.min_size, self.max_size)

    def validate_args(self, strict: bool = True) -> None:
        """NumPyro's look at the parameters, with an error that says which entry is wrong.

        :raises ValueError: for parameters that are not finite, or a W without a positive semidefinite symmetric part.
        """
        try:
            super().validate_args(strict)
        except ValueError as error:
            raise ValueError(why_invalid(self.get_args()) or str(error)) from None

    def _validate_sample(self, value: Any) -> Any:
        """What NumPyro asks with validation on: which values are in the support. A warning says what is no subset.

        NumPyro warns of all values outside the support. A subset of a size that is not allowed is none to warn of:
        its probability is zero, as for items that exclude each other.
        """
        inside = self.support(value)
        is_fine = not not_jax_tracer(inside) or (np.all(inside) and self._pinned is None)
        if not is_fine and (reason := self._why_outside(np.asarray(value))):
            warnings.warn(f"{reason}; its log-probability is -inf", stacklevel=3)  # who called log_prob
        return inside

    def _why_outside(self, value: np.ndarray) -> str | None:
        if not np.issubdtype(value.dtype, np.integer):
            return None
        if value.shape[-1] < self.min_size:
            room = f"has room for {value.shape[-1]} items, but subsets have {self.min_size} at least"
            return f"value of shape {value.shape} {room}"
        if reason := why_no_subset(value, self.num_items):
            return reason
        if self._pinned is None or not not_jax_tracer(self._pinned):
            return None
        pinned = np.asarray(self._pinned)
        both = (value[..., :, None] == pinned[..., None, :]) & (value[..., :, None] < self.num_items)
        if both.any():
            item = np.broadcast_to(value[..., :, None], both.shape)[both][0]
            return f"a value has item {item}, which is included already: values are of the other items"
        return None

    def contains(self, value: Array) -> Array:
        """Which of the values (..., m) are in the support, beside the pinned items."""
        inside = self.support(value)
        if self._pinned is None:
            return inside
        together, (low, high) = self.with_pinned(value), self.whole_sizes
        size = jnp.sum(together < self.num_items, axis=-1)
        return inside & (size >= low) & (size <= high) & are_distinct(together, self.num_items)

    def with_pinned(self, subsets: Array) -> Array:
        """The subsets (..., m) and the pinned items, increasing."""
        return subsets if self._pinned is None else sorted_together(subsets, self._pinned)
