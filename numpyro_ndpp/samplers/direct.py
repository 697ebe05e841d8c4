r"""The direct up operator: a pair {a, b} drawn with probability proportional to det L_{A∪{a,b}}, without rejection.

With the kernel conditioned on A,

.. math:: W^A = W - W X_A^\top L_A^{-1} X_A W, \qquad
          \sum_b \det L^A_{\{a,b\}} = x_a^\top M x_a, \quad M = \operatorname{tr}(W^A C)\, W^A - W^A C W^A ,

and given a the determinant is a quadratic form in x_b again: two descents of the tree draw the pair exactly.

L_A may be singular although A is part of a likely S: skew kernels have no odd minors at all. So A is bordered by two
phantom items with features :math:`G` (m, 2) of their own, in the matrix

.. math:: \begin{pmatrix} L_A + G G^\top & L_{A,\cdot} & G \\ L_{\cdot,A} & L & 0 \\ G^\top & 0 & I \end{pmatrix} ,

whose minor on A, a, b and the phantoms is det L_{A∪{a,b}} for any G (eliminate the phantoms to see it), while
:math:`L_A + G G^\top` is regular as soon as L_A lacks a rank of two at most, as it must if S has a positive
determinant. With N its inverse, W′ = W - W X_Aᵀ N X_A W, E = I - Gᵀ N G, q = W X_Aᵀ N G, pᵀ = Gᵀ N X_A W and
T = q adj(E) pᵀ,

.. math:: \det L_{A∪\{a,b\}} ∝ \begin{vmatrix} W'_{ab} & q_{ab} \\ p_{ab}^\top & E \end{vmatrix}, \qquad
          M = \det E\, (\operatorname{tr}(W'C) W' - W'CW')
              - (\operatorname{tr}(TC) W' + \operatorname{tr}(W'C) T - W'CT - TCW') + q\, \tilde g\, p^\top

with g = qᵀ C p and g̃ the transpose of its adjugate. No inverse of L_A, no case distinction.

To our knowledge the operator is new; the walk that it serves is that of :mod:`.walk`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from numpyro_ndpp.linalg import adjugate, determinant, matmul, right_divide, thin_product
from numpyro_ndpp.next_items import BORDER
from numpyro_ndpp.samplers.chain import ChainState, WalkKernel
from numpyro_ndpp.samplers.packing import pack_query, symmetric_part
from numpyro_ndpp.samplers.tree import descend_symmetric, draw_by_terms
from numpyro_ndpp.widths import at_own_width, narrowing_widths

# Where the size varies and there is room for more items than this, a step costs its size and not the room.
WIDE = 32
_WIDTH_SHARE = 0.4

_dot = partial(jnp.dot, precision="highest")


class Bordered(NamedTuple):
    """A, bordered by two phantom items: what the formulas of the module's docstring need. Zero in the dropped slots."""

    members: Array  # (w,) items of A, n in the dropped slots
    N: Array  # (w, w)
    from_left: Array  # (w, 2) N G, so that q = W X_Aᵀ N G
    from_right: Array  # (w, 2) Nᵀ G
    E: Array  # (2, 2)
    num_used: Array | None  # all slots from there on are empty; None: any slot may be used


class Primed(NamedTuple):
    """The kernel given A and the phantoms, as the module's docstring has it."""

    W: Array  # (d, d) W′
    CW: Array  # (d, d) C W′
    q: Array  # (d, 2)
    p: Array  # (2, d) pᵀ


class Query(NamedTuple):
    """The matrix c_W W + c_H H + left right (d, d), its low-rank part in factors."""

    coefficients: Array  # (2,)
    left: Array  # (d, r)
    right: Array  # (r, d)


def border(
    kernel: WalkKernel, state: ChainState, kept: Array, uniforms: Array, num_used: Array | None = None
) -> Bordered:
    """A, the kept slots (w,) of a chain, and two phantom items in general position.

    :param uniforms: random numbers (w,).
    :param num_used: all slots from there on are empty: the cost is by that, not by w. None: any slot may be used.
    """
    width, dtype = len(kept), kernel.W.dtype
    scale = jnp.where(kept, kernel.item_scales(state.subset), 0.0)
    # Directions spread evenly, in random order: no two items share one, no vector is orthogonal to all for long.
    angle = math.pi * jnp.sum(uniforms[:, None] > uniforms, axis=1, dtype=dtype) / width
    G = BORDER * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) * kept[:, None]

    def at_width(w: int) -> Callable[..., tuple[Array, ...]]:
        def invert(*slots: Array) -> tuple[Array, ...]:
            right, rows, scale, G, kept = (array[:w] for array in slots)
            L = matmul(right, rows.T)
            regular = L * scale[:, None] * scale + thin_product(G, G.T) + jnp.diag((~kept).astype(dtype))
            inverse = right_divide(jnp.eye(w, dtype=dtype), regular)
            from_left, from_right = matmul(inverse, G), matmul(G.T, inverse).T
            E = jnp.eye(2, dtype=dtype) - matmul(G.T, from_left)
            rest = (0, width - w)
            N = jnp.pad(inverse * scale[:, None] * scale, (rest, rest))
            from_left, from_right = (jnp.pad(side * scale[:, None], (rest, (0, 0))) for side in (from_left, from_right))
            return N, from_left, from_right, E

        return invert

    slots = state.images.XW, kernel.rows(state.subset), scale, G, kept
    N, from_left, from_right, E = _at_own_width(at_width, width, num_used, *slots)
    members = jnp.where(kept, state.subset, kernel.num_items)
    return Bordered(members, N, from_left, from_right, E, num_used)


def _at_own_width(function: Callable[[int], Callable], width: int, num_used: Array | None, *operands: Array) -> Any:
    """What is computed for all slots, for about as many of the first ones as are in use if their number varies."""
    if num_used is None:
        return function(width)(*operands)
    return at_own_width(function, narrowing_widths(width, WIDE, _WIDTH_SHARE), num_used, *operands)


def draw_pair(
    kernel: WalkKernel, uniforms: Array, state: ChainState, bordered: Bordered, is_pair: Array
) -> tuple[Array, Array]:
    """The pair (2,) by two descents, with uniform numbers (2, decisions), and whether it was found.

    :param is_pair: whether a pair is wanted; else the second descent draws the only item.
    """
    members, queries = bordered.members, Queries.of(kernel, state, bordered)
    a, found_a = draw_item(kernel, queries.first(), uniforms[0], members)
    a = jnp.where(is_pair, a, kernel.num_items)
    b, found_b = draw_item(kernel, queries.second(kernel.rows(a), is_pair), uniforms[1], jnp.append(members, a))
    return jnp.stack([a, b]), (found_a | ~is_pair) & found_b


class Queries(NamedTuple):
    """The queries for the items that join A."""

    kernel: WalkKernel
    state: ChainState
    bordered: Bordered
    primed: "Primed | None"  # None where queries stay in factors

    @classmethod
    def of(cls, kernel: WalkKernel, state: ChainState, bordered: Bordered) -> "Queries":
        primed = None if kernel.is_factored else _primed(kernel, state, bordered)
        return cls(kernel, state, bordered, primed)

    def first(self) -> "Query | Array":
        """M, the query for the first item of a pair."""
        if self.primed is None:
            return _first_factored(self.kernel, self.state, self.bordered)
        return _first_dense(self.kernel.C, self.primed, self.bordered.E)

    def second(self, x: Array, is_there: Array) -> "Query | Array":
        """The query for the second item, given the features x of the first; for the only one if there is no first."""
        if self.primed is None:
            return _second_factored(self.kernel, self.state, self.bordered, x, is_there)
        return _second_dense(self.primed, self.bordered.E, x, is_there)


def draw_item(kernel: WalkKernel, query: "Query | Array", uniforms: Array, excluded: Array) -> tuple[Array, Array]:
    """An item by a descent, and whether one was found."""
    if isinstance(query, Query):
        return _draw_factored(kernel, query, uniforms, excluded)
    return descend_symmetric(kernel.tree, query, uniforms, excluded)


def _primed(kernel: WalkKernel, state: ChainState, bordered: Bordered) -> Primed:
    def at_width(w: int) -> Callable[..., Primed]:
        def prime(N: Array, Z: Array, from_left: Array, from_right: Array, U: Array, CU: Array) -> Primed:
            Z, U, CU, NZ = Z[:w], U[:w].T, CU[:w].T, matmul(N[:w, :w], Z[:w])
            W, CW = kernel.W - matmul(U, NZ), kernel.CW - matmul(CU, NZ)
            return Primed(W, CW, matmul(U, from_left[:w]), matmul(from_right[:w].T, Z))

        return prime

    images = state.images
    operands = bordered.N, images.XW, bordered.from_left, bordered.from_right, images.WX, images.CWX
    return _at_own_width(at_width, len(bordered.N), bordered.num_used, *operands)


def _first_dense(C: Array, primed: Primed, E: Array) -> Array:
    """The symmetric part of M, the query for the first item."""
    W, CW, q, p = primed
    det_E, qE = determinant(E), thin_product(q, adjugate(E))  # T = qE pᵀ
    pC = matmul(p, C)
    trace_WC, trace_TC = jnp.sum(jnp.diagonal(CW)), jnp.sum(pC.T * qE)
    g = matmul(pC, q).T
    # what stands before pᵀ
    left = matmul(W, matmul(C, qE)) - trace_WC * qE + thin_product(q, adjugate(g).T)
    # W′CW′ is a product of two matrices that are both as small as A leaves them.
    inner = jnp.concatenate(
        [(det_E * trace_WC - trace_TC) * jnp.eye(len(W), dtype=W.dtype) - det_E * CW, p, matmul(p, CW)]
    )
    return symmetric_part(matmul(jnp.concatenate([W, left, qE], axis=1), inner))


def _second_dense(primed: Primed, E: Array, x: Array, is_there: Array) -> Array:
    """The symmetric part of the query for the second item, given the features x of the first, if there is one."""
    W, _, q, p = primed
    Wx, xW = matmul(W, x), matmul(x, W)
    own = jnp.where(is_there, _dot(x, Wx), 1.0)
    corner = _corner(jnp.append(own, matmul(x, q)), jnp.append(own, matmul(p, x)), E)
    left, right = jnp.concatenate([Wx[:, None], q], axis=1), jnp.concatenate([xW[None], p])
    return symmetric_part(determinant(corner) * W - matmul(matmul(left, adjugate(corner)), right))


def _corner(row: Array, column: Array, E: Array) -> Array:
    """The matrix (3, 3) over an item and the phantoms, E below a row (3,) and a column (3,)."""
    return jnp.concatenate([row[None], jnp.concatenate([column[1:, None], E], axis=1)])


def _first_factored(kernel: WalkKernel, state: ChainState, bordered: Bordered) -> Query:
    """M, multiplied out in the features of A: with U = W X_Aᵀ, Z = X_A W, R = H X_Aᵀ, Y = X_A H and J = Y X_Aᵀ,

    W′ = W - U N Z and W′CW′ = H - U N Y - R N Z + U N J N Z, and likewise for the other terms.
    """
    N, a, b, E = bordered.N, bordered.from_left, bordered.from_right, bordered.E
    U, Z, R, Y, _ = state.images
    J = matmul(Y, kernel.rows(state.subset).T)
    det_E, aE = determinant(E), thin_product(a, adjugate(E))  # T = U aE bᵀ Z
    NJ, bJ = matmul(N, J), matmul(b.T, J)
    trace_WC = jnp.sum(kernel.W.T * kernel.C) - jnp.trace(NJ)
    trace_TC = jnp.sum(bJ * aE.T)
    g = matmul(bJ, a).T
    c_W = det_E * trace_WC - trace_TC
    ends_in_b = thin_product(a, adjugate(g).T) - trace_WC * aE - matmul(NJ, aE)
    between = thin_product(ends_in_b, b.T) - matmul(det_E * NJ + thin_product(aE, bJ), N) - c_W * N
    across = det_E * N + thin_product(aE, b.T)
    right = jnp.concatenate([matmul(between, Z) + matmul(across, Y), matmul(across, Z)])
    return Query(jnp.stack([c_W, -det_E]), jnp.concatenate([U, R]).T, right)


def _second_factored(kernel: WalkKernel, state: ChainState, bordered: Bordered, x: Array, is_there: Array) -> Query:
    """The query for the second item, given the features x of the first, if there is one, in those of A and x."""
    N, a, b = bordered.N, bordered.from_left, bordered.from_right
    to_x, from_x = matmul(state.images.XW, x), matmul(state.images.WX, x)  # L_{A,x}, L_{x,A}
    own_left, own_right = matmul(kernel.W, x), matmul(x, kernel.W)
    # W′x = [U, Wx] times the first column, and so on
    left = jnp.pad(jnp.concatenate([-matmul(N, to_x)[:, None], a], axis=1), ((0, 1), (0, 0))).at[-1, 0].set(1.0)
    right = jnp.pad(jnp.concatenate([-matmul(from_x, N)[:, None], b], axis=1), ((0, 1), (0, 0))).at[-1, 0].set(1.0)
    own = jnp.where(is_there, _dot(x, own_left), 1.0)
    corner = _corner(matmul(jnp.append(from_x, own), left), matmul(jnp.append(to_x, own), right), bordered.E)
    det_corner = determinant(corner)
    between = -det_corner * jnp.pad(N, (0, 1)) - thin_product(thin_product(left, adjugate(corner)), right.T)
    return Query(
        coefficients=jnp.stack([det_corner, jnp.zeros_like(det_corner)]),
        left=jnp.concatenate([state.images.WX, own_left[None]]).T,
        right=matmul(between, jnp.concatenate([state.images.XW, own_right[None]])),
    )


def _draw_factored(kernel: WalkKernel, query: Query, uniforms: Array, excluded: Array) -> tuple[Array, Array]:
    """An item by a descent. Its leaf's masses come from the factors where that is less than O(d²) an item."""
    low_rank = symmetric_part(matmul(query.left, query.right))
    packed = matmul(query.coefficients, kernel.packed) + pack_query(low_rank)
    return draw_by_terms(kernel.tree, packed, _terms, (kernel.own,), (query, low_rank), uniforms, excluded)


def _terms(rows: Array, own: Array, query: Query, low_rank: Array) -> Array:
    """The terms (b, r) whose sums are the masses of items with features (b, d) and quadratic forms (b, 2)."""
    d, rank = query.left.shape
    in_factors = 2 * rank < d
    terms = matmul(rows, query.left) * matmul(rows, query.right.T) if in_factors else matmul(rows, low_rank) * rows
    return jnp.concatenate([query.coefficients * own, terms], axis=1)


def dense(kernel: WalkKernel, query: Query | Array) -> Array:
    """The symmetric part (d, d) of a query."""
    if not isinstance(query, Query):
        return query
    fixed = query.coefficients[0] * kernel.W + query.coefficients[1] * kernel.H
    return symmetric_part(fixed + matmul(query.left, query.right))
