"""The published up operator: pairs of a symmetric kernel that dominates, accepted by the ratio of determinants.

Reference: Han, Gartrell, Dohmatob and Karbasi (2022), *Scalable MCMC sampling for nonsymmetric determinantal point
processes*, ICML, Algorithm 2.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.linalg import adjugate, determinant, matmul, thin_product
from numpyro_ndpp.samplers.chain import ChainState, WalkKernel
from numpyro_ndpp.samplers.direct import Bordered
from numpyro_ndpp.samplers.proposal import decompose, draw_k_dpp, log_esp_table, youla_symmetrization

# Proposals before the direct operator takes over.
_MAX_PROPOSALS = 1000


class Proposed(NamedTuple):
    """The last pair (2,), whether it was accepted, and how many were rejected."""

    items: Array
    accepted: Array
    num_rejections: Array


def propose_until_accepted(kernel: WalkKernel, key: Array, state: ChainState, bordered: Bordered) -> Proposed:
    """A pair that joins A, by proposals until one is accepted.

    None is where L_A is singular, for then there is no conditional kernel to symmetrise, and after too many rejections.
    There the direct operator takes over, which draws from the same law.
    """
    det_E = determinant(bordered.E)
    regular = det_E > jnp.sqrt(jnp.finfo(det_E.dtype).eps)
    # L_A⁻¹ = N + N G E⁻¹ Gᵀ N
    across = thin_product(thin_product(bordered.from_left, adjugate(bordered.E)), bordered.from_right.T)
    inverse = bordered.N + across / jnp.where(regular, det_E, 1.0)
    W = kernel.W - matmul(state.images.WX.T, matmul(inverse, state.images.XW))
    What = youla_symmetrization(W)
    proposal = decompose(What, kernel.C)
    table = log_esp_table(proposal.eigenvalues, 2)

    def propose(carry: Proposed) -> Proposed:
        draw_key, accept_key = random.split(random.fold_in(key, carry.num_rejections))
        items, found = draw_k_dpp(kernel.tree, proposal, table, 2, draw_key, bordered.members)
        x = kernel.rows(items)
        target, dominating = (determinant(matmul(matmul(x, Q), x.T)) for Q in (W, What))
        accepted = found & (random.uniform(accept_key, (), W.dtype) * dominating < target)
        return Proposed(items, accepted, carry.num_rejections + ~accepted)

    def unfinished(carry: Proposed) -> Array:
        return regular & ~carry.accepted & (carry.num_rejections < _MAX_PROPOSALS)

    start = Proposed(jnp.full(2, kernel.num_items), jnp.asarray(False), jnp.asarray(0))
    return lax.while_loop(unfinished, propose, start)
