r"""The fat-leaf tree: draws one of n items with probability proportional to a quadratic form, in O(d² log n).

A query is a matrix Q (d, d) with x_aᵀ Q x_a ≥ 0 for every item a. The mass of a set of items is

.. math:: \sum_{a} x_a^\top Q x_a = \langle Q, \Sigma \rangle, \qquad \Sigma = \sum_a x_a x_a^\top ,

so a binary tree whose nodes keep Σ of the items in their left half tells at every node how likely the left half is. The
tree ends in leaves of b items each, which are looked at one by one. A leaf of one item would take d times the memory of
X; with b of about d/2 the tree takes as much as X.

Only the symmetric part of Q matters and Σ is symmetric: both are kept as packed triangles.

References: Gillenwater, Kulesza, Mariet and Vassilvitskii (2019), *A tree-based method for fast repeated sampling of
determinantal point processes*, ICML; Han, Gartrell, Dohmatob and Karbasi (2022), *Scalable MCMC sampling for
nonsymmetric determinantal point processes*, ICML, appendix (fat leaves).
"""

import functools
import math
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.platforms import platform

# Σ of so many leaves at a time are computed unpacked.
_CHUNK_BYTES = 8 * 2**20
# A mass is taken for zero within this many units of rounding of the terms whose sum it is.
_ROUNDING_UNITS = 4
# Leaves have a multiple of so many items, as the tiles of a matrix product have.
_ALIGNMENT = 8


@partial(jax.tree_util.register_dataclass, data_fields=["X", "lefts"], meta_fields=["leaf_size"])
@dataclass(frozen=True)
class Tree:
    """Sums of x_a x_aᵀ over halves, quarters, ... of the items, and the features that they are sums of.

    Nodes are numbered as in a heap: the root is 1, the children of v are 2v and 2v + 1. Row v of ``lefts`` (leaves, p)
    is the packed sum over the left half of node v, row 0 that over all items. Leaf j holds the items j·b ..
    (j+1)·b - 1.
    """

    X: Array
    lefts: Array
    leaf_size: int = field(metadata={"static": True})

    @property
    def depth(self) -> int:
        """The number of levels above the leaves."""
        return len(self.lefts).bit_length() - 1

    @property
    def num_decisions(self) -> int:
        """How many random numbers a descent takes."""
        return 1 + self.depth

    @property
    def gram(self) -> Array:
        """C = XᵀX (d, d), the sum over all items."""
        return unpack(self.lefts[0], self.X.shape[1])


def pack(S: Array) -> Array:
    """The upper triangle of a symmetric matrix (..., d, d) as a vector (..., p), p = d(d+1)/2 for even d.

    Of the four quarters of S one is kept as it is, and the triangles of the two on the diagonal share a rectangle that
    is one column wider: slices, where a gather of the triangle would be slow. For odd d the matrix is filled up with a
    row and a column of zeros.
    """
    d = S.shape[-1]
    half = -(-d // 2)
    batch = [(0, 0)] * (S.ndim - 2)
    S = jnp.pad(S, [*batch, (0, 2 * half - d), (0, 2 * half - d)])
    first = jnp.pad(S[..., :half, :half], [*batch, (0, 0), (1, 0)])
    second = jnp.pad(S[..., half:, half:], [*batch, (0, 0), (0, 1)])
    row, column = jnp.arange(half)[:, None], jnp.arange(half + 1)
    rectangle = jnp.concatenate([S[..., :half, half:], jnp.where(column > row, first, second)], axis=-1)
    return rectangle.reshape(*S.shape[:-2], half * (2 * half + 1))


@functools.cache
def _places(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the entries of a packed triangle (p,) stand in the matrix, and those of the matrix (d, d) in it."""
    half = -(-d // 2)
    column = np.arange(half + 1)
    row = np.arange(half)[:, None]
    first = np.where(column > row, row, row + half)
    second = np.where(column > row, column - 1, column + half)
    rows = np.concatenate([np.broadcast_to(row, (half, half)), first], axis=1).reshape(-1)
    columns = np.concatenate([np.broadcast_to(np.arange(half) + half, (half, half)), second], axis=1).reshape(-1)
    inside = (rows < d) & (columns < d)
    from_triangle = np.zeros((d, d), np.int32)
    place = np.arange(len(rows))[inside]
    from_triangle[rows[inside], columns[inside]] = place
    from_triangle[columns[inside], rows[inside]] = place
    return np.where(inside, rows * d + columns, d * d).astype(np.int32), from_triangle


def unpack(packed: Array, d: int) -> Array:
    """The symmetric matrix (d, d) whose packed triangle is given."""
    return packed[_places(d)[1]]


def symmetric_part(Q: Array) -> Array:
    """½ (Q + Qᵀ), which is all that a query is about."""
    return 0.5 * (Q + Q.T)


def pack_query(S: Array) -> Array:
    """The vector q (p,) of a symmetric query S (d, d): q · pack(Σ) = ⟨S, Σ⟩ for every symmetric Σ."""
    d = len(S)
    place = _places(d)[0]
    weight = np.where(place % (d + 1) == 0, 1.0, 2.0)  # entries beside the diagonal count twice
    return S.reshape(-1).at[place].get(mode="fill", fill_value=0) * weight.astype(S.dtype)


def _depth(n: int, d: int, leaf_size: int | None) -> int:
    """The depth at which leaves have about d/2 items, or at most ``leaf_size`` (before they are rounded up)."""
    if leaf_size is None:
        return max(0, round(math.log2(2 * n / (d + 1))))
    return max(0, math.ceil(math.log2(n / leaf_size)))


def leaf_shape(n: int, d: int, leaf_size: int | None = None) -> tuple[int, int]:
    """The number of leaves, a power of two, and how many items are in each."""
    num_leaves = 2 ** _depth(n, d, leaf_size)
    size = -(-n // num_leaves)
    if size > _ALIGNMENT:
        size = min(n, -(-size // _ALIGNMENT) * _ALIGNMENT)
    return num_leaves, size


def sums_of_leaves(X: Array, num_leaves: int, size: int) -> Array:
    """The packed sums (leaves, p) of x_a x_aᵀ over the items of every leaf, a few megabytes of them at a time."""
    d = X.shape[1]
    chunk = min(num_leaves, 2 ** int(math.log2(max(1, _CHUNK_BYTES // (d * d * X.dtype.itemsize)))))

    def packed_sums(first: Array) -> Array:
        rows = X.at[first + jnp.arange(chunk * size)].get(mode="fill", fill_value=0)
        blocks = rows.reshape(chunk, size, d)
        return pack(matmul(jnp.swapaxes(blocks, 1, 2), blocks))

    sums = lax.map(packed_sums, jnp.arange(num_leaves // chunk) * (chunk * size))
    return sums.reshape(num_leaves, -1)


def build_tree(X: Array, leaf_size: int | None = None) -> Tree:
    """The tree over the items with features X (n, d).

    :param leaf_size: the most items in a leaf, from eight on rounded up to a multiple of eight. Default: about d/2,
        which gives a tree as large as X.

    O(n d²) time. Beside the tree itself the sums of the leaves are held, which are as large as X.
    """
    n, d = X.shape
    num_leaves, size = leaf_shape(n, d, leaf_size)
    sums = sums_of_leaves(X, num_leaves, size)
    lefts = jnp.zeros_like(sums)
    while len(sums) > 1:
        half = len(sums) // 2
        lefts = lefts.at[half : 2 * half].set(sums[0::2])
        sums = sums[0::2] + sums[1::2]
    return Tree(X, lefts.at[0].set(sums[0]), size)


def descend_to_leaf(tree: Tree, query: Array, uniforms: Array) -> Array:
    """A leaf, drawn with probability proportional to its mass under a packed query (p,), by a number for each level."""
    lefts, on_cpu = tree.lefts, platform().is_cpu

    def mass_of(row: Array | int) -> Array:
        return jnp.sum(lefts[row] * query)

    def two_levels(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        node, mass = carry
        first = tree.depth % 2 + 2 * number
        # A CPU waits longer for two products than it takes for three at once. An accelerator sums while it reads, reads
        # only the child that it needs, and stores no copy of what it read.
        products = matmul(lefts[jnp.stack([node, 2 * node, 2 * node + 1])], query) if on_cpu else None
        left = mass_of(node) if products is None else products[0]
        child, mass, goes_left = _choose_half(node, mass, left, uniforms[first])
        left = mass_of(child) if products is None else jnp.where(goes_left, products[1], products[2])
        return _choose_half(child, mass, left, uniforms[first + 1])[:2]

    # Rounding may leave a node with slightly less than nothing.
    carry = jnp.asarray(1), jnp.maximum(mass_of(0), 0.0)
    if tree.depth % 2:
        carry = _choose_half(*carry, mass_of(1), uniforms[0])[:2]
    if tree.depth > 1:
        carry = lax.fori_loop(0, tree.depth // 2, two_levels, carry)
    return carry[0] - len(lefts)


def _choose_half(node: Array, mass: Array, left: Array, uniform: Array) -> tuple[Array, Array, Array]:
    """The child of a node, its mass, and whether it is the left one."""
    left = jnp.clip(left, 0.0, mass)
    goes_left = uniform * mass < left
    return 2 * node + ~goes_left, jnp.where(goes_left, left, mass - left), goes_left


def leaf_items(tree: Tree, leaf: Array) -> tuple[Array, Array]:
    """The items (b,) of a leaf, n beyond the last item, and their features (b, d), zero there."""
    n, size = len(tree.X), tree.leaf_size
    # A slice must not reach beyond the end: it starts earlier there, and what belongs to the leaf before is blanked.
    first = jnp.minimum(leaf * size, n - size)
    items = first + jnp.arange(size)
    own = items >= leaf * size
    rows = lax.dynamic_slice_in_dim(tree.X, first, size)
    return jnp.where(own, items, n), jnp.where(own[:, None], rows, 0.0)


def pick(masses: Array, uniform: Array) -> tuple[Array, Array]:
    """An index drawn with probability proportional to the masses (b,), none negative, and whether there was one."""
    # One product is faster than a running sum, on any device.
    cumulative = matmul(jnp.tri(len(masses), dtype=masses.dtype), masses)
    hits = (masses > 0) & (cumulative > uniform * cumulative[-1])
    return jnp.argmax(hits), jnp.any(hits)


def pick_above_rounding(terms: Array, items: Array, excluded: Array, uniform: Array) -> tuple[Array, Array]:
    """An index drawn with probability proportional to the sums of the rows of terms (b, r), and whether there was one.

    :param items: the items (b,) that the rows belong to.
    :param excluded: items (m,) that are never drawn.
    :param uniform: the random number to draw with.

    A sum that drowns in the rounding of its terms is zero, and what is zero is never drawn.
    """
    masses, magnitudes = jnp.sum(terms, axis=1), jnp.sum(jnp.abs(terms), axis=1)
    positive = masses > _ROUNDING_UNITS * jnp.finfo(terms.dtype).eps * magnitudes
    positive &= ~jnp.any(items[:, None] == excluded, axis=1)
    return pick(jnp.where(positive, masses, 0.0), uniform)


def descend(tree: Tree, Q: Array, key: Array, excluded: Array | None = None) -> tuple[Array, Array]:
    """An item a, drawn with probability proportional to x_aᵀ Q x_a, and whether one was found.

    :param Q: a matrix (d, d) with x_aᵀ Q x_a ≥ 0 up to rounding for every item.
    :param excluded: items (m,) whose mass is known to be zero; they are never drawn, whatever rounding makes of them.

    O(d² log(n/d)) for the levels, O(b d²) for the leaf. Not found means that rounding led to a leaf without any mass.

    >>> import jax.numpy as jnp
    >>> from jax import random
    >>> X = jnp.array([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    >>> item, found = descend(build_tree(X), jnp.diag(jnp.array([0.0, 1.0])), random.key(0))
    >>> int(item), bool(found)
    (2, True)
    """
    uniforms = random.uniform(key, (tree.num_decisions,), Q.dtype)
    return descend_symmetric(tree, symmetric_part(Q), uniforms, jnp.zeros(0, int) if excluded is None else excluded)


def descend_symmetric(tree: Tree, Q: Array, uniforms: Array, excluded: Array) -> tuple[Array, Array]:
    """:func:`descend` for a query that is symmetric already, by uniform numbers (decisions,)."""
    items, rows = leaf_items(tree, descend_to_leaf(tree, pack_query(Q), uniforms[1:]))
    index, found = pick_above_rounding(matmul(rows, Q) * rows, items, excluded, uniforms[0])
    return items[index], found
