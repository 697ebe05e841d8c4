r"""A step of the two-item up-down walk on subsets of k items.

From S drop two items uniformly, which leaves A; then add {a, b} with probability proportional to det L_{A∪{a,b}} (the
"up operator"). The walk's law tends to that of the k-NDPP; k² steps are the published rule of thumb.

*The direct up operator* needs neither a loop over all pairs nor rejection. With the kernel conditioned on A,

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

*The rejection operator* is the published one: pairs from a symmetric kernel that dominates (:mod:`.proposal`), accepted
by the ratio of determinants. *The naive operator* looks at all pairs.

References: Alimohammadi, Anari, Shiragur and Vuong (2021), *Fractionally log-concave and sector-stable polynomials*,
STOC; Han, Gartrell, Dohmatob and Karbasi (2022), *Scalable MCMC sampling for nonsymmetric determinantal point
processes*, ICML, Algorithms 1, 2 and 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.kernel import BORDER, log_minor, log_minors
from numpyro_ndpp.linalg import adjugate, determinant, matmul, right_divide, thin_product
from numpyro_ndpp.samplers.proposal import decompose, draw_k_dpp, log_esp_table, youla_symmetrization
from numpyro_ndpp.samplers.tree import (
    Tree,
    descend_symmetric,
    descend_to_leaf,
    leaf_items,
    pack_query,
    pick_above_rounding,
    symmetric_part,
)
from numpyro_ndpp.widths import at_own_width, narrowing_widths

# Proposals before the rejection operator hands over to the direct one.
_MAX_PROPOSALS = 1000
# Where the size varies and there is room for more items than this, a step costs its size and not the room.
WIDE = 32
_WIDTH_SHARE = 0.4

dot = partial(jnp.dot, precision="highest")


class WalkSettings(NamedTuple):
    """How long a walk is, how its pairs are drawn and where it starts: see :class:`~numpyro_ndpp.UpDown`."""

    num_steps: int | None
    up: str
    init: str


class ChainState(NamedTuple):
    """Where a chain is: its items (w,), padded with n, and the features of each that a step needs.

    Pinned items come first and stay. ``left`` (2, d, w) holds W x and a second image of every item x, ``right`` (r, w,
    d) xᵀ W and what else is needed.
    """

    subset: Array
    left: Array
    right: Array


class StepInfo(NamedTuple):
    """The number of rejected proposals in a step, and whether the subset changed."""

    num_rejections: Array
    changed: Array


class _Bordered(NamedTuple):
    """A, bordered by two phantom items: what the formulas of the module's docstring need. Zero in the dropped slots."""

    members: Array  # (w,) items of A, n in the dropped slots
    N: Array  # (w, w)
    from_left: Array  # (w, 2) N G, so that q = W X_Aᵀ N G
    from_right: Array  # (w, 2) Nᵀ G
    E: Array  # (2, 2)
    num_used: Array  # all slots from there on are empty


class _Primed(NamedTuple):
    """The kernel given A and the phantoms, as the module's docstring has it."""

    W: Array  # (d, d) W′
    CW: Array  # (d, d) C W′
    q: Array  # (d, 2)
    p: Array  # (2, d) pᵀ


class _Pair(NamedTuple):
    items: Array  # (2,)
    found: Array
    num_rejections: Array


class Forms(NamedTuple):
    """W and H as queries of the tree."""

    packed: Array  # (2, p)
    items: Array  # (n, 2) xᵀ W x and xᵀ H x


class _Query(NamedTuple):
    """The matrix c_W W + c_H H + left right (d, d), its low-rank part in factors."""

    coefficients: Array  # (2,)
    left: Array  # (d, r)
    right: Array  # (r, d)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tree", "C", "pinned", "log_scale", "lefts", "rights", "item_scale", "forms", "starts", "size_logits"],
    meta_fields=["settings"],
)
@dataclass(frozen=True)
class Walk:
    """The up-down walk of one kernel, prepared: ``init`` and ``step`` of a chain.

    The tree and the features are arguments of what is compiled, never constants in it: pass a walk through jit.

    >>> import jax
    >>> from jax import random
    >>> from numpyro_ndpp import KNDPP, UpDown
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(50, 2), (50, 2), (2, 2)]))
    >>> law = KNDPP(V, B, D, k=3)
    >>> walk = UpDown().prepare(law.X, law.W, 3, 3)
    >>> state = walk.init(law.greedy())
    >>> state, info = jax.jit(lambda walk, key, state: walk.step(key, state))(walk, random.key(0), state)
    >>> state.subset.shape, int(info.num_rejections)
    ((3,), 0)
    """

    tree: Tree
    C: Array  # (d, d)
    pinned: Array  # (j,) items in every subset, padded with n; no step drops them
    log_scale: Array  # log of what the kernel was divided by, for entries of about one
    lefts: Array  # (2, d, d) W, of the scaled kernel, and H = W C W; in float32 W and C W
    rights: Array  # (2, d, d) W and H; in float32 W alone
    item_scale: Array  # (n,) one over the size of an item's entries in L
    forms: Forms
    starts: Array  # (w,) or, where the size varies, (w+1, w): a subset of positive probability of each size
    size_logits: Array | None  # (d+1,) where the size varies
    settings: WalkSettings = field(metadata={"static": True})

    @property
    def width(self) -> int:
        """The largest number of items beside the pinned ones."""
        return self.starts.shape[-1]

    @property
    def W(self) -> Array:
        """The inner matrix (d, d) of the scaled kernel."""
        return self.lefts[0]

    def init(self, subset: Array) -> ChainState:
        """A chain at a subset (w,) of positive probability beside the pinned items, padded with n."""
        subset = jnp.append(self.pinned, jnp.sort(jnp.asarray(subset, jnp.int32)))
        return ChainState(subset, *self._images(self._features(subset)))

    def step(self, key: Array, state: ChainState, active: Array | bool = True) -> tuple[ChainState, StepInfo]:
        """One step: two items dropped, two added. A single item is drawn anew, an empty subset stays as it is.

        :param active: whether to move at all; a chain that is done waits so for others beside it.

        O(k d² + d² log n) for the direct operator, and d³ in float32. Each step leaves the law of the walk as it is.
        """
        n, width, first = len(self.tree.X), len(state.subset), len(self.pinned)
        if width == first:
            return state, StepInfo(jnp.asarray(0), jnp.asarray(False))
        up_key = None
        if self.settings.up != "direct":
            key, up_key = random.split(key)
        decisions = self.tree.num_decisions
        # All the random numbers of a step at once: each call of the generator is a program to compile.
        uniforms = random.uniform(key, (2 + width + 2 * decisions,), self.W.dtype)
        two, spread, down = uniforms[:2], uniforms[2 : 2 + width], uniforms[2 + width :].reshape(2, decisions)
        size = jnp.sum(state.subset[first:] < n)
        i, j = self._two_slots(two, size)
        slot = jnp.arange(width)
        kept = (state.subset < n) & (slot != i) & (slot != j)

        bordered = self._border(state, kept, spread, first + size)
        pair = self._direct(down, state, bordered, size >= 2)
        if up_key is not None:
            up = {"rejection": self._rejection, "naive": self._naive}[self.settings.up]
            of_two = up(up_key, state, bordered, pair)
            pair = jax.tree.map(lambda one, two: jnp.where(size >= 2, two, one), pair, of_two)

        # Rounding may have led the draw astray, to where there is no mass: then the chain stays.
        moves = pair.found & (size >= 1) & active
        items = jnp.where(size >= 2, pair.items, pair.items[::-1]).astype(state.subset.dtype)
        is_i, is_j = moves & (slot == i), moves & (slot == j) & (size >= 2)
        (left_a, right_a), (left_b, right_b) = (self._images(x) for x in self._features(items))
        left = jnp.where(is_i, left_a[..., None], jnp.where(is_j, left_b[..., None], state.left))
        is_row_i, is_row_j = is_i[:, None], is_j[:, None]
        right = jnp.where(is_row_i, right_a[:, None], jnp.where(is_row_j, right_b[:, None], state.right))
        subset = jnp.where(is_i, items[0], jnp.where(is_j, items[1], state.subset))
        same = jnp.all(jnp.any(subset[:, None] == state.subset, axis=1))
        changed = moves & ~same
        return ChainState(subset, left, right), StepInfo(jnp.where(moves, pair.num_rejections, 0), changed)

    def uniform_start(self, key: Array, size: Array | int, otherwise: Array) -> Array:
        """``size`` items (w,) beside the pinned ones, uniformly; ``otherwise`` (w,) if they have probability zero.

        Items without features, as conditioning leaves those that are out, are not among them. O(n).
        """
        if len(otherwise) == 0:
            return otherwise
        n = len(self.tree.X)
        free = jnp.any(self.tree.X != 0, axis=1).at[self.pinned].set(False, mode="drop")
        items = jnp.flatnonzero(free, size=n, fill_value=n)
        places = _distinct_items(jnp.sum(free), size, len(otherwise), key)
        uniform = jnp.sort(items.at[places].get(mode="fill", fill_value=n)).astype(otherwise.dtype)
        together = jnp.sort(jnp.append(self.pinned, uniform))
        return jnp.where(log_minor(self.tree.X, self.W, together) > -jnp.inf, uniform, otherwise)

    def move(self, key: Array, subset: Array, num_dropped: Array | int, num_added: Array | int) -> tuple[Array, Array]:
        r"""A proposal from a subset (w,), padded: r items dropped uniformly, which leaves A, then s drawn to join A.

        :param num_dropped, num_added: r and s, 0 to 2 each; they may be traced.
        :return: the new subset, and the logarithm of the Hastings ratio for the law det L_S of subsets of all sizes,

        .. math:: \binom{|S|}{r} Z_s(A) \Big/ \binom{|S'|}{s} Z_r(A), \qquad Z_s(A) = \sum_{|T|=s} \det L_{A∪T} ,

        zero for r = s; -inf where there is no such move. The reverse of a move has r and s exchanged: propose both
        equally often. O(w d² + d³ + d² log n).
        """
        n, width, decisions = len(self.tree.X), len(subset), self.tree.num_decisions
        state = self.init(subset)
        first, slot = len(self.pinned), jnp.arange(len(self.pinned) + width)
        size = jnp.sum(state.subset[first:] < n)
        uniforms = random.uniform(key, (2 + len(slot) + 2 * decisions,), self.W.dtype)
        spread, down = uniforms[2 : 2 + len(slot)], uniforms[2 + len(slot) :].reshape(2, decisions)
        i, j = self._two_slots(uniforms[:2], size)
        dropped = ((slot == i) & (num_dropped >= 1)) | ((slot == j) & (num_dropped == 2))
        bordered = self._border(state, (state.subset < n) & ~dropped, spread, first + size)

        # up to the same factor: det L_A, and the sums over one and two items more
        primed = self._primed(state, bordered)
        nothing = jnp.zeros_like(self.tree.X[0])
        one = self._dense(self._second_query(state, bordered, primed, nothing, jnp.asarray(False)))
        two = self._dense(self._first_query(state, bordered, primed))
        sums = jnp.stack([determinant(bordered.E), jnp.sum(one * self.C), 0.5 * jnp.sum(two * self.C)])
        log_sums = jnp.log(jnp.maximum(sums, 0.0))
        members = bordered.members
        a, found_a = descend_symmetric(self.tree, jnp.where(num_added == 2, two, one), down[0], members)
        second = self._second_query(state, bordered, primed, self._features(a), jnp.asarray(True))
        b, found_b = self._draw(second, down[1], jnp.append(members, a))
        added = jnp.where(jnp.arange(2) < num_added, jnp.stack([a, b]), n).astype(subset.dtype)
        together = jnp.sort(jnp.append(members[first:], added))
        new_size = size - num_dropped + num_added
        log_ratio = log_sums[num_added] - log_sums[num_dropped] + (num_added - num_dropped) * self.log_scale
        log_ratio += _log_choose(size, num_dropped) - _log_choose(new_size, num_added)
        log_ratio = jnp.where(jnp.equal(num_dropped, num_added), 0.0, log_ratio).astype(self.W.dtype)
        whole = jnp.sort(jnp.append(self.pinned, together))
        possible = (size >= num_dropped) & (new_size <= width)
        possible &= (log_sums[num_dropped] > -jnp.inf) & (log_sums[num_added] > -jnp.inf)
        possible &= ((num_added < 1) | found_a) & ((num_added < 2) | found_b)
        possible &= log_minor(self.tree.X, self.W, whole) > -jnp.inf
        return jnp.where(possible, together[:width], subset), jnp.where(possible, log_ratio, -jnp.inf)

    def _two_slots(self, uniforms: Array, size: Array) -> tuple[Array, Array]:
        """Two different slots out of the ``size`` that follow those of the pinned items, from two uniform numbers."""
        i = jnp.floor(uniforms[0] * size).astype(jnp.int32)
        j = jnp.floor(uniforms[1] * (size - 1)).astype(jnp.int32)
        return len(self.pinned) + i, len(self.pinned) + j + (j >= i)

    def _dense(self, query: "_Query | Array") -> Array:
        """The symmetric part (d, d) of a query."""
        if not isinstance(query, _Query):
            return query
        fixed = query.coefficients[0] * self.lefts[0] + query.coefficients[1] * self.lefts[1]
        return symmetric_part(fixed + matmul(query.left, query.right))

    def _features(self, items: Array) -> Array:
        return self.tree.X.at[items].get(mode="fill", fill_value=0)

    def _images(self, x: Array) -> tuple[Array, Array]:
        """The left and right images of the features x (d,) of one item or (w, d) of several."""
        return matmul(self.lefts, x.T), matmul(x, self.rights)

    def _border(self, state: ChainState, kept: Array, uniforms: Array, num_used: Array) -> _Bordered:
        """A, the kept slots (w,) of a chain, and two phantom items in general position.

        :param num_used: all slots from there on are empty. Where the size varies, the cost is by that, not by w.
        """
        width, dtype = len(kept), self.W.dtype
        scale = jnp.where(kept, self.item_scale.at[state.subset].get(mode="fill", fill_value=0), 0.0)
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
                from_left, from_right = (
                    jnp.pad(side * scale[:, None], (rest, (0, 0))) for side in (from_left, from_right)
                )
                return N, from_left, from_right, E

            return invert

        slots = state.right[0], self._features(state.subset), scale, G, kept
        N, from_left, from_right, E = self._at_own_width(at_width, width, num_used, *slots)
        members = jnp.where(kept, state.subset, len(self.tree.X))
        return _Bordered(members, N, from_left, from_right, E, num_used)

    def _at_own_width(self, function: Callable[[int], Callable], width: int, num_used: Array, *operands: Array) -> Any:
        """What is computed for all slots, for about as many of the first ones as are in use if their number varies."""
        widths = (width,) if self.size_logits is None else narrowing_widths(width, WIDE, _WIDTH_SHARE)
        return at_own_width(function, widths, num_used, *operands)

    def _direct(self, uniforms: Array, state: ChainState, bordered: _Bordered, is_pair: Array) -> _Pair:
        """The pair by two descents, with uniform numbers (2, decisions); only the second one if no pair is wanted."""
        members, primed = bordered.members, self._primed(state, bordered)
        a, found_a = self._draw(self._first_query(state, bordered, primed), uniforms[0], members)
        a = jnp.where(is_pair, a, len(self.tree.X))
        second = self._second_query(state, bordered, primed, self._features(a), is_pair)
        b, found_b = self._draw(second, uniforms[1], jnp.append(members, a))
        return _Pair(jnp.stack([a, b]), (found_a | ~is_pair) & found_b, jnp.asarray(0))

    # In float64 queries stay in factors, which spares products of d³. Their terms are as large as the kernel, though,
    # and where A takes most of that away, float32 has no digits left: there W′ is formed first.

    def _first_query(self, state: ChainState, bordered: _Bordered, primed: "_Primed | None") -> "_Query | Array":
        """M, the query for the first item of a pair."""
        return self._first_factored(state, bordered) if primed is None else self._first_dense(primed, bordered)

    def _second_query(
        self, state: ChainState, bordered: _Bordered, primed: "_Primed | None", x: Array, is_there: Array
    ) -> "_Query | Array":
        """The query for the second item, given the features x of the first; for the only one if there is no first."""
        if primed is None:
            return self._second_factored(state, bordered, x, is_there)
        return self._second_dense(primed, bordered, x, is_there)

    def _draw(self, query: "_Query | Array", uniforms: Array, excluded: Array) -> tuple[Array, Array]:
        """An item by a descent, and whether one was found."""
        if isinstance(query, _Query):
            return self._draw_factored(query, uniforms, excluded)
        return descend_symmetric(self.tree, query, uniforms, excluded)

    def _primed(self, state: ChainState, bordered: _Bordered) -> "_Primed | None":
        if self.W.dtype == jnp.float64:
            return None

        def at_width(w: int) -> Callable[..., _Primed]:
            def prime(N: Array, Z: Array, from_left: Array, from_right: Array, images: Array) -> _Primed:
                Z, (U, CU), NZ = Z[:w], images[..., :w], matmul(N[:w, :w], Z[:w])
                W, CW = self.lefts[0] - matmul(U, NZ), self.lefts[1] - matmul(CU, NZ)
                return _Primed(W, CW, matmul(U, from_left[:w]), matmul(from_right[:w].T, Z))

            return prime

        operands = bordered.N, state.right[0], bordered.from_left, bordered.from_right, state.left
        return self._at_own_width(at_width, len(bordered.N), bordered.num_used, *operands)

    def _first_dense(self, primed: _Primed, bordered: _Bordered) -> Array:
        """The symmetric part of M, the query for the first item."""
        E, (W, CW, q, p) = bordered.E, primed
        det_E, qE = determinant(E), thin_product(q, adjugate(E))  # T = qE pᵀ
        pC = matmul(p, self.C)
        trace_WC, trace_TC = jnp.sum(jnp.diagonal(CW)), jnp.sum(pC.T * qE)
        g = matmul(pC, q).T
        # what stands before pᵀ
        left = matmul(W, matmul(self.C, qE)) - trace_WC * qE + thin_product(q, adjugate(g).T)
        # W′CW′ is a product of two matrices that are both as small as A leaves them.
        inner = jnp.concatenate(
            [(det_E * trace_WC - trace_TC) * jnp.eye(len(W), dtype=W.dtype) - det_E * CW, p, matmul(p, CW)]
        )
        return symmetric_part(matmul(jnp.concatenate([W, left, qE], axis=1), inner))

    def _second_dense(self, primed: _Primed, bordered: _Bordered, x: Array, is_there: Array) -> Array:
        """The symmetric part of the query for the second item, given the features x of the first, if there is one."""
        W, _, q, p = primed
        Wx, xW = matmul(W, x), matmul(x, W)
        own = jnp.where(is_there, dot(x, Wx), 1.0)
        corner = self._corner(jnp.append(own, matmul(x, q)), jnp.append(own, matmul(p, x)), bordered.E)
        left, right = jnp.concatenate([Wx[:, None], q], axis=1), jnp.concatenate([xW[None], p])
        return symmetric_part(determinant(corner) * W - matmul(matmul(left, adjugate(corner)), right))

    def _corner(self, row: Array, column: Array, E: Array) -> Array:
        """The matrix (3, 3) over an item and the phantoms, E below a row (3,) and a column (3,)."""
        return jnp.concatenate([row[None], jnp.concatenate([column[1:, None], E], axis=1)])

    def _first_factored(self, state: ChainState, bordered: _Bordered) -> _Query:
        """M, multiplied out in the features of A: with U = W X_Aᵀ, Z = X_A W, R = H X_Aᵀ, Y = X_A H and J = Y X_Aᵀ,

        W′ = W - U N Z and W′CW′ = H - U N Y - R N Z + U N J N Z, and likewise for the other terms.
        """
        N, a, b, E = bordered.N, bordered.from_left, bordered.from_right, bordered.E
        J = matmul(state.right[1], self._features(state.subset).T)
        det_E, aE = determinant(E), thin_product(a, adjugate(E))  # T = U aE bᵀ Z
        NJ, bJ = matmul(N, J), matmul(b.T, J)
        trace_WC = jnp.sum(self.W.T * self.C) - jnp.trace(NJ)
        trace_TC = jnp.sum(bJ * aE.T)
        g = matmul(bJ, a).T
        c_W = det_E * trace_WC - trace_TC
        ends_in_b = thin_product(a, adjugate(g).T) - trace_WC * aE - matmul(NJ, aE)
        between = thin_product(ends_in_b, b.T) - matmul(det_E * NJ + thin_product(aE, bJ), N) - c_W * N
        across = det_E * N + thin_product(aE, b.T)
        (Z, Y), across_Z = state.right, matmul(across, state.right[0])
        right = jnp.concatenate([matmul(between, Z) + matmul(across, Y), across_Z])
        return _Query(jnp.stack([c_W, -det_E]), jnp.concatenate([*state.left], axis=1), right)

    def _second_factored(self, state: ChainState, bordered: _Bordered, x: Array, is_there: Array) -> _Query:
        """The query for the second item, given the features x of the first, if there is one, in those of A and x."""
        N, a, b = bordered.N, bordered.from_left, bordered.from_right
        to_x, from_x = matmul(state.right[0], x), matmul(x, state.left[0])  # L_{A,x}, L_{x,A}
        own_left, own_right = matmul(self.W, x), matmul(x, self.W)
        # W′x = [U, Wx] times the first column, and so on
        left = jnp.pad(jnp.concatenate([-matmul(N, to_x)[:, None], a], axis=1), ((0, 1), (0, 0))).at[-1, 0].set(1.0)
        right = jnp.pad(jnp.concatenate([-matmul(from_x, N)[:, None], b], axis=1), ((0, 1), (0, 0))).at[-1, 0].set(1.0)
        own = jnp.where(is_there, dot(x, own_left), 1.0)
        corner = self._corner(matmul(jnp.append(from_x, own), left), matmul(jnp.append(to_x, own), right), bordered.E)
        det_corner = determinant(corner)
        between = -det_corner * jnp.pad(N, (0, 1)) - thin_product(thin_product(left, adjugate(corner)), right.T)
        return _Query(
            coefficients=jnp.stack([det_corner, jnp.zeros_like(det_corner)]),
            left=jnp.concatenate([state.left[0], own_left[:, None]], axis=1),
            right=matmul(between, jnp.concatenate([state.right[0], own_right[None]])),
        )

    def _draw_factored(self, query: _Query, uniforms: Array, excluded: Array) -> tuple[Array, Array]:
        """An item by a descent. Its leaf's masses come from the factors where that is less than O(d²) an item."""
        low_rank = symmetric_part(matmul(query.left, query.right))
        packed = matmul(query.coefficients, self.forms.packed) + pack_query(low_rank)
        items, rows = leaf_items(self.tree, descend_to_leaf(self.tree, packed, uniforms[1:]))
        own = query.coefficients * self.forms.items.at[items].get(mode="fill", fill_value=0)
        d, rank = query.left.shape
        if 2 * rank < d:
            terms = matmul(rows, query.left) * matmul(rows, query.right.T)
        else:
            terms = matmul(rows, low_rank) * rows
        index, found = pick_above_rounding(jnp.concatenate([own, terms], axis=1), items, excluded, uniforms[0])
        return items[index], found

    def _rejection(self, key: Array, state: ChainState, bordered: _Bordered, direct: _Pair) -> _Pair:
        """The published operator (Algorithm 2): pairs of a symmetric kernel that dominates, until one is accepted.

        Where L_A is singular there is no conditional kernel to symmetrise, and after too many rejections the direct
        operator takes over. Neither changes the law: both operators draw from the same one.
        """
        det_E = determinant(bordered.E)
        regular = det_E > jnp.sqrt(jnp.finfo(det_E.dtype).eps)
        # L_A⁻¹ = N + N G E⁻¹ Gᵀ N
        across = thin_product(thin_product(bordered.from_left, adjugate(bordered.E)), bordered.from_right.T)
        inverse = bordered.N + across / jnp.where(regular, det_E, 1.0)
        W = self.W - matmul(state.left[0], matmul(inverse, state.right[0]))
        What = youla_symmetrization(W)
        proposal = decompose(What, self.C)
        table = log_esp_table(proposal.eigenvalues, 2)

        def propose(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            number, _, _ = carry
            draw_key, accept_key = random.split(random.fold_in(key, number))
            items, found = draw_k_dpp(self.tree, proposal, table, 2, draw_key, bordered.members)
            x = self._features(items)
            target, dominating = (determinant(matmul(matmul(x, Q), x.T)) for Q in (W, What))
            accepted = found & (random.uniform(accept_key, (), W.dtype) * dominating < target)
            return number + 1, items, accepted

        def unfinished(carry: tuple[Array, Array, Array]) -> Array:
            number, _, accepted = carry
            return regular & ~accepted & (number < _MAX_PROPOSALS)

        start = (jnp.asarray(0), jnp.full(2, len(self.tree.X)), jnp.asarray(False))
        number, items, accepted = lax.while_loop(unfinished, propose, start)
        return jax.tree.map(
            lambda proposed, other: jnp.where(accepted, proposed, other),
            _Pair(items.astype(direct.items.dtype), accepted, number - 1),
            direct._replace(num_rejections=number),
        )

    def _naive(self, key: Array, state: ChainState, bordered: _Bordered, direct: _Pair) -> _Pair:
        """All pairs, by the determinants of all their subsets: O(n² k² (d + k)). For checking the others."""
        n = len(self.tree.X)
        rest = jnp.sort(bordered.members)
        size = jnp.sum(rest < n)
        others = jnp.arange(n, dtype=rest.dtype)

        def log_weights(a: Array) -> Array:
            """log det L_{A∪{a,b}} for every b."""
            subsets = jnp.broadcast_to(rest, (n, len(rest))).at[:, size].set(a, mode="drop")
            subsets = subsets.at[others, size + 1].set(others, mode="drop")
            possible = ~jnp.isin(others, rest) & ~jnp.isin(a, rest) & (others != a)
            return jnp.where(possible, log_minors(self.tree.X, self.W, subsets), -jnp.inf)

        keys = random.split(key)
        row_sums = lax.map(lambda a: jax.nn.logsumexp(log_weights(a)), others)
        a = random.categorical(keys[0], row_sums).astype(rest.dtype)
        weights = log_weights(a)
        b = random.categorical(keys[1], weights).astype(rest.dtype)
        return _Pair(jnp.stack([a, b]), weights[b] > -jnp.inf, jnp.asarray(0))


def _log_choose(n: Array, r: Array | int) -> Array:
    """log of the number of ways to choose r = 0, 1 or 2 of n; zero where there is none."""
    n = jnp.maximum(n, 1)
    pairs = jnp.log(jnp.maximum(n * (n - 1), 2) / 2)
    return jnp.where(jnp.equal(r, 0), 0.0, jnp.where(jnp.equal(r, 1), jnp.log(n), pairs))


def item_scale(W: Array, x: Array) -> Array:
    """One over the size of the entries of L = X W Xᵀ that belong to an item with features x (d,)."""
    length = jnp.sqrt(jnp.linalg.norm(x) * jnp.linalg.norm(matmul(x, W)))
    return 1 / jnp.where(length > 0, length, 1.0)


def _distinct_items(n: Array | int, size: Array | int, width: int, key: Array) -> Array:
    """``size`` of n items (width,), uniformly without repetition and padded with n (Floyd's algorithm)."""

    def add(subset: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        number, key = step
        last = n - size + number
        item = random.randint(key, (), 0, jnp.maximum(last, 0) + 1)
        item = jnp.where(jnp.isin(item, subset), last, item)
        return subset.at[number].set(jnp.where(number < size, item, n)), None

    return lax.scan(add, jnp.full(width, n), (jnp.arange(width), random.split(key, width)))[0]
