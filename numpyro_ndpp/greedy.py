r"""Greedy MAP: a subset of large determinant, one item (or pair) after the other.

The gain of item a is det L_{A∪a} / det L_A = x_aᵀ W^A x_a, with the kernel conditioned on A,

.. math:: W^{A} = W - W X_A^\top (X_A W X_A^\top)^{-1} X_A W ,

which a rank-one update turns into W^{A∪a}. All gains together cost O(n d) a step, O(n d²) a run.

A nonsymmetric kernel can attract so strongly that no single item has a positive gain although pairs have (skew
kernels have minors of even size only). Then a pair joins: with M = tr(W^A C) W^A - W^A C W^A,

.. math:: \sum_b \det L^A_{\{a,b\}} = x_a^\top M x_a, \qquad
          \det L^A_{\{a,b\}} = (x_a^\top W^A x_a)(x_b^\top W^A x_b) - (x_a^\top W^A x_b)(x_b^\top W^A x_a) ,

a is the item of the largest sum, b the one of the largest determinant beside it.

References: Chen, Zhang and Zhou (2018), *Fast greedy MAP inference for determinantal point processes*, NeurIPS;
Gartrell et al. (2021), *Scalable learning and MAP inference for nonsymmetric determinantal point processes*, ICLR.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.branches import where_needed
from numpyro_ndpp.kernel import Kernel, quadratic_forms, row_of, rows_of
from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.minors import log_minor

# A gain is taken for zero within this many units of rounding of the terms that were subtracted to give it.
_ROUNDING_UNITS = 32


class _Run(NamedTuple):
    subset: Array  # (width,) in the order of joining
    size: Array
    W: Array  # (d, d) conditioned on the subset
    gains: Array  # (n,)
    scale: Array  # (n,) sum of the magnitudes that went into the gains
    stuck: Array
    visited: Array  # (width + 1,) whether the run passed through a subset of that size


def _is_member(subset: Array, n: int) -> Array:
    return jnp.zeros(n, bool).at[subset].set(True, mode="drop")


def _conditioned(kernel: Kernel, subset: Array) -> Array:
    """W^A for a padded subset A with det L_A > 0."""
    X, W, _ = kernel
    rows = rows_of(X, subset)
    left = matmul(rows, W)
    L = matmul(left, rows.T) + jnp.diag((subset >= len(X)).astype(X.dtype))
    return W - matmul(matmul(W, rows.T), jnp.linalg.solve(L, left))


def _best_pair(X: Array, C: Array, W: Array, member: Array, first: Array) -> tuple[Array, Array]:
    """Items (2,) of a pair of large determinant under the kernel X W Xᵀ, and that determinant (zero if to rounding).

    :param first: which items (n,) may be the first of the two.
    """
    eps = jnp.finfo(X.dtype).eps
    WC = matmul(W, C)
    sums = quadratic_forms(X, jnp.trace(WC) * W - matmul(WC, W))
    a = jnp.argmax(jnp.where(member | ~first, -jnp.inf, sums))
    x = row_of(X, a)
    product = jnp.dot(x, matmul(W, x)) * quadratic_forms(X, W)
    cross = matmul(X, matmul(W, x)) * matmul(X, matmul(W.T, x))
    minors = jnp.where(member.at[a].set(True), -jnp.inf, product - cross)
    b, best = jnp.argmax(minors), jnp.max(minors)
    rounding = _ROUNDING_UNITS * eps * row_of(jnp.abs(product) + jnp.abs(cross), b)
    return jnp.stack([a, b]), jnp.where(best > rounding, best, 0.0)


def _add(X: Array, run: _Run, items: Array) -> _Run:
    """The run with one or two items (2,), the second n if there is none, added to the subset."""
    n = len(X)
    rows = rows_of(X, items)
    left, right = matmul(rows, run.W), matmul(rows, run.W.T)
    E = matmul(left, rows.T) + jnp.diag((items >= n).astype(X.dtype))
    adjugate = jnp.array([[E[1, 1], -E[0, 1]], [-E[1, 0], E[0, 0]]])
    inverse = adjugate / (E[0, 0] * E[1, 1] - E[0, 1] * E[1, 0])
    column = matmul(X, matmul(right.T, inverse))  # (n, 2)
    row = matmul(X, left.T)
    count = jnp.sum(items < n)
    return _Run(
        subset=run.subset.at[run.size + jnp.arange(2)].set(items, mode="drop"),
        size=run.size + count,
        W=run.W - matmul(matmul(right.T, inverse), left),
        gains=run.gains - jnp.sum(column * row, axis=1),
        scale=run.scale + jnp.sum(jnp.abs(column * row), axis=1),
        stuck=jnp.asarray(False),
        visited=run.visited.at[run.size + count].set(True),
    )


def _greedy_run(
    kernel: Kernel, C: Array, pinned: Array, min_size: Array | int, max_size: Array | int, width: int
) -> _Run:
    """A run that takes the pinned items (j,) first, alone or each with the best partner."""
    X, W, _ = kernel
    n, eps = len(X), jnp.finfo(X.dtype).eps
    required = _is_member(pinned, n)

    def step(run: _Run) -> _Run:
        member = _is_member(run.subset, n)
        missing = required & ~member
        # For what is pinned and up to the smallest size any positive determinant will do, then it has to grow.
        threshold = jnp.where((run.size < min_size) | jnp.any(missing), 0.0, 1.0).astype(X.dtype)
        allowed = missing | ~jnp.any(missing)
        positive = (run.gains > _ROUNDING_UNITS * eps * run.scale) & ~member & allowed
        gains = jnp.where(positive, run.gains, -jnp.inf)
        best = jnp.argmax(gains)

        def pair() -> tuple[Array, Array]:
            items, minor = _best_pair(X, C, run.W, member, allowed)
            return items, (minor <= threshold) | (run.size + 2 > max_size)

        single = jnp.stack([best, jnp.asarray(n, best.dtype)]), jnp.asarray(False)
        items, stuck = where_needed(jnp.max(gains) <= threshold, pair, single)
        stopped = run._replace(stuck=jnp.asarray(True))
        return jax.tree.map(lambda a, b: jnp.where(stuck, a, b), stopped, _add(X, run, items))

    left = matmul(X, W)
    start = _Run(
        subset=jnp.full(width, n),
        size=jnp.asarray(0),
        W=W,
        gains=jnp.sum(left * X, axis=1),
        scale=jnp.linalg.norm(left, axis=1) * jnp.linalg.norm(X, axis=1),
        stuck=jnp.asarray(False),
        visited=jnp.zeros(width + 1, bool).at[0].set(True),
    )
    return lax.while_loop(lambda run: ~run.stuck & (run.size < max_size), step, start)


def _swap_one_for_pair(kernel: Kernel, C: Array, pinned: Array, subset: Array, size: Array) -> Array:
    """A subset one larger than the given one: the best that is had by dropping one item and adding a pair.

    A run that is one item short of its size with only pairs left to add has taken the wrong parity of single items.
    """
    X, n, width = kernel.X, kernel.num_items, len(subset)

    def without(i: Array) -> tuple[Array, Array]:
        rest = jnp.sort(subset.at[i].set(n))
        log_rest = log_minor(kernel, rest)
        possible = jnp.isfinite(log_rest) & (i < size) & ~jnp.isin(subset[i], pinned)
        conditioned = _conditioned(kernel, jnp.where(possible, rest, n))
        items, minor = _best_pair(X, C, conditioned, _is_member(rest, n), jnp.ones(n, bool))
        larger = rest.at[size - 1 + jnp.arange(2)].set(items, mode="drop")
        return larger, jnp.where(possible, log_rest + jnp.log(minor), -jnp.inf)

    subsets, log_minors = lax.map(without, jnp.arange(width))
    best = jnp.argmax(log_minors)
    return jnp.where(jnp.isfinite(log_minors[best]), subsets[best], subset)


def _repaired_run(
    kernel: Kernel, C: Array, pinned: Array, min_size: Array | int, max_size: Array | int, width: int
) -> tuple[Array, _Run]:
    """The items (width,) of a greedy run, and the run; if it ended one short of ``min_size``, a subset of that size."""
    run = _greedy_run(kernel, C, pinned, min_size, max_size, width)
    one_short = run.stuck & (run.size == min_size - 1) & (run.size > 0)
    swapped = partial(_swap_one_for_pair, kernel, C, pinned, run.subset, run.size)
    return where_needed(one_short, swapped, run.subset), run


def _positive_part(kernel: Kernel, subset: Array) -> Array:
    """The items of a run (w,), or as many of the first ones as have a positive minor.

    Beyond the kernel's rank gains are rounding, and a run may take some of them for more. The minors decide, as they do
    for the log-probability.
    """
    is_zero = log_minor(kernel, subset) == -jnp.inf
    return where_needed(is_zero, lambda: _longest_positive(kernel, subset), subset)


def _longest_positive(kernel: Kernel, subset: Array) -> Array:
    place = jnp.arange(len(subset))

    def prefix(size: Array) -> Array:
        return jnp.where(place < size, subset, kernel.num_items)

    sizes = 1 + place
    positive = lax.map(lambda size: log_minor(kernel, prefix(size)) > -jnp.inf, sizes)
    return prefix(jnp.max(jnp.where(positive, sizes, 0)))


@partial(jax.jit, static_argnames=("min_size", "max_size"))
def greedy_map(kernel: Kernel, C: Array, min_size: int, max_size: int) -> Array:
    """Greedy MAP subset (max_size,), increasing and padded with n.

    The run goes on while the determinant grows, and up to ``min_size`` while it stays positive; where it cannot go on
    the result is padded. O(n d) for an item, O(n d²) for a pair.
    """
    if max_size == 0:
        return jnp.zeros(0, jnp.int32)
    none = jnp.zeros(0, jnp.int32)
    items, _ = _repaired_run(kernel, C, none, min_size, max_size, max_size)
    return jnp.sort(_positive_part(kernel, items)).astype(jnp.int32)


def _others(items: Array, pinned: Array, n: int, width: int) -> Array:
    """The items (width,) beside the pinned ones, increasing; none at all if a pinned one is missing."""
    holds_all = jnp.all(jnp.isin(pinned, items) | (pinned >= n))
    others = jnp.sort(jnp.where(jnp.isin(items, pinned) | ~holds_all, n, items))
    return others[:width].astype(jnp.int32)


@partial(jax.jit, static_argnames=("width",))
def greedy_given(
    kernel: Kernel, C: Array, pinned: Array, min_size: Array | int, max_size: Array | int, width: int
) -> Array:
    """Greedy MAP subset (width,) of other items than the pinned ones (j,), beside these.

    :param min_size, max_size: of the whole, pinned items included.
    """
    items, _ = _repaired_run(kernel, C, pinned, min_size, max_size, width + len(pinned))
    return _others(_positive_part(kernel, items), pinned, kernel.num_items, width)


def greedy_subsets(kernel: Kernel, C: Array, possible: Array, pinned: Array) -> Array:
    """A greedy subset of every size 0 .. m in the rows of an array (m+1, m), padded with n.

    :param possible: (m+1,) the sizes of which a subset is wanted; the others are left as they come.
    :param pinned: items (j,), padded with n, beside which they stand and which are not counted.

    The first items of a long run are the run for a smaller size, except in the middle of a pair and beyond its end.
    Sizes that it did not pass through get a run of their own.
    """
    n, most = kernel.num_items, len(possible) - 1
    number, width = jnp.sum(pinned < n), most + len(pinned)

    def of_size(longest: tuple[Array, Array], argument: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        size, wanted = argument
        is_longest = size == most + number

        def anew() -> tuple[Array, Array, Array]:
            items, run = _repaired_run(kernel, C, pinned, size, size, width)
            return items, run.subset, run.visited

        by_longest = jnp.where(jnp.arange(width) < size, longest[0], n), *longest
        # The longest run comes first. It is traced together with the others: half the program.
        again = is_longest | (wanted & ~longest[1][size])
        items, *run = where_needed(again, anew, by_longest)
        items = jnp.where(log_minor(kernel, items) > -jnp.inf, items, n)
        first, second = (jnp.where(is_longest, new, old) for new, old in zip(run, longest, strict=True))
        return (first, second), _others(items, pinned, n, most)

    start = jnp.full(width, n), jnp.zeros(width + 1, bool)
    return lax.scan(of_size, start, (number + jnp.arange(most + 1), possible), reverse=True)[1]


@partial(jax.jit, static_argnames=("num_exchanges",))
def exchange(kernel: Kernel, subset: Array, num_exchanges: int) -> Array:
    r"""At most ``num_exchanges`` swaps of a member for an outsider, each the one that raises det L_S most.

    With K = L_S⁻¹ all swaps are judged at once, O(n k d + n k²) a swap:
    :math:`\det L_{S \setminus i \cup a} / \det L_S = K_{ii}\, g_a + (K L_{Sa})_i (L_{aS} K)_i`, g_a the gain of a.
    """
    X, W, _ = kernel
    n = len(X)
    left = matmul(X, W)
    own = jnp.sum(left * X, axis=1)

    def swap(subset: Array, _: None) -> tuple[Array, None]:
        padding = subset >= n
        rows = rows_of(X, subset)
        L = matmul(matmul(rows, W), rows.T) + jnp.diag(padding.astype(X.dtype))
        K = jnp.linalg.inv(L)
        to_members = matmul(left, rows.T)  # L_{aS} (n, k)
        from_members = matmul(X, matmul(rows, W).T)  # L_{Sa} transposed (n, k)
        row, column = matmul(to_members, K), matmul(from_members, K.T)
        gains = own - jnp.sum(row * from_members, axis=1)
        ratios = jnp.diagonal(K) * gains[:, None] + row * column
        ratios = jnp.where(padding | _is_member(subset, n)[:, None], -jnp.inf, ratios)
        a, i = jnp.unravel_index(jnp.argmax(ratios), ratios.shape)
        swapped = jnp.sort(subset.at[i].set(a.astype(subset.dtype)))
        # The ratios of a nearly singular L_S are mostly rounding: the determinants have the last word.
        return jnp.where(log_minor(kernel, swapped) > log_minor(kernel, subset), swapped, subset), None

    possible = jnp.isfinite(log_minor(kernel, subset)) & (subset.size > 0)
    improved, _ = lax.scan(swap, jnp.where(possible, subset, n), length=num_exchanges)
    return jnp.where(possible, improved, subset)
