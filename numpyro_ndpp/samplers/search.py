r"""Where the next item of a leap is: the leaf at whose end the probability that nothing has come falls below u.

With R the marginal kernel of what is not decided, P(no item of U) = det(I - R C_U). See :mod:`.leap`, which this is a
part of, for how few determinants it takes.

On P devices each has the sums of its own items, and all have the P sums over the items of whole devices. So each
computes one determinant, that of all items up to its own last one. These P numbers, gathered, say which device has the
item. It searches its own leaves, and an all-reduce tells the others the leaf, its rows, and what was passed over.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from numpyro_ndpp.devices import Shards
from numpyro_ndpp.kernel import rows_of
from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.samplers.leaves import Leaves
from numpyro_ndpp.samplers.packing import pack_query, symmetric_part, unpack
from numpyro_ndpp.samplers.tree import shards_of_tree, sums_of_leaves

# How far the fall of the logarithm may be from that of the trace, for the next guess.
_SLOPES = 0.05, 20.0
# A probability is taken for zero within so many units of rounding.
ROUNDING_UNITS = 4


class Position(NamedTuple):
    """The first item that is not decided, as a leaf and a place in it."""

    leaf: Array
    low: Array
    head: Array  # (p,) the sum over the items of the leaf that are not decided
    rest: Any  # (p,) with those of all later leaves of its device; None on a single device


class Place(NamedTuple):
    """The leaf of the next item; the first leaf if there is no further item."""

    is_there: Array
    leaf: Array
    passed: Array  # (p,) the sum over what lies before it and is not decided
    rows: Array  # (b, d) the features of its items, zero where there is none
    behind: Array | None  # (p,) the sum over the later leaves of its device; None on a single device


class Sums(NamedTuple):
    """The features and the sums of all nodes of a tree. On P devices each has the tree over its own items."""

    X: Array  # (n, d)
    nodes: Array  # (2 · leaves, p) packed sums of x_a x_aᵀ; the root is 1, the children of v are 2v and 2v + 1
    of_devices: Array | None  # (P, p) the sums over the items of each device


class _Search(NamedTuple):
    """The next item lies in the leaves from ``leaf`` up to ``end``, which is not one of them."""

    leaf: Array
    end: Array  # one past the number of leaves as long as there may be no further item
    passed: Array  # (p,) the sum over the items that are known to be out
    none: Array  # P(none of these is in)
    slope: Array  # how fast the logarithm of that falls with the trace, about one


def _sums_of_nodes(X: Array, leaves: Leaves) -> Array:
    """The packed sums (2 · leaves, p) of x_a x_aᵀ over the items of every node of a heap."""
    num_leaves, sums = leaves.number, sums_of_leaves(X, leaves)
    nodes = jnp.zeros((2 * num_leaves, sums.shape[1]), X.dtype).at[num_leaves:].set(sums)
    while len(sums) > 1:
        sums = sums[0::2] + sums[1::2]
        nodes = nodes.at[len(sums) : 2 * len(sums)].set(sums)
    return nodes


def _determinant(A: Array) -> Array:
    """det A (d, d), not negative; zero where it is so to rounding."""
    sign, log_abs = jnp.linalg.slogdet(A)
    value = jnp.where(sign > 0, jnp.exp(log_abs), 0.0)
    return jnp.where(value > ROUNDING_UNITS * len(A) * jnp.finfo(A.dtype).eps, value, 0.0)


def _find_leaf(nodes: Array, R: Array, position: Position, u: Array, start: _Search) -> _Search:
    """The leaf of the next item, with what lies before it passed over; past the last leaf if there is none."""
    d = len(R)
    num_leaves, identity = len(nodes) // 2, jnp.eye(d, dtype=nodes.dtype)
    query = pack_query(symmetric_part(R))

    def largest_node(leaf: Array) -> Array:
        """The largest node that begins with a leaf; the leaf itself if a part of it is decided."""
        node = num_leaves + leaf
        return jnp.where((leaf == position.leaf) & (position.low > 0), node, node // (node & -node))

    def block(node: Array) -> Array:
        is_part = (node == num_leaves + position.leaf) & (position.low > 0)
        return jnp.where(is_part, position.head, nodes[node])

    def stretch(search: _Search, trace: Array) -> tuple[Array, Array, Array]:
        """As many leaves as have the trace, but one at least: where they end, their sum, and their own trace."""

        def take(carry: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
            leaf, node, total, left, _ = carry
            rows = block(node)
            mass = jnp.sum(query * rows)
            is_leaf = node >= num_leaves
            size = num_leaves >> (31 - lax.clz(node.astype(jnp.int32)))
            fits = (mass <= left) & (leaf + size < search.end)
            # the leaf in which the trace is used up is taken only if there is no other
            takes = fits | (is_leaf & (leaf == search.leaf))
            leaf = jnp.where(takes, leaf + size, leaf)
            return (
                leaf,
                jnp.where(takes, largest_node(leaf), jnp.where(is_leaf, node, 2 * node)),
                jnp.where(takes, total + rows, total),
                jnp.where(takes, left - mass, left),
                (is_leaf & ~fits) | (leaf >= jnp.minimum(num_leaves, search.end - 1)),
            )

        start = search.leaf, largest_node(search.leaf), search.passed, trace, jnp.asarray(False)
        leaf, _, total, left, _ = lax.while_loop(lambda carry: ~carry[-1], take, start)
        return leaf, total, trace - left

    def look(search: _Search) -> _Search:
        """The probability that nothing comes before a place: where it would be u, were it exponential in the trace."""
        wanted = jnp.log(search.none / u) / search.slope
        leaf, total, trace = stretch(search, wanted)
        none = _determinant(identity - matmul(R, unpack(total, d)))
        passes = none >= u
        slope = jnp.log(search.none / jnp.where(none > 0, none, 1.0)) / jnp.where(trace > 0, trace, 1.0)
        slope = jnp.where((none > 0) & (trace > 0), jnp.clip(slope, *_SLOPES), 2 * search.slope)
        return _Search(
            leaf=jnp.where(passes, leaf, search.leaf),
            end=jnp.where(passes, search.end, leaf),
            passed=jnp.where(passes, total, search.passed),
            none=jnp.where(passes, none, search.none),
            slope=slope,
        )

    def unfinished(search: _Search) -> Array:
        return (search.leaf < num_leaves) & (search.leaf + 1 < search.end)

    return lax.while_loop(unfinished, look, start)


def sums_of_nodes(X: Array, leaves: Leaves, shards: Shards | None) -> tuple[Sums, Shards | None]:
    """The sums of all nodes, and the devices that share them."""
    X, shards = shards_of_tree(X, leaves, shards)
    if shards is None:
        return Sums(X, _sums_of_nodes(X, leaves), None), None

    def of_device(X: Array) -> tuple[Array, Array]:
        nodes = _sums_of_nodes(X, leaves.part(shards.number))
        return nodes, lax.all_gather(nodes[1], shards.axis)

    nodes, of_devices = shards.run(of_device, (X,), (), (shards.by_rows, PartitionSpec()))
    return Sums(X, nodes, of_devices), shards


def first_position(sums: Sums) -> Position:
    """Nothing is decided."""
    zero, nothing = jnp.asarray(0), jnp.zeros_like(sums.nodes[0])
    return Position(zero, zero, nothing, None if sums.of_devices is None else sums.of_devices[0])


def next_place(sums: Sums, leaves: Leaves, shards: Shards | None, R: Array, position: Position, u: Array) -> Place:
    """The leaf of the next item, by a uniform number."""
    if shards is not None:
        return _place_on_devices(sums, leaves, shards, R, position, u)
    one = jnp.ones((), R.dtype)
    start = _Search(position.leaf, jnp.asarray(leaves.number + 1), jnp.zeros_like(position.head), one, one)
    search = _find_leaf(sums.nodes, R, position, u, start)
    is_there = search.leaf < leaves.number
    leaf = jnp.where(is_there, search.leaf, 0)
    return Place(is_there, leaf, search.passed, _rows_of_leaf(sums.X, leaves, leaf), None)


def _rows_of_leaf(X: Array, leaves: Leaves, leaf: Array) -> Array:
    first, end = leaves.limits(leaf)
    items = first + jnp.arange(leaves.size)
    return rows_of(X, jnp.where(items < end, items, len(X)))


def _place_on_devices(sums: Sums, leaves: Leaves, shards: Shards, R: Array, position: Position, u: Array) -> Place:
    part, number = leaves.part(shards.number), jnp.arange(shards.number)

    def of_device(X: Array, nodes: Array, of_devices: Array, R: Array, position: Position, u: Array) -> Place:
        here, d = shards.index, len(R)
        current = position.leaf // part.number  # the device that has the position
        # What is not decided, device by device, up to the beginning of this one and up to its end.
        undecided = jnp.where((number == current)[:, None], position.rest, of_devices)
        undecided = jnp.where((number >= current)[:, None], undecided, 0.0)
        before = jnp.sum(jnp.where((number < here)[:, None], undecided, 0.0), axis=0)
        none = _determinant(jnp.eye(d, dtype=R.dtype) - matmul(R, unpack(before + undecided[here], d)))
        none = jnp.where(here < current, 1.0, none)
        nones = lax.all_gather(none, shards.axis)
        is_there, device = jnp.any(nones < u), jnp.argmax(nones < u)
        is_mine = is_there & (here == device)

        own = position._replace(leaf=jnp.where(here == current, position.leaf % part.number, -1))
        start = _Search(
            leaf=jnp.maximum(own.leaf, 0),
            end=jnp.where(is_mine, part.number, 0),  # the others have nothing to look for
            passed=before,
            none=jnp.where(here > 0, nones[here - 1], 1.0),
            slope=jnp.ones((), R.dtype),
        )
        search = _find_leaf(nodes, R, own, u, start)
        found = Place(
            is_there=jnp.ones_like(search.leaf),
            leaf=(search.leaf + here * part.number).astype(search.leaf.dtype),
            passed=search.passed,
            rows=_rows_of_leaf(X, part, search.leaf),
            behind=_sum_behind(nodes, search.leaf),
        )
        found = shards.sum_of_one(is_mine, found)
        return found._replace(is_there=found.is_there > 0)

    return shards.run(of_device, (sums.X, sums.nodes), (sums.of_devices, R, position, u))


def _sum_behind(nodes: Array, leaf: Array) -> Array:
    """The sum (p,) over all leaves of a heap behind one of them: the right siblings on the way up."""

    def up(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        node, total = carry
        is_left = node % 2 == 0
        return node // 2, jnp.where(is_left, total + nodes[node + is_left], total)

    num_leaves = len(nodes) // 2
    return lax.fori_loop(0, num_leaves.bit_length() - 1, up, (num_leaves + leaf, jnp.zeros_like(nodes[0])))[1]
