"""What a condition asks for, checked: items that are in every subset, and items that are in none."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from numpyro.util import not_jax_tracer

from numpyro_ndpp.subsets import check_items

__all__ = ["Condition", "are_distinct", "sorted_together"]


@jax.jit
def sorted_together(subsets: Array, more: Array) -> Array:
    """Sets of items (..., m) and (..., j) in one, increasing (..., m+j)."""
    lead = lax.broadcast_shapes(subsets.shape[:-1], more.shape[:-1])
    subsets, more = (jnp.broadcast_to(part, lead + part.shape[-1:]) for part in (subsets, more))
    return jnp.sort(jnp.concatenate([subsets, more.astype(subsets.dtype)], axis=-1), axis=-1)


def are_distinct(items: Array, num_items: int) -> Array:
    """Which of the sets of items (..., m), increasing and padded, hold no item twice."""
    return jnp.all((items[..., 1:] > items[..., :-1]) | (items[..., 1:] >= num_items), axis=-1)


class Conditionable(Protocol):
    """What is asked about a distribution."""

    whole_sizes: tuple[int, int]
    num_certain: int

    @property
    def num_items(self) -> int: ...

    @property
    def pinned(self) -> Array: ...

    @property
    def excluded(self) -> Array: ...


class Condition(NamedTuple):
    """The items that are pinned and excluded, those from before among them; None where there are none."""

    pinned: Array | None
    excluded: Array | None
    num_certain: int

    @classmethod
    def of(cls, dist: Conditionable, include: ArrayLike | None, exclude: ArrayLike | None) -> "Condition":
        """A distribution conditioned once more; see :meth:`numpyro_ndpp.NDPP.condition`."""
        n, (low, high), before = dist.num_items, dist.whole_sizes, dist.num_certain
        new, out = (
            check_items(name, jnp.zeros(0, jnp.int32) if items is None else items, n)
            for name, items in (("include", include), ("exclude", exclude))
        )
        is_known = not_jax_tracer(new)
        counts = np.sum(np.asarray(new) < n, axis=-1).reshape(-1) if is_known else np.zeros(1, int)
        least, most = int(counts.min(initial=new.shape[-1])), int(counts.max(initial=0))
        if low == high:
            if least < new.shape[-1] and is_known:
                raise ValueError(
                    f"include must have no padding where the size is fixed (it sets a shape), got {new.tolist()} for "
                    f"{n} items"
                )
            least = most = new.shape[-1]  # what is not seen cannot be padding either
        if before + most > high:
            already = f" beside {before} included before" if before else ""
            raise ValueError(f"include has {most} items{already}, but subsets have at most {high}")
        pinned, excluded = sorted_together(new, dist.pinned), sorted_together(out, dist.excluded)
        if not_jax_tracer(pinned) and not_jax_tracer(excluded):
            _check_apart(np.asarray(pinned), np.asarray(excluded), n)
        num_certain = before + least
        return cls(pinned if pinned.size else None, excluded if excluded.size else None, num_certain)


def _check_apart(pinned: np.ndarray, excluded: np.ndarray, n: int) -> None:
    repeated = (pinned[..., 1:] == pinned[..., :-1]) & (pinned[..., 1:] < n)
    if repeated.any():
        raise ValueError(f"include: item {int(pinned[..., 1:][repeated][0])} has been included already")
    both = (pinned[..., :, None] == excluded[..., None, :]) & (pinned < n)[..., :, None]
    if both.any():
        item = np.broadcast_to(pinned[..., :, None], both.shape)[both][0]
        raise ValueError(f"include and exclude both name item {int(item)}")
