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

import math
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.linalg import matmul

# Σ of so many leaves at a time are computed unpacked.
_CHUNK_BYTES = 8 * 2**20
# A mass is taken for zero within this many units of rounding of the terms whose sum it is.
_ROUNDING_UNITS = 4
# Leaves have a multiple of so many items, as the tiles of a matrix product have.
_ALIGNMENT = 8
# So many levels, or one less, are left out at the top: all nodes below are looked at, in a single product.
_TOP_DEPTH = 2


@partial(jax.tree_util.register_dataclass, data_fields=["X", "top", "levels"], meta_fields=["leaf_size"])
@dataclass(frozen=True)
class Tree:
    """Sums of x_a x_aᵀ over halves, quarters, ... of the items, and the features that they are sums of.

    ``top`` (2ᵗ, p) holds the packed sum of every node at depth t. Each array of ``levels`` holds two levels more
    (2ˡ, 3, p): for every node at depth l the sum over its left half and those over the left halves of its two children.
    Leaf j holds the items j·b .. (j+1)·b - 1.
    """

    X: Array
    top: Array
    levels: tuple[Array, ...]
    leaf_size: int = field(metadata={"static": True})

    @property
    def depth(self) -> int:
        """The number of levels above the leaves."""
        return len(self.top).bit_length() - 1 + 2 * len(self.levels)

    @property
    def num_decisions(self) -> int:
        """How many random numbers a descent takes."""
        return 2 + 2 * len(self.levels)

    @property
    def gram(self) -> Array:
        """C = XᵀX (d, d), the sum over all nodes of a level."""
        return unpack(jnp.sum(self.top, axis=0), self.X.shape[1])

    @property
    def num_bytes(self) -> int:
        """What the tree takes beyond X."""
        return sum(array.nbytes for array in (self.top, *self.levels))


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


def unpack(packed: Array, d: int) -> Array:
    """The symmetric matrix (d, d) whose packed triangle is given."""
    half = -(-d // 2)
    rectangle = packed.reshape(half, 2 * half + 1)
    across = rectangle[:, :half]
    first, second = jnp.triu(rectangle[:, half + 1 :]), jnp.tril(rectangle[:, half:-1])
    first, second = (triangle + triangle.T - jnp.diag(jnp.diagonal(triangle)) for triangle in (first, second))
    return jnp.block([[first, across], [across.T, second]])[:d, :d]


def symmetric_part(Q: Array) -> Array:
    """½ (Q + Qᵀ), which is all that a query is about."""
    return 0.5 * (Q + Q.T)


def pack_query(S: Array) -> Array:
    """The vector q (p,) of a symmetric query S (d, d): q · pack(Σ) = ⟨S, Σ⟩ for every symmetric Σ."""
    return pack(jnp.where(jnp.eye(len(S), dtype=bool), S, 2 * S))


def _depth(n: int, d: int, leaf_size: int | None) -> int:
    """The depth at which leaves have about d/2 items, or at most ``leaf_size`` (before they are rounded up)."""
    if leaf_size is None:
        return max(0, round(math.log2(2 * n / (d + 1))))
    return max(0, math.ceil(math.log2(n / leaf_size)))


def build_tree(X: Array, leaf_size: int | None = None) -> Tree:
    """The tree over the items with features X (n, d).

    :param leaf_size: the most items in a leaf, from eight on rounded up to a multiple of eight. Default: about d/2,
        which gives a tree as large as X.

    O(n d²) time; beside the tree itself a few megabytes and the next level up are held at a time.
    """
    n, d = X.shape
    depth = _depth(n, d, leaf_size)
    num_leaves = 2**depth
    size = -(-n // num_leaves)
    if size > _ALIGNMENT:
        size = min(n, -(-size // _ALIGNMENT) * _ALIGNMENT)
    chunk = min(num_leaves, 2 ** int(math.log2(max(4, _CHUNK_BYTES // (d * d * X.dtype.itemsize)))))

    def packed_sums(first: Array) -> Array:
        rows = X.at[first + jnp.arange(chunk * size)].get(mode="fill", fill_value=0)
        blocks = rows.reshape(chunk, size, d)
        return pack(matmul(jnp.swapaxes(blocks, 1, 2), blocks))

    def two_levels(first: Array) -> tuple[Array, Array]:
        return _two_levels(packed_sums(first))

    top_depth = min(depth, _TOP_DEPTH)
    starts = jnp.arange(num_leaves // chunk) * (chunk * size)
    if depth == top_depth:
        sums = lax.map(packed_sums, starts)
        return Tree(X, sums.reshape(num_leaves, -1), (), size)
    # The leaves' own sums are never held all at once.
    level, sums = lax.map(two_levels, starts)
    levels, sums = [level.reshape(num_leaves // 4, 3, -1)], sums.reshape(num_leaves // 4, -1)
    while len(sums) > 2**top_depth:
        level, sums = _two_levels(sums)
        levels.insert(0, level)
    return Tree(X, sums, tuple(levels), size)


def _two_levels(sums: Array) -> tuple[Array, Array]:
    """Two levels (s/4, 3, p) above nodes with the sums (s, p), and the sums (s/4, p) of the upper one's nodes."""
    first, second, third, fourth = (sums[i::4] for i in range(4))
    left = first + second
    return jnp.stack([left, first, third], axis=1), left + (third + fourth)


def descend_to_leaf(tree: Tree, query: Array, uniforms: Array) -> Array:
    """A leaf, drawn with probability proportional to its mass under a packed query (p,), by a number for each level."""
    decisions = iter(uniforms)
    # Rounding may leave a node with slightly less than nothing.
    masses = jnp.maximum(matmul(tree.top, query), 0.0)
    node, _ = pick(masses, next(decisions))
    mass = masses[node]
    on_cpu = jax.default_backend() == "cpu"
    for level in tree.levels:
        # A CPU waits longer for two products than it takes for three at once. An accelerator sums while it reads, reads
        # only the child that it needs, and stores no copy of what it read.
        products = matmul(level[node], query) if on_cpu else None
        left = jnp.sum(level[node, 0] * query) if products is None else products[0]
        child, mass, goes_left = _choose_half(node, mass, left, next(decisions))
        row = jnp.where(goes_left, 1, 2)
        left = jnp.sum(level[node, row] * query) if products is None else products[row]
        node, mass, _ = _choose_half(child, mass, left, next(decisions))
    return node


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
    return descend_symmetric(tree, symmetric_part(Q), key, jnp.zeros(0, int) if excluded is None else excluded)


def descend_symmetric(tree: Tree, Q: Array, key: Array, excluded: Array) -> tuple[Array, Array]:
    """:func:`descend` for a query that is symmetric already."""
    uniforms = random.uniform(key, (tree.num_decisions,), Q.dtype)
    items, rows = leaf_items(tree, descend_to_leaf(tree, pack_query(Q), uniforms[1:]))
    index, found = pick_above_rounding(matmul(rows, Q) * rows, items, excluded, uniforms[0])
    return items[index], found
