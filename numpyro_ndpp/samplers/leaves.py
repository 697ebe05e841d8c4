"""Which items are in which leaf of the tree.

Leaves are in blocks of as many items each: up to 256 of them, as n allows. So the tree over n items is that over the
first half of them beside that over the second, and likewise for quarters and so on: devices that hold an equal part of
the items each hold whole leaves, and an item is found by the same random numbers however many devices there are.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

# Leaves have a multiple of so many items, as the tiles of a matrix product have.
_ALIGNMENT = 8
# No more devices than this share a tree.
_MOST_BLOCKS = 256
# A block has so many full leaves at least, unless all of them are full.
_FEWEST_LEAVES = 8


class Leaves(NamedTuple):
    """The leaves of a tree: ``number`` of them, a power of two, in ``num_blocks`` blocks, for n items."""

    num_items: int
    number: int
    num_blocks: int
    size: int
    """The room in a leaf. The last ones of a block may have fewer items, or none."""

    @classmethod
    def of(cls, n: int, d: int, leaf_size: int | None = None) -> "Leaves":
        """Leaves for n items with d features, of about d/2 items, or of at most ``leaf_size`` before rounding up."""
        number = 2 ** _depth(n, d, leaf_size)
        num_blocks = math.gcd(n, min(number, _MOST_BLOCKS))
        # Every block may end in leaves that are not full: they have to be few beside the others.
        while True:
            in_block, leaves_in_block = n // num_blocks, number // num_blocks
            size = -(-in_block // leaves_in_block)
            if size > _ALIGNMENT:
                size = min(in_block, -(-size // _ALIGNMENT) * _ALIGNMENT)
            are_full = in_block == leaves_in_block * size
            if num_blocks == 1 or are_full or in_block >= _FEWEST_LEAVES * size:
                return cls(n, number, num_blocks, size)
            num_blocks //= 2

    @property
    def depth(self) -> int:
        """The number of levels above the leaves."""
        return self.number.bit_length() - 1

    def part(self, number: int) -> "Leaves":
        """The leaves of one of ``number`` equal parts of the items, which divides the number of blocks."""
        return Leaves(self.num_items // number, self.number // number, self.num_blocks // number, self.size)

    def limits(self, leaf: Array) -> tuple[Array, Array]:
        """The first item of a leaf, and the first one behind its block, which ends the last leaves of the block."""
        in_block, leaves_in_block = self.num_items // self.num_blocks, self.number // self.num_blocks
        if self.num_blocks == 1:
            return leaf * self.size, jnp.asarray(in_block)
        block = lax.div(leaf, lax.full_like(leaf, leaves_in_block))
        missing = leaves_in_block * self.size - in_block  # what the leaves of a block have room for beyond its items
        first = leaf * self.size - block * missing if missing else leaf * self.size
        return first, in_block + block * in_block


def _depth(n: int, d: int, leaf_size: int | None) -> int:
    if leaf_size is None:
        return max(0, round(math.log2(2 * n / (d + 1))))
    return max(0, math.ceil(math.log2(n / leaf_size)))
