"""A kernel as the up-down walk needs it, and where a chain of the walk is.

The law of a given size does not depend on the kernel's scale: the walk's kernel has entries of about one, which
overflow nowhere. A chain carries the images W x of its items along, so that a step multiplies those of two new ones.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.devices import rows_on_devices
from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.minors import log_minor_of_rows
from numpyro_ndpp.samplers.packing import pack_query, symmetric_part
from numpyro_ndpp.samplers.tree import Tree

# Items at a time in the preprocessing.
_ROWS = 4096


class Images(NamedTuple):
    """What a step needs of the items with features x in the slots of a chain; None where that precision does without.

    In float64 queries stay in factors, which spares products of d³. Their terms are as large as the kernel, though, and
    where the subset takes most of that away, float32 has no digits left: there C W x is needed in place of H x.
    """

    WX: Array  # (w, d) the rows W x
    XW: Array  # (w, d) xᵀ W
    HX: Any  # (w, d) H x, H = W C W
    XH: Any  # (w, d) xᵀ H
    CWX: Any  # (w, d) C W x


class ChainState(NamedTuple):
    """Where a chain is: its items (w,), padded with n, the pinned ones first, and their images."""

    subset: Array
    images: Images


class WalkKernel(NamedTuple):
    """The kernel X W Xᵀ of the walk, with the tree over its items."""

    tree: Tree
    W: Array  # (d, d), scaled
    K: Array  # (d₂, d₂) with W ∝ Diag(I, K), not scaled
    C: Array  # (d, d) XᵀX
    CW: Array  # (d, d)
    H: Array  # (d, d) W C W
    log_scale: Array  # log of what the kernel was divided by
    item_scale: Array  # (n,) one over the size of an item's entries in the kernel
    packed: Array  # (2, p) W and H as queries of the tree
    own: Array  # (n, 2) xᵀ W x and xᵀ H x

    @classmethod
    def of(cls, tree: Tree, W: Array, K: Array) -> "WalkKernel":
        """The walk's kernel for the features of a tree, W and its inner block. O(n d²)."""
        n, C = tree.num_items, tree.gram
        scale = jnp.trace(C) / n * jnp.linalg.norm(W)
        scale = jnp.where(scale > 0, scale, 1.0)
        W = W / scale
        CW = matmul(C, W)
        forms = jnp.stack([W, matmul(W, CW)])
        packed = jnp.stack([pack_query(symmetric_part(form)) for form in forms])
        if tree.shards is None:
            item_scales, own = _of_every_item(tree.X, W, forms)
        else:
            by_rows = tree.shards.by_rows
            item_scales, own = tree.shards.run(_of_every_item, (tree.X,), (W, forms), (by_rows, by_rows))
        return cls(tree, W, K, C, CW, forms[1], jnp.log(scale), item_scales, packed, own)

    @property
    def is_factored(self) -> bool:
        """Whether queries stay in factors."""
        return self.W.dtype == jnp.float64

    @property
    def num_items(self) -> int:
        return self.tree.num_items

    def rows(self, items: Array) -> Array:
        """The features (..., d) of items (...), zero where there is none."""
        return self.tree.rows(items)

    def item_scales(self, items: Array) -> Array:
        """Those of items (...), zero where there is none."""
        return rows_on_devices(self.tree.shards, self.item_scale, items)

    def is_possible(self, subset: Array) -> Array:
        """Whether the minor of a subset (w,), padded with n, is positive: by the formula of its log-probability.

        Of a minor that is zero to rounding another formula may have another opinion.
        """
        return log_minor_of_rows(self.rows(subset), self.K, jnp.sum(subset < self.num_items)) > -jnp.inf

    def images(self, x: Array) -> Images:
        """Those of the features x (w, d)."""
        WX, XW = matmul(x, self.W.T), matmul(x, self.W)
        if self.is_factored:
            return Images(WX, XW, matmul(x, self.H.T), matmul(x, self.H), None)
        return Images(WX, XW, None, None, matmul(x, self.CW.T))

    def chain_at(self, subset: Array) -> ChainState:
        """A chain at the items (w,)."""
        return ChainState(subset, self.images(self.rows(subset)))


def exchanged(state: ChainState, is_new: Array, new: ChainState) -> ChainState:
    """A chain with the items of another one in some of its slots.

    :param is_new: (m, w), which slot each of the m new items takes, if any.
    """

    def put(old: Array, new: Array) -> Array:
        for chosen, one in zip(is_new, new, strict=True):
            old = jnp.where(chosen.reshape(-1, *(old.ndim - 1) * (1,)), one, old)
        return old

    return jax.tree.map(put, state, new)


def _of_every_item(X: Array, W: Array, forms: Array) -> tuple[Array, Array]:
    """One over the size of every item's entries (n,), and its quadratic forms (n, 2)."""
    rows = min(len(X), _ROWS)
    item_scales = lax.map(partial(item_scale, W), X, batch_size=rows)
    return item_scales, lax.map(lambda x: matmul(matmul(x, forms), x), X, batch_size=rows)


def item_scale(W: Array, x: Array) -> Array:
    """One over the size of the entries of L = X W Xᵀ that belong to an item with features x (d,)."""
    length = jnp.sqrt(jnp.linalg.norm(x) * jnp.linalg.norm(matmul(x, W)))
    return 1 / jnp.where(length > 0, length, 1.0)
