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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.sharding import NamedSharding, PartitionSpec

from numpyro_ndpp.devices import Shards, rows_on_devices
from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.samplers.leaves import Leaves
from numpyro_ndpp.samplers.packing import pack, pack_query, symmetric_part, unpack

# Σ of so many leaves at a time are computed unpacked.
_CHUNK_BYTES = 8 * 2**20
# A mass is taken for zero within this many units of rounding of the terms whose sum it is.
_ROUNDING_UNITS = 4


@partial(jax.tree_util.register_dataclass, data_fields=["X", "lefts", "tops"], meta_fields=["leaves", "shards"])
@dataclass(frozen=True)
class Tree:
    """Sums of x_a x_aᵀ over halves, quarters, ... of the items, and the features that they are sums of.

    Nodes are numbered as in a heap: the root is 1, the children of v are 2v and 2v + 1. Row v of ``lefts`` (leaves, p)
    is the packed sum over the left half of node v, row 0 that over all items.

    On P devices each has the tree over its own items, in its own rows of ``lefts``. ``tops`` (P, p), which all have,
    is the tree whose leaves are the devices.
    """

    X: Array
    lefts: Array
    tops: Array | None
    leaves: Leaves = field(metadata={"static": True})
    shards: Shards | None = field(default=None, metadata={"static": True})

    @property
    def num_items(self) -> int:
        return self.leaves.num_items

    @property
    def leaf_size(self) -> int:
        return self.leaves.size

    @property
    def depth(self) -> int:
        """The number of levels above the leaves."""
        return self.leaves.depth

    @property
    def num_decisions(self) -> int:
        """How many random numbers a descent takes."""
        return 1 + self.depth

    @property
    def gram(self) -> Array:
        """C = XᵀX (d, d), the sum over all items."""
        return unpack((self.lefts if self.tops is None else self.tops)[0], self.X.shape[1])

    def rows(self, items: Array) -> Array:
        """The features (..., d) of items (...), zero where there is none: where the number is n."""
        return rows_on_devices(self.shards, self.X, items)


def sums_of_leaves(X: Array, leaves: Leaves) -> Array:
    """The packed sums (leaves, p) of x_a x_aᵀ over the items of every leaf, a few megabytes of them at a time."""
    (n, d), size = X.shape, leaves.size
    chunk = min(leaves.number, 2 ** int(math.log2(max(1, _CHUNK_BYTES // (d * d * X.dtype.itemsize)))))

    def packed_sums(number: Array) -> Array:
        first, end = leaves.limits(number * chunk + jnp.arange(chunk))
        items = first[:, None] + jnp.arange(size)
        blocks = X.at[jnp.where(items < end[..., None], items, n)].get(mode="fill", fill_value=0)
        return pack(matmul(jnp.swapaxes(blocks, 1, 2), blocks))

    sums = lax.map(packed_sums, jnp.arange(leaves.number // chunk))
    return sums.reshape(leaves.number, -1)


def _heap_of_lefts(sums: Array) -> Array:
    """The rows of a tree whose leaves have the sums (leaves, p)."""
    lefts = jnp.zeros_like(sums)
    while len(sums) > 1:
        half = len(sums) // 2
        lefts = lefts.at[half : 2 * half].set(sums[0::2])
        sums = sums[0::2] + sums[1::2]
    return lefts.at[0].set(sums[0])


def build_tree(X: Array, leaf_size: int | None = None, shards: Shards | None = None) -> Tree:
    """The tree over the items with features X (n, d).

    :param leaf_size: the most items in a leaf, from eight on rounded up to a multiple of eight. Default: about d/2,
        which gives a tree as large as X.
    :param shards: the devices over which the rows of X are; each then builds the tree over its own items.

    O(n d²) time. Beside the tree itself the sums of the leaves are held, which are as large as X.
    """
    leaves = Leaves.of(len(X), X.shape[1], leaf_size)
    X, shards = shards_of_tree(X, leaves, shards)
    if shards is None:
        return Tree(X, _heap_of_lefts(sums_of_leaves(X, leaves)), None, leaves)

    def of_device(X: Array) -> tuple[Array, Array]:
        lefts = _heap_of_lefts(sums_of_leaves(X, leaves.part(shards.number)))
        return lefts, _heap_of_lefts(lax.all_gather(lefts[0], shards.axis))

    lefts, tops = shards.run(of_device, (X,), (), (shards.by_rows, PartitionSpec()))
    return Tree(X, lefts, tops, leaves, shards)


def shards_of_tree(X: Array, leaves: Leaves, shards: Shards | None) -> tuple[Array, Shards | None]:
    """X and the devices that share its tree. A catalogue of a few leaves a device is small: all have the whole of it.

    :raises ValueError: for a number of devices that is no power of two.
    """
    if shards is None:
        return X, None
    if shards.number & (shards.number - 1):
        raise ValueError(
            f"draws need a power of two of devices along the axis {shards.axis!r}, over which the items are, got "
            f"{shards.number}"
        )
    if leaves.num_blocks % shards.number == 0:
        return X, shards
    return lax.with_sharding_constraint(X, NamedSharding(shards.mesh, PartitionSpec())), None


def _descend_heap(lefts: Array, query: Array, uniforms: Array, mass: Array) -> tuple[Array, Array]:
    """A leaf, drawn with probability proportional to its mass under a packed query (p,), and that mass.

    :param uniforms: a number for each level.
    :param mass: that of all leaves together.
    """
    depth, on_cpu = len(lefts).bit_length() - 1, platform().is_cpu

    def mass_of(row: Array | int) -> Array:
        return jnp.sum(lefts[row] * query)

    def two_levels(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        node, mass = carry
        first = depth % 2 + 2 * number
        # A CPU waits longer for two products than it takes for three at once. An accelerator sums while it reads, reads
        # only the child that it needs, and stores no copy of what it read.
        products = matmul(lefts[jnp.stack([node, 2 * node, 2 * node + 1])], query) if on_cpu else None
        left = mass_of(node) if products is None else products[0]
        child, mass, goes_left = _choose_half(node, mass, left, uniforms[first])
        left = mass_of(child) if products is None else jnp.where(goes_left, products[1], products[2])
        return _choose_half(child, mass, left, uniforms[first + 1])[:2]

    carry = jnp.asarray(1), mass
    if depth % 2:
        carry = _choose_half(*carry, mass_of(1), uniforms[0])[:2]
    if depth > 1:
        carry = lax.fori_loop(0, depth // 2, two_levels, carry)
    return carry[0] - len(lefts), carry[1]


def _mass_of_all(lefts: Array, query: Array) -> Array:
    # Rounding may leave a node with slightly less than nothing.
    return jnp.maximum(jnp.sum(lefts[0] * query), 0.0)


def _choose_half(node: Array, mass: Array, left: Array, uniform: Array) -> tuple[Array, Array, Array]:
    """The child of a node, its mass, and whether it is the left one."""
    left = jnp.clip(left, 0.0, mass)
    goes_left = uniform * mass < left
    return 2 * node + ~goes_left, jnp.where(goes_left, left, mass - left), goes_left


def _leaf_items(X: Array, leaves: Leaves, leaf: Array) -> tuple[Array, Array]:
    """The items (b,) of a leaf, n where there is none, and their features (b, d), zero there."""
    first, end = leaves.limits(leaf)
    # A slice must not reach beyond the end: it starts earlier there, and what belongs to the leaf before is blanked.
    start = jnp.minimum(first, leaves.num_items - leaves.size)
    items = start + jnp.arange(leaves.size)
    own = (items >= first) & (items < end)
    rows = lax.dynamic_slice_in_dim(X, start, leaves.size, allow_negative_indices=False)
    return jnp.where(own, items, leaves.num_items), jnp.where(own[:, None], rows, 0.0)


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
    return draw_by_terms(tree, pack_query(Q), _terms_of_form, (), (Q,), uniforms, excluded)


def _terms_of_form(rows: Array, Q: Array) -> Array:
    return matmul(rows, Q) * rows


def draw_by_terms(
    tree: Tree,
    query: Array,
    terms: Callable[..., Array],
    by_item: tuple[Array, ...],
    others: tuple[Any, ...],
    uniforms: Array,
    excluded: Array,
) -> tuple[Array, Array]:
    """An item and whether one was found: the levels by a packed query (p,), the leaf by sums of terms.

    :param terms: ``terms(rows (b, d), *by_item's (b, ...), *others)`` are the terms (b, r) of the masses of a leaf.
    :param by_item: arrays (n, ...) with an entry for every item.

    On many devices the top of the tree says which device has the item, that one goes on alone, and the others are told:
    one all-reduce of two numbers.
    """
    shards = tree.shards
    if shards is None:
        mass = _mass_of_all(tree.lefts, query)
        return _draw_below(tree.X, tree.lefts, by_item, tree.leaves, query, terms, others, uniforms, excluded, mass)

    def of_device(
        X: Array, lefts: Array, by_item: Any, tops: Array, query: Array, others: Any, uniforms: Array, excluded: Array
    ) -> tuple[Array, Array]:
        num_tops, own = shards.number.bit_length() - 1, shards.index * len(X)
        device, mass = _descend_heap(tops, query, uniforms[1:], _mass_of_all(tops, query))
        # The decisions of the levels above have been made.
        below = jnp.append(uniforms[:1], uniforms[1 + num_tops :])
        part, its = tree.leaves.part(shards.number), excluded - own
        item, found = _draw_below(X, lefts, by_item, part, query, terms, others, below, its, mass)
        is_mine = shards.index == device
        item = jnp.where(item < len(X), item + own, tree.num_items)
        item, found = shards.sum_of_one(is_mine, jnp.stack([item, found.astype(item.dtype)]))
        return item, found > 0

    replicated = tree.tops, query, others, uniforms, excluded
    return shards.run(of_device, (tree.X, tree.lefts, by_item), replicated, (PartitionSpec(), PartitionSpec()))


def _draw_below(
    X: Array,
    lefts: Array,
    by_item: tuple[Array, ...],
    leaves: Leaves,
    query: Array,
    terms: Callable[..., Array],
    others: tuple[Any, ...],
    uniforms: Array,
    excluded: Array,
    mass: Array,
) -> tuple[Array, Array]:
    """An item of one heap, whose mass is given, and whether one was found."""
    leaf, _ = _descend_heap(lefts, query, uniforms[1:], mass)
    items, rows = _leaf_items(X, leaves, leaf)
    own = [array.at[items].get(mode="fill", fill_value=0) for array in by_item]
    index, found = pick_above_rounding(terms(rows, *own, *others), items, excluded, uniforms[0])
    return items[index], found
