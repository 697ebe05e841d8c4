"""Checks of arguments that several modules share, with errors that name the argument and what is allowed."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from numpyro_ndpp.samplers.base import Sampler

__all__ = ["check_sampler", "floating", "static_int"]


def static_int(name: str, value: Any, low: int, high: int, meaning: str) -> int:
    """``value`` as a Python int between low and high, or a ValueError that says what is allowed."""
    try:
        number = operator.index(value)
    except (TypeError, jax.errors.JAXTypeError):
        raise ValueError(f"{name} must be a Python integer (it sets a shape), got {value!r}") from None
    if not low <= number <= high:
        raise ValueError(f"{name} must be between {low} and {meaning} = {high}, got {number}")
    return number


def check_sampler(sampler: Any) -> Sampler:
    """The sampler; raises ValueError unless this is a sampler instance: ``UpDown()``, not ``UpDown``."""
    if not isinstance(sampler, Sampler):
        raise ValueError(f"sampler must be a sampler such as UpDown() or Exact(), got {sampler!r}")
    return sampler


def floating(*arrays: ArrayLike) -> tuple[Array, ...]:
    """The arrays in one floating type. Concrete ones stay concrete inside jit, so that they can be validated there."""
    with jax.ensure_compile_time_eval():
        converted = [jnp.asarray(array) for array in arrays]
        dtype = jnp.result_type(*converted)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            raise ValueError(f"the kernel's parameters must be real, got {dtype}")
        # Determinants come in no type of less than 32 bits.
        dtype = jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else jnp.result_type(float)
        return tuple(array.astype(dtype) for array in converted)
