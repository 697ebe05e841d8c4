"""The names of items: checked, and looked up."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from numpyro_ndpp.baskets import with_names
from numpyro_ndpp.checks import static_int

__all__ = ["catalogue_of", "item_names", "numbers_of_items"]

_MOST_SHOWN = 3


def item_names(items: Iterable[Any]) -> list[str]:
    """The names of all items as texts.

    :raises TypeError: for one text in place of names, and for a name that is a list itself.
    :raises ValueError: for a name that ends in a null byte.

    >>> item_names(("tea", 7))
    ['tea', '7']
    """
    if isinstance(items, (str, bytes)):
        raise TypeError(f"items must be the names of all items, got one text, {items!r}")
    names = list(items)
    nested = [name for name in names if np.ndim(name)]
    if nested:
        raise TypeError(f"items must be a name for each item, got {nested[0]!r} for one")
    ended = [name for name in names if isinstance(name, (str, bytes)) and name[-1:] in ("\0", b"\0")]
    if ended:
        raise ValueError(f"items: {ended[0]!r} ends in a null byte, which a file of names does not keep")
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def numbers_of_items(name: str, given: Iterable[Any], num_items: int, items: Sequence[str] | None) -> list[int]:
    """The numbers of items that are given by name or by number.

    A text is a name. Where items have no names, or none that reads so, a text of digits is a number.

    :param name: the argument, for messages.
    :param items: the names of all items, or None.
    :raises ValueError: for a name that no item has, or several, a number out of range, an item that is given twice.
    :raises TypeError: for one text in place of several items, and for what is neither a name nor a number.

    >>> numbers_of_items("basket", ["milk", 0], 3, ["tea", "rum", "milk"])
    [2, 0]
    """
    if isinstance(given, (str, bytes)):
        raise TypeError(f"{name} must be a list of items, got one text, {given!r}; for one item give [{given!r}]")
    found = [_number(name, item, num_items, items) for item in given]
    repeated = [item for i, item in enumerate(found) if item in found[:i]]
    if repeated:
        raise ValueError(f"{name} has {repeated[0] if items is None else repr(items[repeated[0]])} more than once")
    return found


def _number(name: str, item: Any, num_items: int, items: Sequence[str] | None) -> int:
    if not isinstance(item, str):
        try:
            return static_int(f"{name} (an item)", item, 0, num_items - 1, "the last item")
        except ValueError as error:
            raise error if isinstance(item, (int, np.integer)) else TypeError(str(error)) from None
    places = [] if items is None else [i for i, other in enumerate(items) if other == item]
    if len(places) == 1:
        return places[0]
    if places:
        raise ValueError(f"{name}: {item!r} is the name of items {', '.join(map(str, places))}; give a number")
    if item.isdecimal():
        return static_int(f"{name} (an item)", int(item), 0, num_items - 1, "the last item")
    if items is None:
        raise ValueError(f"{name}: {item!r} is no item number, and the items have no names")
    raise ValueError(f"{name}: no item is called {item!r}{_like(item, items)}")


def _like(item: str, items: Sequence[str]) -> str:
    """The end of a sentence with names that are much the same; empty if there are none."""
    by_lower = {other.lower(): other for other in reversed(items)}
    held = [other for other in items if item.lower() in other.lower()]
    near = [by_lower[other] for other in difflib.get_close_matches(item.lower(), by_lower, _MOST_SHOWN)]
    shown = list(dict.fromkeys([*near, *held]))[:_MOST_SHOWN]
    return f"; there is {' or '.join(map(repr, shown))}" if shown else ""


def catalogue_of(baskets: Any, num_items: int | None, items: Iterable[Any] | None) -> tuple[int, list[str] | None]:
    """The number of items, and their names if these are known: as given, or as they come with the baskets.

    :param baskets: of any form of :mod:`numpyro_ndpp.baskets`.
    :raises ValueError: if nothing says how many items there are, or two things say it differently.
    """
    plain, own = with_names(baskets)
    names = own if items is None else item_names(items)
    if own is not None and names != own:
        raise ValueError("items has other names than the baskets have; leave it out, or give baskets without names")
    if num_items is not None:
        num_items = static_int("num_items", num_items, 1)
        if names is not None and len(names) != num_items:
            raise ValueError(f"num_items is {num_items}, but there are the names of {len(names)} items")
        return num_items, names
    if names is not None:
        return len(names), names
    if hasattr(plain, "tocsr") or getattr(plain, "dtype", None) == np.bool_:
        return plain.shape[1], None
    raise ValueError(
        "num_items must be given for baskets without names: the number of items, or items= with the name of every item"
    )
