r"""Exact draws by rejection: subsets of a symmetric kernel that dominates, accepted by the ratio of determinants.

With Ŵ the Youla symmetrisation of W (:mod:`.proposal`), det (X W Xᵀ)_S ≤ det (X Ŵ Xᵀ)_S for every S. So draw S from the
DPP of X Ŵ Xᵀ, restricted to the same sizes, and keep it with probability det (X W Xᵀ)_S / det (X Ŵ Xᵀ)_S. The expected
number of proposals is the ratio of the normalisers,

.. math:: \frac{\sum_k e_k(\hat W C)}{\sum_k e_k(W C)} \qquad\text{over the allowed sizes } k,

which grows exponentially with the size as soon as the skew part weighs something. For a symmetric kernel it is one, and
this is the tree-based sampler of ordinary DPPs and k-DPPs.

Given that the items J are in S, proposals are those of the symmetric kernel given J, for which
Ŵ - Ŵ X_Jᵀ (X_J Ŵ X_Jᵀ)⁻¹ X_J Ŵ exists wherever S has a positive probability, and the ratio is that for J∪T.

A proposal draws its size, then so many eigenvectors, then that many items by descents of the tree.

References: Han, Gartrell, Gillenwater, Dohmatob and Karbasi (2022), *Scalable sampling for nonsymmetric determinantal
point processes*, ICLR, Algorithm 2; Gillenwater, Kulesza, Mariet and Vassilvitskii (2019), *A tree-based method for
fast repeated sampling of determinantal point processes*, ICML.
"""

import math
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, random

from numpyro_ndpp.checks import static_int
from numpyro_ndpp.devices import Shards
from numpyro_ndpp.kernel import Kernel
from numpyro_ndpp.linalg import log_determinant, matmul
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.probabilities import log_normalizer
from numpyro_ndpp.samplers.base import HasTarget, OneByOne
from numpyro_ndpp.samplers.batching import chunk_size, until_accepted
from numpyro_ndpp.samplers.packing import symmetric_part
from numpyro_ndpp.samplers.proposal import (
    SymmetricKernel,
    decompose,
    draw_k_dpp,
    log_esp_table,
    youla_symmetrization,
)
from numpyro_ndpp.samplers.tree import Tree, build_tree
from numpyro_ndpp.size_scales import restrict_sizes
from numpyro_ndpp.target import Pinned, Target, per_kernel


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tree", "W", "pinned", "What", "kernel", "table", "size_logits", "log_expected"],
    meta_fields=["width"],
)
@dataclass(frozen=True)
class RejectionState:
    """The proposals' kernel by its eigenvectors, the law of their size, and their expected number a draw."""

    tree: Tree
    W: Array  # (d, d)
    pinned: Array  # (j,) items in every subset
    What: Array  # (d, d)
    kernel: SymmetricKernel
    table: Array  # (d+1, w+1)
    size_logits: Array  # (w+1,) of the proposals
    log_expected: Array  # log of the expected number of proposals; inf where no subset has a positive probability
    width: int = field(metadata={"static": True})

    @property
    def shards(self) -> Shards | None:
        """The devices over which the items are, if there are several."""
        return self.tree.shards


def _log_expected(size_logits: Array, log_hat: Array, log_weight: Array) -> Array:
    """log of the ratio of the two normalisers; that of the proposals is the sum over their sizes, and log_hat."""
    proposals = jax.nn.logsumexp(size_logits) + log_hat
    # Rounding may make a symmetric kernel's ratio less than one.
    ratio = jnp.maximum(proposals - log_weight, 0.0)
    return jnp.where((proposals > -jnp.inf) & (log_weight > -jnp.inf), ratio, jnp.inf)


def _prepare(target: Target, kernel: Kernel, C: Array) -> tuple[Array, SymmetricKernel, Array, Array, Array]:
    """Ŵ, the proposals' kernel, its table and law of the size, and the log of the expected number of proposals.

    :param kernel, C: the target's kernel, whitened, and its Gram matrix.
    """
    What, pinned, dtype = youla_symmetrization(kernel.W), Pinned.of(kernel.X, target.items), C.dtype
    conditional, log_hat = What, jnp.zeros((), dtype)
    if len(target.items):
        left = matmul(pinned.rows, What)
        minor = matmul(left, pinned.rows.T) + jnp.diag((~pinned.present).astype(dtype))
        sign, log_hat = jnp.linalg.slogdet(minor)
        safe = jnp.where(sign > 0, minor, jnp.eye(len(minor), dtype=dtype))
        conditional = symmetric_part(What - matmul(left.T, jnp.linalg.solve(safe, left)))
        log_hat = jnp.where(sign > 0, log_hat, -jnp.inf)
    symmetric = decompose(conditional, C)
    table = log_esp_table(symmetric.eigenvalues, target.width)
    size_logits = restrict_sizes(table[-1], *target.limits)
    if target.log_size_weights is not None:
        whole = jnp.arange(len(size_logits)) + pinned.number
        size_logits = size_logits + target.log_size_weights.at[whole].get(mode="fill", fill_value=-jnp.inf)
    log_expected = _log_expected(size_logits, log_hat, log_normalizer(target))
    return What, symmetric, table, size_logits, log_expected


@jax.jit
def _expected_proposals(target: Target) -> Array:
    # In an orthonormal basis of the features' span the symmetrisation is that of the kernel itself.
    kernel = target.kernel.whitened()
    return jnp.exp(_prepare(target, kernel, kernel.C)[-1])


@dataclass(frozen=True)
class Rejection(OneByOne):
    r"""Exact sampler by rejection (Han et al., ICLR 2022), of any size; for symmetric kernels it never rejects.

    A proposal of k items costs O(k d² log n) after preprocessing of O(n d² + J d³). Their expected number grows
    exponentially with the size of the skew part: ask :meth:`expected_proposals` first.

    A subset of m items that would be accepted with a probability below 8 m roundings counts as impossible. What is lost
    is at most that times the expected number of proposals: with 100 of them and ten items 10⁻³ in float32, 10⁻¹² in
    float64, and far less where such subsets are rare.

    :param max_proposals: how many proposals a draw may take. Past that: an error that names the expected number, under
        jit -1 throughout.
    :raises ValueError: if ``max_proposals`` is not a positive integer.

    >>> from jax import random
    >>> from numpyro_ndpp import KNDPP, Rejection
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(50, 4), (50, 2), (2, 2)]))
    >>> ndpp = KNDPP(V, 0.3 * B, D, k=3, sampler=Rejection())
    >>> print(ndpp.sampler.expected_proposals(ndpp) < 2)
    True
    >>> ndpp.sample(random.key(3), (2,)).shape
    (2, 3)
    """

    max_proposals: int = 10_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_proposals", static_int("max_proposals", self.max_proposals, 1))

    def expected_proposals(self, dist: HasTarget) -> Array:
        r"""The expected number of proposals a draw (batch shape), :math:`\sum \hat e_k / \sum e_k`. O(n d² + J d³)."""
        return per_kernel(_expected_proposals, dist.target, "()")

    def prepare(self, target: Target) -> RejectionState:
        """The tree, and the eigenvectors of the dominating kernel. O(n d² + J d³) once."""
        kernel = target.kernel.whitened()
        tree = build_tree(kernel.X, shards=target.shards)
        return RejectionState(tree, kernel.W, target.items, *_prepare(target, kernel, tree.gram), width=target.width)

    def draw(self, state: RejectionState, key: Array) -> Array:
        """One subset, padded; -1 throughout if none was accepted."""
        n = state.tree.num_items

        def propose(number: Array) -> tuple[Array, Array]:
            size_key, items_key, accept_key = random.split(random.fold_in(key, number), 3)
            size = random.categorical(size_key, state.size_logits)
            items, found = draw_k_dpp(state.tree, state.kernel, state.table, size, items_key, state.pinned)
            together = jnp.append(state.pinned.astype(items.dtype), items)
            rows = state.tree.rows(together)
            padding = jnp.diag((together >= n).astype(rows.dtype))
            log_target, log_proposal = (
                log_determinant(matmul(matmul(rows, inner), rows.T) + padding) for inner in (state.W, state.What)
            )
            log_ratio = log_target - log_proposal
            # What is zero but for rounding is never accepted.
            possible = log_ratio > jnp.log(8 * jnp.sum(together < n) * jnp.finfo(rows.dtype).eps)
            accepted = found & possible & (jnp.log(random.uniform(accept_key, (), rows.dtype)) < log_ratio)
            return jnp.sort(items).astype(jnp.int32), accepted

        return until_accepted(propose, state.log_expected < jnp.inf, self.max_proposals, state.width)

    def num_side_by_side(self, state: RejectionState) -> int:
        """How many draws are made at a time."""
        return chunk_size(state.W.dtype.itemsize * 8 * state.W.size)

    def may_share_cores(self, state: RejectionState) -> bool:
        """Yes, on a CPU: nothing is factorised by LAPACK."""
        return platform().is_cpu

    def failure(self, state: RejectionState) -> str:
        """Why a draw was not made."""
        log_expected = float(jnp.max(state.log_expected))
        exponent, mantissa = divmod(log_expected / math.log(10), 1)
        expected = f"{10**mantissa:.3g}·10^{exponent:.0f}" if exponent > 5 else f"{math.exp(log_expected):.3g}"
        return f"a draw is expected to take {expected} proposals, allowed were max_proposals={self.max_proposals}"
