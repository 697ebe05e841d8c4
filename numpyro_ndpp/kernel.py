r"""The low-rank kernel L = X W Xᵀ, never formed: Gram matrix, principal minors, inclusion probabilities.

X (n, d) holds one row of features per item, W (d, d) has a positive semidefinite symmetric part; so every principal
minor det L_S = det(X_S W X_Sᵀ) is non-negative. A user's V (n, d₁), B (n, d₂), D (d₂, d₂) are the special case
X = [V B], W = Diag(I, D - Dᵀ).

Reference: Gartrell, Han, Dohmatob, Gillenwater and Brunel (2021), *Scalable learning and MAP inference for
nonsymmetric determinantal point processes*, ICLR.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from numpyro_ndpp.linalg import adjugate, column_lengths, determinant, log_det, log_det_and_slope, matmul
from numpyro_ndpp.rows import take_rows
from numpyro_ndpp.widths import at_own_width, narrowing_widths

# The rows of a chunk of subsets are gathered at once, and again in the backward pass. A CPU is fastest where they fit
# into its cache, an accelerator where there are many of them.
_CHUNK_BYTES = {"cpu": 3 * 2**20}
_CHUNK_BYTES_ELSEWHERE = 256 * 2**20
# Sorted by size, the subsets are cut into about so many groups, each computed at its own width.
_NUM_GROUPS = {"cpu": 24}
_NUM_GROUPS_ELSEWHERE = 8
# No group is smaller than this. An accelerator waits for the width of each, so it has fewer of them.
_SMALLEST_GROUP = {"cpu": 8}
_SMALLEST_GROUP_ELSEWHERE = 512
# Few widths, for each is compiled.
_SMALLEST_WIDTH = 16
_WIDTH_SHARE = 0.4
# So many numbers at a time where something is computed for every item beside every one of many subsets.
_ITEM_CHUNK = 2**22
# The slopes are kept for the backward pass if all of them together are no larger than this, else computed again.
_SLOPE_BYTES = 64 * 2**20
# Features of the phantom items. Large ones keep a singular L_A farthest from trouble, small ones disturb a regular one
# least; a tenth of the items' own is the best of both in float32, and in float64 it hardly matters.
BORDER = 0.1
_GOLDEN_SECTION = 0.6180339887498949
# A determinant is taken for zero within so many units of rounding of the terms that were subtracted to give it.
_ROUNDING_UNITS = 32


def inner_matrix(num_symmetric: int, K: Array) -> Array:
    """W = Diag(I, K) (d, d), with an identity of size ``num_symmetric``."""
    d1, d2 = num_symmetric, len(K)
    W = jnp.zeros((d1 + d2, d1 + d2), K.dtype)
    return W.at[:d1, :d1].set(jnp.eye(d1, dtype=K.dtype)).at[d1:, d1:].set(K)


@jax.custom_jvp
def gram(X: Array) -> Array:
    """C = XᵀX (d, d), the only reduction over all items that the normaliser needs."""
    return matmul(X.T, X)


@gram.defjvp
def _gram_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # One product over all items instead of two, in the backward pass too.
    half = matmul(tangents[0].T, primals[0])
    return gram(primals[0]), half + half.T


def quadratic_forms(X: Array, Q: Array) -> Array:
    """x_aᵀ Q x_a for every item a (n,)."""
    return jnp.sum(matmul(X, Q) * X, axis=-1)


def marginal_matrix(W: Array, C: Array) -> Array:
    """Z = W (I + C W)⁻¹ (d, d), for which X Z Xᵀ is the marginal kernel: P(J ⊆ S) is its minor on J. O(d³)."""
    return jnp.linalg.solve((jnp.eye(len(W), dtype=W.dtype) + matmul(C, W)).T, W.T).T


class Pinned(NamedTuple):
    """Items that are in every subset: their features (j, d), zero where there is none, and which there are (j,)."""

    rows: Array
    present: Array

    @classmethod
    def of(cls, X: Array, items: Array) -> "Pinned":
        """The items (j,), padded with n."""
        return cls(X.at[items].get(mode="fill", fill_value=0), items < len(X))

    @property
    def number(self) -> Array:
        return jnp.sum(self.present)

    def log_prob(self, Z: Array) -> Array:
        """log det (X Z Xᵀ)_J, which is log P(J ⊆ S) if X Z Xᵀ is the marginal kernel; -inf where zero to rounding."""
        num_rows = len(self.rows)
        items = jnp.sort(jnp.where(self.present, jnp.arange(num_rows), num_rows))
        return log_minors(self.rows, Z, items[None])[0]


def marginal_given(W: Array, C: Array, pinned: Pinned) -> Array:
    """Z of the marginal kernel given the pinned items, Z - Z X_Jᵀ (X_J Z X_Jᵀ)⁻¹ X_J Z, which always exists. O(d³)."""
    Z, rows = marginal_matrix(W, C), pinned.rows
    if len(rows) == 0:
        return Z
    left = matmul(rows, Z)
    minor = matmul(left, rows.T) + jnp.diag((~pinned.present).astype(Z.dtype))
    return Z - matmul(matmul(Z, rows.T), jnp.linalg.solve(minor, left))


class OwnForms(NamedTuple):
    """x_aᵀ W x_a of every item (n,), the size of the terms that it is the sum of (n,), and the length of x_a (n,)."""

    values: Array
    magnitudes: Array
    lengths: Array

    @classmethod
    def of(cls, X: Array, W: Array) -> "OwnForms":
        left = matmul(X, W)
        of_images, lengths = (jnp.linalg.norm(lax.stop_gradient(side), axis=1) for side in (left, X))
        return cls(jnp.sum(left * X, axis=1), of_images * lengths, lengths)


class _Minor(NamedTuple):
    """L_S of one subset with its rows and columns scaled, and what leads from every item to it."""

    scaled: Array
    """(m, m), ones on the diagonal where there is no item."""
    from_items: Array
    """(d, m): x_aᵀ times it are the entries of L_{aS}, scaled."""
    to_items: Array
    """(d, m), likewise L_{Sa}."""
    present: Array

    @classmethod
    def of(cls, X: Array, W: Array, subset: Array) -> "_Minor":
        present = subset < len(X)
        rows = X.at[subset].get(mode="fill", fill_value=0)
        images = matmul(rows, W)
        lengths = lax.stop_gradient(jnp.sqrt(jnp.linalg.norm(rows, axis=1) * jnp.linalg.norm(images, axis=1)))
        scale = jnp.where(present & (lengths > 0), 1 / jnp.where(lengths > 0, lengths, 1.0), 0.0)
        scaled = matmul(images, rows.T) * scale[:, None] * scale + jnp.diag((~present).astype(X.dtype))
        return cls(scaled, matmul(W, rows.T) * scale, images.T * scale, present)


@jax.jit
def log_next_probs(X: Array, W: Array, subsets: Array) -> Array:
    """log (det L_{S∪a} / Σ_b det L_{S∪b}) for each of the subsets S (s, m) and every item a, (s, n); -inf if zero."""
    own = OwnForms.of(X, W)
    chunk = max(1, _ITEM_CHUNK // (len(X) * max(subsets.shape[1], 1)))
    return lax.map(partial(_log_next_probs, X, W, own), subsets, batch_size=min(chunk, len(subsets)))


@jax.custom_jvp
def _log_next_probs(X: Array, W: Array, own: OwnForms, subset: Array) -> Array:
    log_minors = _log_next_minors(X, W, own, subset)
    is_none = jnp.all(log_minors == -jnp.inf)
    log_probs = log_minors - jnp.where(is_none, 0.0, jax.nn.logsumexp(log_minors))
    return jnp.where(jnp.isnan(jnp.sum(own.values)), jnp.nan, log_probs)  # a kernel with NaN gives NaN


@_log_next_probs.defjvp
def _log_next_probs_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    # Singular values have no derivative where they meet, so that comes from another formula for the same.
    log_probs = _log_next_probs(*primals)
    subset = primals[3]

    def slope(X: Array, W: Array, own: Array) -> Array:
        if len(subset) == 0:
            bordered = own
        else:
            minor = _Minor.of(X, W, subset)
            sides = matmul(X, minor.from_items), matmul(X, minor.to_items)
            bordered = _bordered_next_minors(own, minor.scaled, minor.present, *sides)
        usable = (log_probs > -jnp.inf) & (bordered > 0)
        # An item that cannot join has a weight of zero, which is its smallest: that has a second derivative.
        total = jnp.sum(jnp.where(_are_members(subset, len(X)), 0.0, bordered))
        total = jnp.where(jnp.any(usable), total, 1.0)
        return jnp.where(usable, jnp.log(jnp.where(usable, bordered, 1.0)) - jnp.log(total), 0.0)

    return log_probs, jax.jvp(slope, (*primals[:2], primals[2].values), (*tangents[:2], tangents[2].values))[1]


def _are_members(subset: Array, n: int) -> Array:
    """Which of the n items (n,) are in the subset (m,)."""
    return jnp.zeros(n, bool).at[subset].set(True, mode="drop")


def _log_next_minors(X: Array, W: Array, own: OwnForms, subset: Array) -> Array:
    r"""log det L_{S∪a} for every item a (n,), up to a constant; -inf for members and where it is zero to rounding.

    :param subset: items (m,), padded with n.

    .. math:: \det L_{S∪a} = \det L_S \, L_{aa} - L_{aS} \operatorname{adj}(L_S) L_{Sa}

    L_S may be singular although L_{S∪a} is not: its adjugate comes from the singular values, which are divided by all
    but the smallest. O(n m d + m³).
    """
    m, eps = len(subset), jnp.finfo(X.dtype).eps
    if m == 0:
        positive = own.values > _ROUNDING_UNITS * eps * own.magnitudes
        return jnp.where(positive, jnp.log(jnp.where(positive, own.values, 1.0)), -jnp.inf)
    minor = _Minor.of(X, W, subset)
    U, sigma, Vt = jnp.linalg.svd(minor.scaled)
    largest = jnp.maximum(sigma[0], 1.0)  # entries are sums of terms up to one, and may be nothing but their rounding
    smallest = jnp.where(sigma[-1] > m * eps * largest, sigma[-1], 0.0)
    ratios = jnp.where(jnp.arange(m) < m - 1, smallest / jnp.where(sigma > 0, sigma, 1.0), 1.0)
    sign = jnp.prod(jnp.linalg.slogdet(jnp.stack([U, Vt]))[0])
    # Along singular vectors, so that what is small is found small before it is multiplied.
    along = jnp.concatenate([matmul(minor.from_items, Vt.T), matmul(minor.to_items, U)], axis=1)
    left, right = jnp.split(matmul(X, along), 2, axis=1)
    values = sign * (smallest * own.values - jnp.sum(ratios * left * right, axis=1))
    length_left, length_right = (jnp.linalg.norm(side, axis=1) for side in (left, right))
    weight_left, weight_right = (jnp.sum(ratios * jnp.abs(side), axis=1) for side in (left, right))
    magnitude = smallest * own.magnitudes + weight_left * length_right + weight_right * length_left
    second = sigma[-2] if m > 1 else jnp.ones((), X.dtype)
    possible = second > m * eps * largest  # no item makes up for two that are missing
    units = _ROUNDING_UNITS * eps * largest / jnp.where(possible, second, 1.0)  # singular vectors are as good as that
    # Both sides may be nothing but the rounding of the products that they are.
    reach = jnp.linalg.norm(minor.from_items) * jnp.linalg.norm(minor.to_items) * own.lengths**2
    rounding = units * magnitude + units**2 * reach
    positive = possible & ~_are_members(subset, len(X)) & (values > rounding)
    return jnp.where(positive, jnp.log(jnp.where(positive, values, 1.0)), -jnp.inf)


def _bordered_next_minors(own: Array, minor: Array, present: Array, from_items: Array, to_items: Array) -> Array:
    r"""det L_{S∪a} for every item a (n,), up to a constant, by S bordered with two phantom items of features G (m, 2):

    .. math:: \det L_{S∪a}
              = \begin{vmatrix} L_S + GG^\top & L_{Sa} & G \\ L_{aS} & L_{aa} & 0 \\ G^\top & 0 & I \end{vmatrix}
              ∝ \det E \, (L_{aa} - L_{aS} N L_{Sa}) - L_{aS} N G \operatorname{adj}(E) G^\top N L_{Sa}

    with N the inverse of L_S + GGᵀ and E = I - GᵀNG.
    """
    m, dtype = len(minor), minor.dtype
    # Directions spread by the golden section: no two items share one.
    angle = math.pi * ((jnp.arange(m, dtype=dtype) * _GOLDEN_SECTION) % 1.0)
    G = BORDER * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) * present[:, None]
    N = jnp.linalg.inv(minor + matmul(G, G.T))
    E = jnp.eye(2, dtype=dtype) - matmul(G.T, matmul(N, G))
    det_E = determinant(E)
    between = det_E * N + matmul(matmul(N, G), matmul(adjugate(E), matmul(G.T, N)))
    return det_E * own - jnp.sum(matmul(from_items, between) * to_items, axis=1)


def _minor_and_scales(rows: Array, bk: Array, size: Array) -> tuple[Array, Array, Array]:
    """L_S from the rows [v b] (m, d) and b K (m, d₂) of a subset, zero beyond its size, and what bounds its entries."""
    m, d1 = len(rows), rows.shape[1] - bk.shape[1]
    left = jnp.concatenate([rows[:, :d1], bk], axis=1)
    place = jnp.arange(m)
    padding = (place[:, None] == place) & (place >= size)  # a one on the diagonal leaves the determinant as it is
    minor = matmul(left, rows.T) + padding.astype(rows.dtype)
    # No determinant or inverse depends on the scales; a derivative through them would fail at rows of zeros.
    row_scale, column_scale = (
        jnp.where(length > 0, length, 1.0)
        for length in (jnp.linalg.norm(lax.stop_gradient(side), axis=1) for side in (left, rows))
    )
    return minor, row_scale, column_scale


def _widths(width: int) -> tuple[int, ...]:
    return narrowing_widths(width, _SMALLEST_WIDTH, _WIDTH_SHARE)


@jax.custom_jvp
def _group_log_minors(rows: Array, bk: Array, sizes: Array) -> Array:
    """log det L_S for the rows (g, m, d) and (g, m, d₂) of a group of subsets and their sizes (g,)."""

    def at_width(w: int) -> Callable[..., Array]:
        def log_minors(rows: Array, bk: Array) -> Array:
            return jax.vmap(log_det)(*jax.vmap(_minor_and_scales)(rows[:, :w], bk[:, :w], sizes))

        return log_minors

    return at_own_width(at_width, _widths(rows.shape[1]), sizes, rows, bk)


@_group_log_minors.defjvp
def _group_log_minors_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    # d log det L_S = <L_S⁻ᵀ, dL_S>, which is linear: its factors are kept, and the backward pass has no more to do than
    # to multiply them.
    rows, bk, sizes = primals
    width, d1 = rows.shape[1], rows.shape[2] - bk.shape[2]

    def at_width(w: int) -> Callable[..., tuple[Array, Array, Array]]:
        def slopes(rows: Array, bk: Array) -> tuple[Array, Array, Array]:
            rows, bk = rows[:, :w], bk[:, :w]
            values, inverse = jax.vmap(log_det_and_slope)(*jax.vmap(_minor_and_scales)(rows, bk, sizes))
            left = jnp.concatenate([rows[..., :d1], bk], axis=-1)
            of_left, of_rows = matmul(inverse, rows), matmul(jnp.swapaxes(inverse, 1, 2), left)
            of_rows = jnp.concatenate([of_rows[..., :d1] + of_left[..., :d1], of_rows[..., d1:]], axis=-1)
            rest = ((0, 0), (0, width - w), (0, 0))
            return values, jnp.pad(of_rows, rest), jnp.pad(of_left[..., d1:], rest)

        return slopes

    values, of_rows, of_bk = at_own_width(at_width, _widths(width), sizes, rows, bk)
    of_rows, of_bk = checkpoint_name((of_rows, of_bk), "slopes")
    return values, jnp.sum(of_rows * tangents[0], axis=(1, 2)) + jnp.sum(of_bk * tangents[1], axis=(1, 2))


def _chunk_log_minors(X: Array, K: Array, products: Array | None, subsets: Array) -> Array:
    """log det L_S (h, g) of h groups of g subsets (h, g, m)."""
    rows = take_rows(X, subsets)
    bk = matmul(rows[..., rows.shape[-1] - len(K) :], K) if products is None else take_rows(products, subsets)
    sizes = jnp.sum(subsets < len(X), axis=-1)
    if len(subsets) == 1:
        return _group_log_minors(rows[0], bk[0], sizes[0])[None]
    return lax.map(lambda group: _group_log_minors(*group), (rows, bk, sizes))


@jax.jit
def log_minors(X: Array, K: Array, subsets: Array) -> Array:
    """log det L_S of subsets (s, m), each padded with n; -inf where it is zero to rounding.

    The kernel is L = X W Xᵀ with W = Diag(I, K), where K (d₂, d₂) may be as large as W.

    Subsets of a like size are put together and computed at about their own width: a basket of 5 padded to 100 would
    cost 400 times its share. Chunks of such groups bound the memory.
    """
    num_subsets, width = subsets.shape
    if num_subsets == 0 or width == 0:
        return jnp.zeros(num_subsets, X.dtype)
    (n, d), itemsize = X.shape, X.dtype.itemsize
    backend = jax.default_backend()
    chunk_bytes = _CHUNK_BYTES.get(backend, _CHUNK_BYTES_ELSEWHERE)
    least_groups = _NUM_GROUPS.get(backend, _NUM_GROUPS_ELSEWHERE)
    smallest_group = _SMALLEST_GROUP.get(backend, _SMALLEST_GROUP_ELSEWHERE)
    most = max(1, chunk_bytes // (itemsize * width * (d + len(K) + width)))
    group = min(num_subsets, most, max(smallest_group, -(-num_subsets // least_groups)))
    num_groups = -(-num_subsets // group)
    groups = min(num_groups, max(1, most // group))
    num_chunks = -(-num_groups // groups)
    # B K for every item, once, where the subsets name more rows than there are items.
    products = matmul(X[:, d - len(K) :], K) if num_subsets * width >= n else None

    order = jnp.argsort(jnp.sum(subsets < n, axis=1))
    extra = num_chunks * groups * group - num_subsets
    # The extra subsets are empty, and in front, where the small ones are.
    ordered = jnp.pad(subsets[order], ((extra, 0), (0, 0)), constant_values=n)
    chunks = ordered.reshape(num_chunks, groups, group, width)
    if num_chunks == 1:
        values = _chunk_log_minors(X, K, products, chunks[0])
    else:
        keep = ["slopes"] if itemsize * num_subsets * width * (d + len(K)) <= _SLOPE_BYTES else []
        policy = jax.checkpoint_policies.save_only_these_names(*keep)
        values = lax.map(jax.checkpoint(partial(_chunk_log_minors, X, K, products), policy=policy), chunks)
    values = values.reshape(-1)[extra:]
    return jnp.zeros_like(values).at[order].set(values, unique_indices=True)


def log_minor(X: Array, K: Array, subset: Array) -> Array:
    """log det L_S of one subset (m,), padded with n; no gradient is asked of it. O(m d² + m² d + m³).

    For loops and chains: under vmap it stays one factorisation. That of :func:`log_minors` would become one for each of
    its widths, and on a CPU, where jaxlib hands a batch of factorisations to the same few threads that wait for it, as
    many of them at once as there are threads wait forever.
    """
    if len(subset) == 0:
        return jnp.zeros((), X.dtype)
    rows = X.at[subset].get(mode="fill", fill_value=0)
    bk = matmul(rows[:, rows.shape[1] - len(K) :], K)
    return log_det(*_minor_and_scales(rows, bk, jnp.sum(subset < len(X))))


def whiten(X: Array, W: Array) -> tuple[Array, Array]:
    """Features and inner matrix of the same kernel X W Xᵀ in a basis where XᵀX is about the identity.

    Exact whatever the basis: only the rounding errors of what is computed in it depend on how near to one it comes.
    """
    C = gram(X)
    length = column_lengths(C)
    values, vectors = jnp.linalg.eigh(C / (length[:, None] * length))
    # The longest direction first: elimination is accurate where large numbers come before small ones.
    values, vectors = values[::-1], vectors[:, ::-1]
    scale = jnp.sqrt(jnp.maximum(values, jnp.finfo(C.dtype).eps * values[0]))
    scale = jnp.where(scale > 0, scale, 1.0)
    to_features = vectors * scale * length[:, None]
    return matmul(X, vectors / scale / length[:, None]), matmul(to_features.T, matmul(W, to_features))
