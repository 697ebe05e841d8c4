r"""Exact draws in time linear in the number of items: one decision per item, in order.

With Z = W (I + C W)⁻¹ the marginal kernel is X Z Xᵀ: item a is in the subset with probability p = x_aᵀ Z x_a. Whatever
is decided, the law of the later items given all decisions so far has a marginal kernel of the same form,

.. math:: Z \leftarrow Z - Z x_a x_a^\top Z / p \;\text{ if taken}, \qquad
          Z \leftarrow Z - Z x_a x_a^\top Z / (p - 1) \;\text{ if left} .

Limits on the size: the size k is drawn first, from its law. Scaling the kernel leaves the law of the subsets of size k
alone, so sweeps are made at the scale where the mean size is about k until one of them has that size, which on average
takes about two and a half standard deviations of the size. (Not so for kernels that are nearly skew: their odd sizes
are rare at every scale, and after ten thousand sweeps the draw is given up.)

References: Poulson (2020), *High-performance sampling of generic determinantal point processes*; Han, Gartrell,
Gillenwater, Dohmatob and Karbasi (2022), *Scalable sampling for nonsymmetric determinantal point processes*, ICLR.
"""

from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.devices import Shards, rows_on_devices
from numpyro_ndpp.kernel import Kernel, marginal_matrix, without
from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.minors import log_minor
from numpyro_ndpp.probabilities import log_weights_of_sizes
from numpyro_ndpp.samplers.base import OneByOne
from numpyro_ndpp.samplers.batching import until_accepted
from numpyro_ndpp.size_scales import log_scale_of_each_size
from numpyro_ndpp.target import Pinned, Target

# One sweep in 2.5 standard deviations of the size has the right size: so many failures never happen by chance.
_MAX_SWEEPS = 10_000
# What the draws side by side may take. They go through the items together, so that more of them cost little more.
_SIDE_BY_SIDE_BYTES = 2**30


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["W", "C", "others", "pinned", "size_logits", "log_scales"],
    meta_fields=["width", "shards"],
)
@dataclass(frozen=True)
class CholeskyState:
    """The kernel, and for a law with limits on the size its size law (d+1,) and the scale (d+1,) for every size."""

    W: Array
    C: Array
    others: Array  # (n, d) the features, rows of zeros for pinned items
    pinned: Pinned
    size_logits: Array | None
    log_scales: Array | None
    width: int = field(metadata={"static": True})
    shards: Shards | None = field(default=None, metadata={"static": True})

    @property
    def num_items(self) -> int:
        return len(self.others) if self.shards is None else self.shards.num_rows(self.others)


def _uniform(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Uniform numbers whose spacing near zero is far below that of ``random.uniform`` (2⁻²³ in float32).

    At n = 10⁶ most inclusion probabilities are of the order of that spacing.
    """
    coarse, fine = random.uniform(key, (2, *shape), dtype)
    return coarse + fine * jnp.finfo(dtype).eps


# Z, the subset (width,) so far, and its size.
_Sweep = tuple[Array, Array, Array]


def _sweep(state: CholeskyState, Z: Array, key: Array) -> tuple[Array, Array]:
    """One draw (width,) of the NDPP with marginal kernel X Z Xᵀ, and its size."""
    X, n, shards = state.others, state.num_items, state.shards
    uniforms = _uniform(key, (n,), X.dtype)
    start = Z, jnp.full(state.width, n, jnp.int32), jnp.asarray(0)
    if shards is None:
        return _sweep_over(X, uniforms, jnp.asarray(0), start)[1:]

    def of_device(X: Array, uniforms: Array, start: _Sweep) -> _Sweep:
        first = shards.index * len(X)
        if len(uniforms) > len(X):
            uniforms = lax.dynamic_slice_in_dim(uniforms, first, len(X))

        def on_next(device: Array, sweep: _Sweep) -> _Sweep:
            return shards.sum_of_one(shards.index == device, _sweep_over(X, uniforms, first, sweep))

        return lax.fori_loop(0, shards.number, on_next, start)

    return shards.run(of_device, (X, uniforms), (start,))[1:]


def _sweep_over(X: Array, uniforms: Array, first: Array, start: _Sweep) -> _Sweep:
    """The sweep after the items with features X (n, d), which have the numbers from ``first`` on."""
    width = len(start[1])

    def decide(carry: _Sweep, item: tuple[Array, Array, Array]) -> tuple[_Sweep, None]:
        Z, subset, size = carry
        a, x, u = item
        right, left = matmul(Z, x), matmul(x, Z)
        p = jnp.dot(x, right, precision="highest")
        taken = u < p
        Z = Z - jnp.outer(right, left) / jnp.where(taken, p, p - 1)
        subset = subset.at[jnp.where(taken, size, width)].set(a, mode="drop")
        return (Z, subset, size + taken), None

    items = first.astype(jnp.int32) + jnp.arange(len(X), dtype=jnp.int32)
    return lax.scan(decide, start, (items, X, uniforms))[0]


def _is_possible(state: CholeskyState, subset: Array) -> Array:
    """Whether the minor of a subset (w,) and the pinned items is positive."""
    rows = jnp.concatenate([state.pinned.rows, rows_on_devices(state.shards, state.others, subset)])
    present = jnp.concatenate([state.pinned.present, subset < state.num_items])
    places = jnp.sort(jnp.where(present, jnp.arange(len(rows)), len(rows)))
    return log_minor(Kernel.of(rows, state.W), places) > -jnp.inf


@dataclass(frozen=True)
class Cholesky(OneByOne):
    """Exact sampler, O(n d²) a draw: a sweep over all items that takes or leaves each of them.

    With limits on the size (a KNDPP included) a draw takes several sweeps, on average about two and a half standard
    deviations of the size. Best for small catalogues and for checking other samplers.

    >>> from jax import random
    >>> from numpyro_ndpp import NDPP, Cholesky
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(6, 2), (6, 2), (2, 2)]))
    >>> NDPP(V, B, D, sampler=Cholesky()).sample(random.key(3), (2,)).shape
    (2, 4)
    """

    def prepare(self, target: Target) -> CholeskyState:
        """What every draw needs: O(n d²) once."""
        X, W, _ = target.kernel
        others, C = without(X, target.items), target.kernel.C
        state = CholeskyState(W, C, others, target.pinned, None, None, target.width, target.shards)
        if target.is_unlimited:
            return state
        all_sizes = log_weights_of_sizes(target.of_all_sizes(), C, every_size=True)
        return replace(state, size_logits=log_weights_of_sizes(target, C), log_scales=log_scale_of_each_size(all_sizes))

    def draw(self, state: CholeskyState, key: Array) -> Array:
        """One subset, padded; -1 throughout if none of an allowed size was found."""
        W, C = state.W, state.C
        size_logits, log_scales = state.size_logits, state.log_scales
        if size_logits is None or log_scales is None:
            log_scale, wanted = jnp.zeros((), W.dtype), None
            # What is given may have probability zero, and the kernel may have NaN.
            Z = marginal_matrix(W, C)
            possible = (state.pinned.log_prob(Z, C) > -jnp.inf) & jnp.isfinite(Z).all()
        else:
            size_key, key = random.split(key)
            wanted = random.categorical(size_key, size_logits)
            log_scale, possible = log_scales[wanted], jnp.any(size_logits > -jnp.inf)
        Z = state.pinned.marginal_matrix(jnp.exp(log_scale) * W, C)

        def attempt(number: Array) -> tuple[Array, Array]:
            sweep_key = random.fold_in(key, number)
            if wanted is None:
                sweep_key = jnp.where(number == 0, key, sweep_key)  # there is hardly ever a second sweep
            subset, size = _sweep(state, Z, sweep_key)
            # Rounding may lead a sweep to a subset that is impossible.
            accepted = _is_possible(state, subset)
            return subset, accepted if wanted is None else accepted & (size == wanted)

        return until_accepted(attempt, possible, _MAX_SWEEPS, state.width)

    def failure(self, state: CholeskyState) -> str:
        """Why a draw was not made."""
        return f"none was met in {_MAX_SWEEPS:,} sweeps"

    def num_side_by_side(self, state: CholeskyState) -> int:
        """How many draws are made at a time."""
        n, d = state.others.shape
        return max(1, _SIDE_BY_SIDE_BYTES // (state.others.dtype.itemsize * 8 * (n + d * d)))
