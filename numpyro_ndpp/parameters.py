"""The parameters of a kernel as they are given: arrays of one type, their shapes, and the sizes that they allow."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from numpyro.distributions import Distribution
from numpyro.util import not_jax_tracer

from numpyro_ndpp.checks import floating, static_int
from numpyro_ndpp.devices import is_spread

__all__ = [
    "Shape",
    "factors_of",
    "fixed_size",
    "matrix_shape",
    "parts_of",
    "size_limits",
    "size_logits_of",
    "why_invalid",
]

Shape = tuple[int, ...]


def matrix_shape(name: str, shape: Shape) -> tuple[int, int]:
    """The rows and columns of a matrix, or of each of a batch.

    :raises ValueError: for less than two dimensions.
    """
    if len(shape) < 2:
        raise ValueError(f"{name} must be a matrix (or a batch of matrices), got shape {shape}")
    return shape[-2], shape[-1]


def _broadcast_batch(**shapes: Shape) -> Shape:
    try:
        return lax.broadcast_shapes(*(shape[:-2] for shape in shapes.values()))
    except ValueError as error:
        given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"the batch dimensions of {given} do not broadcast") from error


def parts_of(
    V: ArrayLike, B: ArrayLike | None, D: ArrayLike | None
) -> tuple[tuple[Array, Array, Array], Shape, tuple[int, int]]:
    """V, B, D in one type, the batch's shape, and the numbers of items and of features.

    Without B and D these have no columns. They are arrays all the same: every kernel has the same leaves.

    :raises ValueError: for B without D or D without B, and for shapes that do not fit together.
    """
    if (B is None) != (D is None):
        given: Any = B if D is None else D
        name, missing = ("B", "D") if D is None else ("D", "B")
        raise ValueError(
            f"{missing} is missing: B and D come together or not at all, got {name} of shape {np.shape(given)} alone; "
            "a size k goes by its name"
        )
    if B is None or D is None:
        n, _ = matrix_shape("V", np.shape(V))
        B, D = np.zeros((n, 0), bool), np.zeros((0, 0), bool)  # of the narrowest type, so that V's is the result's
    V, B, D = floating(V, B, D)
    (n, d1), (n_b, d2) = matrix_shape("V", V.shape), matrix_shape("B", B.shape)
    if n != n_b:
        raise ValueError(f"V and B must have one row per item each, got V of shape {V.shape} and B of shape {B.shape}")
    if matrix_shape("D", D.shape) != (d2, d2):
        raise ValueError(
            f"D must be square with one row per column of B, got D of shape {D.shape} and B of shape {B.shape}"
        )
    if n == 0 or d1 + d2 == 0:
        raise ValueError(
            f"V and B must have a row and a column at least, got V of shape {V.shape} and B of shape {B.shape}"
        )
    return (V, B, D), _broadcast_batch(V=V.shape, B=B.shape, D=D.shape), (n, d1 + d2)


def factors_of(X: ArrayLike, W: ArrayLike | None) -> tuple[tuple[Array, Array], Shape, tuple[int, int]]:
    """X and W in one type, W the identity unless given, the batch's shape, and the numbers of items and of features.

    :raises ValueError: for shapes that do not fit together.
    """
    if W is None:
        _, d = matrix_shape("X", np.shape(X))
        W = np.eye(d, dtype=bool)
    X, W = floating(X, W)
    n, d = matrix_shape("X", X.shape)
    if matrix_shape("W", W.shape) != (d, d):
        raise ValueError(
            f"W must be square with one row per column of X, got W of shape {W.shape} and X of shape {X.shape}"
        )
    if n == 0 or d == 0:
        raise ValueError(f"X must have a row and a column at least, got shape {X.shape}")
    return (X, W), _broadcast_batch(X=X.shape, W=W.shape), (n, d)


def size_limits(min_size: Any, max_size: Any, n: int, d: int) -> tuple[int, int]:
    """The smallest and the largest size, of n items with d features."""
    most = min(n, d)
    high = most if max_size is None else static_int("max_size", max_size, 0, most, f"min(num_items={n}, rank={d})")
    return static_int("min_size", min_size, 0, high, "max_size"), high


def fixed_size(k: Any, n: int, d: int) -> tuple[int, int]:
    """The size k twice, as the smallest and the largest one.

    :raises ValueError: for k out of range, no integer, or missing.
    """
    if k is None:
        raise ValueError("k must be a Python integer, the number of items of a subset; it is missing")
    size = static_int("k", k, 0, min(n, d), f"min(num_items={n}, rank={d})")
    return size, size


@functools.partial(jax.jit, static_argnums=1)
def _log_probs_of_sizes(size: Distribution, largest: int) -> Array:
    """Of the sizes 0 .. largest (..., largest+1)."""
    sizes = jnp.arange(largest + 1).reshape(-1, *(1,) * len(size.batch_shape))
    # Out of its support a distribution may say anything.
    inside = size.support(sizes)
    log_probs = jnp.where(inside, size.log_prob(jnp.where(inside, sizes, 0)), -jnp.inf)
    return jnp.moveaxis(log_probs, 0, -1)


def size_logits_of(
    size_logits: Any, min_size: Any, max_size: Any, n: int, d: int, dtype: Any
) -> tuple[Array, tuple[int, int]]:
    """The logarithms of the weights of the sizes 0 .. max_size (..., max_size+1), and the limits on the size.

    :param size_logits: these logarithms, or a NumPyro distribution over the sizes.
    :raises ValueError: for sizes beyond min(n, d), a distribution that is no discrete one, and nothing at all.
    """
    if isinstance(size_logits, Distribution):
        low, high = size_limits(min_size, max_size, n, d)
        if not size_logits.is_discrete or size_logits.event_shape:
            raise ValueError(f"size_logits must be of sizes, which are integers, got the distribution {size_logits}")
        return _log_probs_of_sizes(size_logits, high).astype(dtype), (low, high)
    if size_logits is None or np.ndim(size_logits) == 0 or np.shape(size_logits)[-1] == 0:
        what = "it is missing" if size_logits is None else f"got shape {np.shape(size_logits)}"
        raise ValueError(f"size_logits must be the logarithms of the weights of the sizes 0, 1, ..., {what}")
    largest, most = np.shape(size_logits)[-1] - 1, min(n, d)
    if largest > most:
        raise ValueError(
            f"size_logits has the sizes 0 to {largest}, but no subset has more than min(num_items={n}, rank={d}) items"
        )
    limits = size_limits(min_size, largest if max_size is None else max_size, n, d)
    if limits[1] > largest:
        raise ValueError(f"max_size is {limits[1]}, but size_logits has the sizes 0 to {largest}")
    return jnp.asarray(size_logits, dtype)[..., : limits[1] + 1], limits


def _why_no_log_weights(known: np.ndarray) -> str | None:
    bad = ~(known < np.inf)
    if bad.any():
        *_, size = map(int, np.unravel_index(np.argmax(bad), bad.shape))
        return f"size_logits must be real numbers or -inf, got {known[bad][0]} for size {size}"
    if (known == -np.inf).all(axis=-1).any():
        return "size_logits must allow for one size at least, got -inf throughout"
    return None


def why_invalid(arguments: dict[str, Any]) -> str | None:
    """What is wrong with the first of the matrices, by their names, that may not be: in words, where it is seen."""
    for name, value in arguments.items():
        if not not_jax_tracer(value):
            continue
        if is_spread(value):  # no host has the whole of it
            if not bool(lax.is_finite(value).all()):
                return f"{name} must be finite, but has infinities or NaN"
            continue
        known = np.asarray(value)
        if name == "size_logits":
            if reason := _why_no_log_weights(known):
                return reason
            continue
        bad = ~np.isfinite(known)
        if bad.any():
            *batch, row, column = map(int, np.unravel_index(np.argmax(bad), bad.shape))
            where = f"row {row}, column {column}" + (f", of kernel {tuple(batch)} in the batch" if batch else "")
            more = f"; {bad.sum()} entries are not" if bad.sum() > 1 else ""
            return f"{name} must be finite, got {known[(*batch, row, column)]} in {where}{more}"
        if name == "W":
            smallest = np.linalg.eigvalsh((known + np.swapaxes(known, -2, -1)) / 2).min()
            if smallest < 0:
                return (
                    "W must have a positive semidefinite symmetric part, got one with the eigenvalue "
                    f"{smallest:.3g}: then some subsets have a negative determinant"
                )
    return None
