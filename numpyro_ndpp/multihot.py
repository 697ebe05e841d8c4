"""A distribution of subsets over vectors of zeros and ones: the same one, seen as a random 0/1 vector."""

import reprlib
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.batch_util import promote_batch_shape, vmap_over
from numpyro.distributions.util import validate_sample

from numpyro_ndpp.parameters import Shape
from numpyro_ndpp.subsets import items_of_mask, to_multihot

__all__ = ["Multihot"]


@partial(jax.jit, static_argnums=1)
def _items_of_value(value: Array, width: int) -> Array:
    """Padded subsets (..., width) of vectors (..., n) of zeros and ones; -1 throughout for other vectors."""
    is_inside = jnp.all((value == 0) | (value == 1), axis=-1)
    return items_of_mask(jnp.where(is_inside[..., None], value.astype(jnp.int32), -1), width)


def _numbers(value: Any) -> Array | np.ndarray:
    is_text = isinstance(value, np.ndarray) and value.dtype.kind in "USO"
    if is_text or any(isinstance(entry, (str, bytes)) for entry in jax.tree.leaves(value)):
        raise TypeError(f"value must be vectors of zeros and ones, got {reprlib.repr(value)}")
    return value if isinstance(value, np.ndarray) else jnp.asarray(value)


class Multihot(Distribution):
    """A subset distribution over vectors (..., n) of zeros and ones, as its ``multihot()`` gives it.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> ndpp = NDPP(jnp.eye(3))
    >>> [f"{p:.3f}" for p in ndpp.multihot().mean]
    ['0.500', '0.500', '0.500']
    >>> f"{jnp.exp(ndpp.multihot().log_prob(jnp.array([1, 0, 1]))):.3f}"
    '0.125'
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("base_dist",)
    reparametrized_params: ClassVar[list[str]] = []
    support = constraints.independent(constraints.boolean, 1)
    base_dist: Any

    def __init__(self, base_dist: Any, *, validate_args: bool | None = None) -> None:
        self.base_dist = base_dist
        super().__init__(base_dist.batch_shape, (base_dist.num_items,), validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:
        return False

    def sample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draws of shape ``sample_shape + batch_shape + (n,)``, int32."""
        return to_multihot(self.base_dist.sample(key, sample_shape), self.base_dist.num_items)

    def _validate_sample(self, value: Any) -> Any:
        return super()._validate_sample(_numbers(value))

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: list[Any] | None = None) -> Array:
        """Log-probability of vectors (..., n) of zeros and ones; -inf for one of a size that is not allowed.

        :raises TypeError: for what is no array of numbers.
        :raises ValueError: for vectors of another length.
        """
        value = _numbers(value)
        n = self.base_dist.num_items
        if value.shape[-1:] != (n,):
            raise ValueError(f"value must have one entry for each of the {n} items, got shape {value.shape}")
        # Where only the empty subset is allowed, there is room for an item all the same, to say that it is too many.
        items = _items_of_value(value, max(1, self.base_dist.max_size))
        self.base_dist.log_normalizer  # noqa: B018 - kept there, for the next call; a copy would not hand it back
        # A vector with too many ones has no items here. It is not to be warned of: only this view knows what was given.
        return self.base_dist.bare().log_prob(items)

    @property
    def mean(self) -> Array:
        """The inclusion probabilities."""
        return self.base_dist.inclusion_probs()

    @property
    def variance(self) -> Array:
        """p (1 - p) of the inclusion probabilities p."""
        p = self.mean
        return p * (1 - p)

    @property
    def mode(self) -> Array:
        """The greedy MAP subset."""
        return to_multihot(self.base_dist.mode, self.base_dist.num_items)


@vmap_over.register
def _vmap_over_multihot(dist: Multihot, **axes: int | None) -> Any:
    return vmap_over.dispatch(Distribution)(dist, base_dist=vmap_over(dist.base_dist, **axes))


@promote_batch_shape.register
def _promote_batch_shape_multihot(dist: Multihot) -> Multihot:
    return Multihot(promote_batch_shape(dist.base_dist), validate_args=dist._validate_args)
