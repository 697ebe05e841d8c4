"""Rows of a matrix by their numbers, with a gradient that is the same every time.

The gradient adds up what belongs to one row. Where many threads do so at once, as on a GPU, they add in the order in
which they happen to come, and the sum differs in its last digits from run to run. Here the rows are sorted, the sums
are those of a tree, and every row of the result is written once.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.platforms import platform


@jax.custom_jvp
def take_rows(X: Array, numbers: Array) -> Array:
    """Rows (..., d) of X (n, d), zeros for a number of n or more."""
    return X.at[numbers].get(mode="fill", fill_value=0)


@take_rows.defjvp
def _take_rows_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    X, numbers = primals
    # A CPU adds one after the other in any case.
    take = take_rows if platform().is_cpu else take_rows_once
    return take_rows(X, numbers), take(tangents[0], numbers)


def take_rows_once(X: Array, numbers: Array) -> Array:
    """The same: each row is read once, and handed on along all places that ask for it. O(log) passes over the result.

    Read backwards, as a gradient is, that is a sum over these places, and then one addition to each row.
    """
    n, flat = len(X), numbers.reshape(-1)
    order = jnp.argsort(flat)
    ordered, place = flat[order], jnp.arange(len(flat), dtype=flat.dtype)
    is_first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    # Where nothing is to be read there are numbers past the end, no two of them alike.
    read = jnp.where(is_first & (ordered < n), ordered, n + place)
    rows = X.at[read].get(mode="fill", fill_value=0, unique_indices=True)

    def hand_on(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.where(right[1][:, None], right[0], left[0]), left[1] | right[1]

    handed, _ = lax.associative_scan(hand_on, (rows, is_first))
    back = jnp.zeros_like(order).at[order].set(place.astype(order.dtype), unique_indices=True)
    return handed.at[back].get(unique_indices=True).reshape(*numbers.shape, X.shape[1])
