r"""Items with features: rows of a kernel that are a function of what is known of an item, plus a part of its own.

With F (n, p) what is known of the items, such as the words of their names, the rows of V and of B are

.. math:: v_i = \sqrt{μ_i/N}\, \big((1 + F_i w)\, a_i + F_i A + r_i\big), \qquad
          b_i = \sqrt{μ_i/N}\, \big(R_i F_i A' + r'_i\big),

with μ_i, N and the anchor a_i of :mod:`numpyro_ndpp.priors`. The own parts r_i and r'_i are normal with the variances
1/2α and 1/2β that the rows have there, and the entries of w, A and A' are normal with variance 1/2λ. Items that are
alike share what is learned of them.

R_i turns each pair of columns of B by an angle of item i, drawn once. Without it features could hardly say that items
belong together: two items attract by (b_iᵀ (D - Dᵀ) b_j)², which is zero if their rows of B are the same. With it the
features say in which pairs of columns an item is, and items that are in the same pair attract by the sine of the angle
between them. A fit starts from a D - Dᵀ with ±1 for each pair of columns, which no turn changes. Likewise w says how
long the rows are, which F_i A could not, for the directions a_i are random.

An item that no basket has, a cold one, has the row that its features say, r_i = r'_i = 0. Two things about it are not
in the baskets. Whether it was on sale: here it was not, so it is left out of the distribution that is learned from, for
else the baskets without it would say that nobody wants it. And μ_i, how often it will be bought: here as often as other
items of such features, by a ridge regression of the log counts,

.. math:: \min_{c,u} \sum_{μ_i > 0} (\log μ_i - c - F_i u)^2 + ‖u‖² .
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, random
from jax.typing import ArrayLike
from numpyro.distributions import Normal, TransformedDistribution
from numpyro.distributions.transforms import AffineTransform

from numpyro_ndpp.linalg import matmul

__all__ = ["Features", "as_features", "centre_with_features", "counts_with_cold", "feature_sites", "feature_start"]

Features = ArrayLike | Callable[[str, int], Array]
_MAP, _LENGTH = "_map", "V_length"
_START_SKEW = 0.9  # the length of what features say of B in the beginning: at zero no gradient leads away


def as_features(features: Any, num_items: int) -> np.ndarray:
    """Features (n, p) as a fit takes them, (n, p+1) in float32: in a unit of their own, and 1 for what all items share.

    They are divided by the root mean square of the length of their rows.

    :raises ValueError: for another shape, entries that are not finite, and features that are zero throughout.
    :raises TypeError: for what is no array of numbers.

    >>> as_features([[2, 0], [0, 2]], 2)
    array([[1., 0., 1.],
           [0., 1., 1.]], dtype=float32)
    """
    try:
        given = np.asarray(features)
        is_real = given.dtype.kind in "biuf"
    except ValueError:  # lists of different lengths
        is_real = False
    if not is_real:
        raise TypeError(f"features must be a matrix of numbers, a row for each item, got {type(features).__name__}")
    if given.ndim != 2 or len(given) != num_items or given.shape[1] == 0:
        raise ValueError(f"features must have a row for each of the {num_items} items, got shape {given.shape}")
    if not np.isfinite(given).all():
        row, column = np.argwhere(~np.isfinite(given))[0]
        raise ValueError(f"features must be finite, got {given[row, column]} in row {row}, column {column}")
    exact = given.astype(np.float64)
    length = np.sqrt(np.mean(np.sum(exact**2, axis=1)))
    if not length > 0:
        raise ValueError("features must not be zero throughout")
    return np.append(exact / length, np.ones((num_items, 1)), axis=1).astype(np.float32)


def counts_with_cold(counts: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Counts (n,) in float32, and in place of zeros what the features let expect: a ridge regression of the log counts.

    The expected ones are within the range of the others. O(m p² + p³) for m items with a count.

    >>> counts_with_cold(np.array([10, 10, 0, 0]), np.eye(4)).round()  # nothing tells items apart: a typical count
    array([10., 10., 10., 10.], dtype=float32)
    """
    is_cold = counts == 0
    if is_cold.all():
        return np.ones(len(counts), np.float32)
    F, logs = features[~is_cold].astype(np.float64), np.log(counts[~is_cold])
    centred = F - F.mean(axis=0)
    u = np.linalg.solve(centred.T @ centred + np.eye(F.shape[1]), centred.T @ (logs - logs.mean()))
    expected = np.exp(np.clip(logs.mean() + (features - F.mean(axis=0)) @ u, logs.min(), logs.max()))
    return np.where(is_cold, expected, counts).astype(np.float32)


def _pace(F: Array) -> Array:
    """What the steps of A are divided by: Adam's, one for every entry, move F_i A no faster than they move r_i."""
    return jnp.maximum(jnp.mean(jnp.sum(jnp.abs(F), axis=1)), 1.0)


def centre_with_features(
    name: str, anchor: Array, features: Features, angles: ArrayLike | None, strength: ArrayLike
) -> Array:
    """What the rows of V or B are centred on (n, columns), in units of √(μ_i/N), with the sites of w and A.

    :param anchor: a_i, or zeros (n, columns).
    :param features: F (n, p), or a function of the user that has the name and the columns and says the rows itself,
        with sites of its own.
    :param angles: of each item for each pair of columns of B (n, columns // 2).
    :raises ValueError: for features or angles of another shape.
    """
    n, columns = anchor.shape
    if callable(features):
        return anchor + jnp.asarray(features(name, columns))
    F = jnp.asarray(features, anchor.dtype)
    if F.ndim != 2 or len(F) != n:
        raise ValueError(f"features must have a row for each of the {n} items, got shape {F.shape}")
    deviation, zeros = (2 * jnp.asarray(strength)[..., None, None]) ** -0.5, jnp.zeros((F.shape[1], columns), F.dtype)
    slower = TransformedDistribution(Normal(zeros, deviation * _pace(F)), AffineTransform(0.0, 1 / _pace(F)))
    said = matmul(F, numpyro.sample(name + _MAP, slower.to_event(2)))
    if name == "V":
        w = numpyro.sample(_LENGTH, Normal(zeros[:, 0], deviation[..., 0]).to_event(1))
        return (1 + matmul(F, w[..., None])) * anchor + said
    return said if angles is None else _turned(said, jnp.asarray(angles, said.dtype))


def _turned(rows: Array, angles: Array) -> Array:
    """Each pair of columns of the rows (..., n, c) by its angle (n, c // 2); the last of an odd number stays."""
    *_, n, columns = rows.shape
    if angles.shape != (n, columns // 2):
        raise ValueError(f"angles must have shape {(n, columns // 2)}, got {angles.shape}")
    even = columns // 2 * 2
    x, y, cos, sin = rows[..., 0:even:2], rows[..., 1:even:2], jnp.cos(angles), jnp.sin(angles)
    turned = jnp.stack([x * cos - y * sin, x * sin + y * cos], axis=-1)
    return jnp.concatenate([turned.reshape(*rows.shape[:-1], even), rows[..., even:]], axis=-1)


def feature_sites(rows: tuple[str, ...]) -> tuple[str, ...]:
    """The sites of features for these rows, as SVI has them: ``V_map_base``, ``B_map_base`` and ``V_length``."""
    return (*(name + _MAP + "_base" for name in rows), _LENGTH)


def feature_start(key: Array, values: dict[str, Array], anchor: float, F: Array, cold: Array) -> dict[str, Array]:
    """Where a fit with features starts, given where it would start without: from the anchors, and from a random A'.

    :param anchor: the length of the anchors; where V starts further from zero, the difference is the items' own part.
    :param cold: the items that have no part of their own.
    """
    V = values["V_base"]
    length = jnp.maximum(jnp.linalg.norm(V, axis=1, keepdims=True), jnp.finfo(V.dtype).tiny)
    own = (V * (1 - anchor / length)).at[cold].set(0.0)
    start = {"V_base": own, "V_map_base": jnp.zeros((F.shape[1], V.shape[1]), V.dtype)}
    start[_LENGTH] = jnp.zeros(F.shape[1], V.dtype)
    if "B_base" in values:
        columns = values["B_base"].shape[1]
        A = random.normal(key, (F.shape[1], columns), V.dtype) * (_pace(F) * _START_SKEW / max(columns, 1) ** 0.5)
        first = jnp.arange(columns // 2) * 2
        D = jnp.zeros((columns, columns), V.dtype).at[first, first + 1].set(1.0)
        start |= {"B_base": jnp.zeros_like(values["B_base"]), "B_map_base": A, "D": D}
    return start
