r"""Principal minors log det L_S of many subsets of a low-rank kernel, with their gradients.

.. math:: \log\det L_S = \log\det\left(V_S V_S^\top + B_S K B_S^\top\right), \qquad
          \frac{\partial \log\det L_S}{\partial L_S} = L_S^{-\top} .

Subsets of a like size are computed together, at about their own width.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from numpyro_ndpp.devices import Shards
from numpyro_ndpp.kernel import Kernel, rows_of
from numpyro_ndpp.linalg import log_det, log_det_and_slope, matmul
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.rows import take_rows
from numpyro_ndpp.widths import at_own_width, narrowing_widths

# Few widths, for each is compiled.
_SMALLEST_WIDTH = 16
_WIDTH_SHARE = 0.4
# The slopes are kept for the backward pass if all of them together are no larger than this, else computed again.
_SLOPE_BYTES = 64 * 2**20
# The rows of all subsets together, where devices share the subsets.
_SHARED_BYTES = 256 * 2**20


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
def log_minors(kernel: Kernel, subsets: Array) -> Array:
    """log det L_S of subsets (s, m), each padded with n; -inf where it is zero to rounding.

    Subsets of a like size are put together and computed at about their own width: a basket of 5 padded to 100 would
    cost 400 times its share. Chunks of such groups bound the memory.
    """
    (num_subsets, width), X, K = subsets.shape, kernel.X, kernel.K
    if num_subsets == 0 or width == 0:
        return jnp.zeros(num_subsets, X.dtype)
    (n, d), itemsize = X.shape, X.dtype.itemsize
    hardware = platform()
    most = max(1, hardware.minor_chunk_bytes // (itemsize * width * (d + len(K) + width)))
    group = min(num_subsets, most, max(hardware.smallest_group, -(-num_subsets // hardware.num_groups)))
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


def log_minors_in_shares(shards: Shards, kernel: Kernel, subsets: Array) -> Array:
    """:func:`log_minors` with each device along an axis computing its share of the subsets (s, m).

    Rows are read where they are and handed to the device that needs them, s m d numbers in all; the backward pass hands
    as many back. Where there are fewer subsets than devices, or so many that their rows would fill the memory, nothing
    is shared.
    """
    (num_subsets, width), (n, d), num_devices = subsets.shape, kernel.X.shape, shards.number
    is_large = num_subsets * width * d * kernel.X.dtype.itemsize > _SHARED_BYTES
    if num_subsets < num_devices or width == 0 or is_large or shards.is_inside:
        return log_minors(kernel, subsets)
    # In the order of their sizes, dealt like cards: no device has all the large ones.
    extra, share = -num_subsets % num_devices, -(-num_subsets // num_devices)
    order = jnp.argsort(jnp.sum(subsets < n, axis=1))
    dealt = jnp.pad(subsets[order], ((extra, 0), (0, 0)), constant_values=n)
    dealt = dealt.reshape(share, num_devices, width).swapaxes(0, 1).reshape(-1, width)

    def of_device(X: Array, dealt: Array, W: Array, K: Array) -> Array:
        place = dealt - shards.index * len(X)
        rows = take_rows(X, jnp.where(place < 0, len(X), place))
        rows = lax.psum_scatter(rows, shards.axis, tiled=True)
        sizes = jnp.sum(lax.dynamic_slice_in_dim(dealt, shards.index * share, share) < n, axis=1)
        places = jnp.arange(share * width).reshape(share, width)
        places = jnp.where(jnp.arange(width) < sizes[:, None], places, share * width)
        return log_minors(Kernel(rows.reshape(share * width, d), W, K), places)

    X = jnp.pad(kernel.X, ((0, -n % num_devices), (0, 0)))  # as many rows on each device
    values = shards.run(of_device, (X,), (dealt, kernel.W, kernel.K), shards.by_rows)
    values = values.reshape(num_devices, share).T.reshape(-1)[extra:]
    return jnp.zeros_like(values).at[order].set(values, unique_indices=True)


def log_minor(kernel: Kernel, subset: Array) -> Array:
    """log det L_S of one subset (m,), padded with n; no gradient is asked of it. O(m d² + m² d + m³).

    For loops and chains: under vmap it stays one factorisation. That of :func:`log_minors` would become one for each of
    its widths, and on a CPU, where jaxlib hands a batch of factorisations to the same few threads that wait for it, as
    many of them at once as there are threads wait forever.
    """
    return log_minor_of_rows(rows_of(kernel.X, subset), kernel.K, jnp.sum(subset < kernel.num_items))


def log_minor_of_rows(rows: Array, K: Array, size: Array) -> Array:
    """:func:`log_minor` of a subset by the features (m, d) of its items, of which the first ``size`` are there."""
    if len(rows) == 0:
        return jnp.zeros((), rows.dtype)
    bk = matmul(rows[:, rows.shape[1] - len(K) :], K)
    return log_det(*_minor_and_scales(rows, bk, size))
