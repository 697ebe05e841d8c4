"""Checks of arguments. Every error names the argument, what is allowed and what was given."""

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution

from numpyro_ndpp.devices import with_auto_axes

__all__ = ["check_distribution", "check_is_small", "finite_float", "floating", "static_int"]


def static_int(name: str, value: Any, low: int, high: int | None = None, meaning: str = "") -> int:
    """``value`` as a Python int from low to high, which may have a meaning; None is no limit.

    :raises ValueError: for a number outside of them, and for what is no integer: a boolean, or a traced value.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ValueError(f"{name} must be a Python integer, got {value!r}")
    if number < low or (high is not None and number > high):
        limits = f"at least {low}" if high is None else f"between {low} and {meaning and f'{meaning} = '}{high}"
        raise ValueError(f"{name} must be {limits}, got {number}")
    return number


def finite_float(name: str, value: Any, low: float, high: float = math.inf, *, exclusive: bool = False) -> float:
    """``value`` as a finite Python float from low to high; an exclusive limit is not allowed itself.

    :raises ValueError: for a number outside of them, an infinity or NaN, and for what is no number: a boolean, a text.
    """
    try:
        number = math.nan if isinstance(value, (bool, np.bool_, str)) else float(value)
    except (TypeError, OverflowError):
        number = math.nan
    inside = low < number < high if exclusive else low <= number <= high
    if not (inside and math.isfinite(number)):
        limits = f"above {low}" if exclusive else f"at least {low}"
        if high < math.inf:
            limits += f" and below {high}" if exclusive else f" and at most {high}"
        raise ValueError(f"{name} must be a finite number {limits}, got {value!r}")
    return number


def check_distribution(dist: Any, kind: type[Distribution]) -> None:
    """Refuse all but a single distribution of the kind: SubsetDistribution, whose own module imports this one.

    :raises TypeError: for anything else.
    :raises ValueError: for a batch of them.
    """
    if not isinstance(dist, kind):
        raise TypeError(f"dist must be an NDPP or KNDPP, or one of these conditioned, got {type(dist).__name__}")
    if dist.batch_shape:
        raise ValueError(f"dist must be one distribution, got a batch of shape {dist.batch_shape}")


# A matrix of n × n numbers has 134 MB then, in double precision.
_MOST_DENSE = 4096


def check_is_small(name: str, num_items: int) -> None:
    """Refuse a matrix with a row and a column for each of many items.

    :raises ValueError: for more than 4,096 items.
    """
    if num_items > _MOST_DENSE:
        raise ValueError(
            f"{name} has n × n numbers, and is for n = {_MOST_DENSE} items at most, got {num_items}; larger catalogues "
            "go by their features"
        )


def _put(array: ArrayLike) -> Array:
    """As ``jnp.asarray``, which compiles a program for every shape of what comes from NumPy. Always a copy of that."""
    if isinstance(array, np.ndarray) and jax.sharding.get_abstract_mesh().empty:
        return jax.device_put(array.copy())
    return jnp.asarray(array)  # over all devices of an ambient mesh


def floating(*arrays: ArrayLike) -> tuple[Array, ...]:
    """The arrays in one floating type. Concrete ones stay concrete inside jit, so that they can be validated there.

    :raises TypeError: for what is no array: a text, lists of different lengths.
    :raises ValueError: for complex numbers.
    """
    with jax.ensure_compile_time_eval():
        try:
            converted = [with_auto_axes(_put(array)) for array in arrays]
        except (TypeError, ValueError) as error:
            raise TypeError(f"the kernel's parameters must be arrays of numbers: {error}") from None
        dtype = jnp.result_type(*converted)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            raise ValueError(f"the kernel's parameters must be real, got {dtype}")
        # Determinants come in no type of less than 32 bits.
        dtype = jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else jnp.result_type(float)
        return tuple(array.astype(dtype) for array in converted)
