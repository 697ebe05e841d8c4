"""How a subset is written down: padded vectors of item numbers, lists, and 0/1 vectors.

A padded subset is a vector of increasing int32 item numbers, filled up with ``num_items``, one past the last item. So
sorting keeps the fill at the end, and JAX's scattering drops it. A draw that could not be made is -1 throughout, which
is no subset.
"""

import reprlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpyro.util import not_jax_tracer

from numpyro_ndpp.baskets import Subsets, item_rows
from numpyro_ndpp.checks import static_int

__all__ = ["from_multihot", "pad_subsets", "to_multihot", "unpad_subsets"]


def pad_subsets(subsets: Subsets, num_items: int, width: int | None = None) -> Array:
    """Sets of items as one array of padded subsets.

    :param subsets: one list of item numbers for each subset, in any order, or any other form of
        :mod:`numpyro_ndpp.baskets`; an empty one is the empty set.
    :param num_items: the size n of the catalogue; items are 0 .. n-1.
    :param width: the length to pad to; by default that of the largest subset.
    :return: an int32 array (number of subsets, width), each row increasing and filled up with ``num_items``.
    :raises ValueError: for an item out of range, an item repeated within a subset, a subset longer than ``width``, or
        a number in place of a subset; the message names the row. Also for a matrix with entries other
        than zeros and ones, or with another number of columns.
    :raises TypeError: for items that are not integers, and for ``subsets`` that cannot be gone through.

    >>> pad_subsets([[2, 0], [], [3]], num_items=4)
    Array([[0, 2],
           [4, 4],
           [3, 4]], dtype=int32)
    """
    return jnp.asarray(as_padded("subsets", subsets, num_items, width))


def as_padded(name: str, subsets: Subsets, num_items: int, width: int | None = None) -> np.ndarray:
    """Baskets of any form of :mod:`numpyro_ndpp.baskets` as padded rows (s, m), int32. O(entries log entries).

    :raises ValueError: for items out of range or repeated, and for arrays of another form.
    :raises TypeError: for items that are not integers.
    """
    num_items = static_int("num_items", num_items, 0)
    rows = item_rows(name, subsets, num_items)
    lengths = np.array([row.size for row in rows], dtype=np.int64)
    longest = int(lengths.max(initial=0))
    width = longest if width is None else static_int("width", width, 0)
    if longest > width:
        i = int(np.argmax(lengths > width))
        raise ValueError(f"{name}: row {i} has {lengths[i]} items, which is more than the width of {width}")
    items = np.concatenate([np.zeros(0, np.int64), *(row.astype(np.int64, copy=False) for row in rows if row.size)])
    row_of = np.repeat(np.arange(len(rows)), lengths)
    bad = (items < 0) | (items >= num_items)
    if bad.any():
        j = int(np.argmax(bad))
        raise ValueError(f"{name}: row {row_of[j]} has item {items[j]}; items must be 0 to {num_items - 1}")
    order = np.lexsort((items, row_of))
    items = items[order]
    repeated = (items[1:] == items[:-1]) & (row_of[1:] == row_of[:-1])
    if repeated.any():
        j = int(np.argmax(repeated))
        # Rows as long as the catalogue, each with an item twice, are mostly no sets of items.
        way_out = "; a matrix of zeros and ones must be one array, and counts become one by matrix > 0"
        is_matrix = num_items > 0 and bool((lengths == num_items).all())
        raise ValueError(f"{name}: row {row_of[j]} has item {items[j]} more than once{way_out if is_matrix else ''}")
    padded = np.full((len(rows), width), num_items, np.int32)
    padded[np.arange(width) < lengths[:, None]] = items
    return padded


def unpad_subsets(values: ArrayLike, num_items: int) -> list:
    """Padded subsets (..., m) as lists of item numbers, nested as the leading dimensions are.

    :raises ValueError: for a row that is no subset, such as a draw that could not be made (-1 throughout).

    >>> unpad_subsets(jnp.array([[0, 2, 4], [4, 4, 4]]), num_items=4)
    [[0, 2], []]
    """
    values = np.asarray(values)
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"values: a padded subset has integer items, got {values.dtype}")
    if values.ndim > 1:
        return [unpad_subsets(row, num_items) for row in values]
    if values.size and (values.min() < 0 or values.max() > num_items):
        raise ValueError(f"values: {values.tolist()} is not a subset of {num_items} items")
    return values[values < num_items].tolist()


def to_multihot(values: ArrayLike, num_items: int) -> Array:
    """Padded subsets (..., m) as int32 vectors (..., n) of zeros and ones; -1 throughout where there is no subset.

    >>> to_multihot(jnp.array([0, 2, 4]), num_items=4)
    Array([1, 0, 1, 0], dtype=int32)
    """
    return _to_multihot(values if isinstance(values, np.ndarray) else jnp.asarray(values), num_items)


@partial(jax.jit, static_argnums=1)
def _to_multihot(values: Array, num_items: int) -> Array:
    def one(value: Array) -> Array:
        mask = jnp.zeros(num_items, jnp.int32).at[value].set(1, mode="drop")
        return jnp.where(jnp.any(value < 0), -1, mask)

    return jnp.vectorize(one, signature="(m)->(n)")(values)


@partial(jax.jit, static_argnums=1)
def items_of_mask(masks: Array, width: int) -> Array:
    """Padded subsets (..., width) of 0/1 vectors (..., n); -1 throughout for what is no subset or too large."""

    def one(mask: Array) -> Array:
        items = jnp.nonzero(mask, size=width, fill_value=len(mask))[0].astype(jnp.int32)
        return jnp.where((jnp.sum(mask != 0) > width) | jnp.any(mask < 0), -1, items)

    return jnp.vectorize(one, signature="(n)->(m)")(masks)


def from_multihot(masks: ArrayLike, width: int) -> Array:
    """0/1 vectors (..., n) as padded subsets (..., width).

    :param width: the length of the result; at least the number of ones.
    :raises ValueError: outside jit, for a vector with more than ``width`` ones. Under jit it gives -1 throughout.

    >>> from_multihot(jnp.array([[1, 0, 1, 0], [0, 0, 0, 0]]), width=3)
    Array([[0, 2, 4],
           [4, 4, 4]], dtype=int32)
    """
    masks = masks if isinstance(masks, np.ndarray) else jnp.asarray(masks)
    if not_jax_tracer(masks):
        known = np.asarray(masks)
        most = int((known != 0).sum(-1).max(initial=0))
        if most > width and not (known < 0).any():
            raise ValueError(f"masks: a vector has {most} ones, more than the width of {width}")
    return items_of_mask(masks, width)


def item_numbers(name: str, items: ArrayLike, advice: str = "") -> Array | np.ndarray:
    """Item numbers as an array (..., m), as they are.

    :param advice: the end of the message to those who give something else.
    :raises TypeError: if they are not integers, or no array: a text, lists of different lengths.
    :raises ValueError: for a single number.
    """
    try:
        given = items if isinstance(items, np.ndarray) else jnp.asarray(items)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"{name} must hold integer item numbers, got {reprlib.repr(items)}; for lists of different lengths use "
            "pad_subsets"
        ) from None
    if given.size == 0:
        given = given.astype(np.int32)  # of no items no type is wrong
    if not np.issubdtype(given.dtype, np.integer):
        raise TypeError(f"{name} must hold integer item numbers, got {given.dtype}{advice}")
    if given.ndim == 0:
        raise ValueError(f"{name} must have one dimension at least: the items of a set, got {items!r}")
    return given


def check_items(name: str, items: ArrayLike, num_items: int) -> Array:
    """Sets of items (..., m), padded with ``num_items``, in any order, as increasing int32 arrays.

    :raises TypeError: if they are not integers.
    :raises ValueError: outside jit, for an item out of range or repeated; the message names the argument and the item.
    """
    given = item_numbers(name, items)
    if not_jax_tracer(given):
        values = np.sort(np.asarray(given), axis=-1)  # before 32 bits make another item of one that is out of range
        bad = (values < 0) | (values > num_items)
        if bad.any():
            raise ValueError(
                f"{name} has item {values[bad][0]}; items must be 0 to {num_items - 1} ({num_items} is padding)"
            )
        repeated = (values[..., 1:] == values[..., :-1]) & (values[..., 1:] < num_items)
        if repeated.any():
            raise ValueError(f"{name} has item {values[..., 1:][repeated][0]} more than once")
        return jnp.asarray(values.astype(np.int32))
    return jnp.sort(jnp.asarray(given).astype(jnp.int32), axis=-1)


def why_no_subset(values: np.ndarray, num_items: int) -> str | None:
    """What is wrong with the first of the values (..., m) that is no padded subset, in words; None if all are.

    A subset of a size that a distribution does not allow is a subset all the same.
    """
    values = values.astype(np.int64)
    before, after = values[..., :-1], values[..., 1:]
    outside = (values < 0) | (values > num_items)
    bad = outside.any(axis=-1) | ~((before < after) | (after == num_items)).all(axis=-1)
    if not bad.any():
        return None
    index = tuple(map(int, np.unravel_index(np.argmax(bad), bad.shape)))
    value = values[index]
    name = f"value{list(index) if index else ''} = {reprlib.repr(value.tolist())}"
    in_order = np.sort(value[value < num_items])
    twice = in_order[1:][in_order[1:] == in_order[:-1]]
    if len(value) == num_items and ((value == 0) | (value == 1)).all():
        return f"{name} looks like a vector of zeros and ones: multihot() takes these, from_multihot converts them"
    if (value == -1).all():
        return f"{name} is a draw that could not be made"
    if outside[index].any():
        item = value[outside[index]][0]
        return f"{name} has item {item}; items are 0 to {num_items - 1}, and padding is {num_items}"
    if twice.size:
        return f"{name} has item {twice[0]} more than once; padding is {num_items}"
    return f"{name} is not increasing, with padding ({num_items}) at its end: pad_subsets sorts"
