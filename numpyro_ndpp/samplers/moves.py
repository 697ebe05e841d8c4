r"""Local moves for latent subsets: items dropped uniformly, and as many, fewer or more drawn to join the others.

With the prior's own engine as the proposal, the prior cancels but for sums that the draw has computed already.
"""

import jax.numpy as jnp
from jax import Array, random

from numpyro_ndpp.linalg import determinant
from numpyro_ndpp.samplers.direct import Queries, border, dense, draw_item
from numpyro_ndpp.samplers.tree import descend_symmetric
from numpyro_ndpp.samplers.walk import Walk, two_slots


def move(
    walk: Walk, key: Array, subset: Array, num_dropped: Array | int, num_added: Array | int
) -> tuple[Array, Array]:
    r"""A proposal from a subset (w,), padded: r items dropped uniformly, which leaves A, then s drawn to join A.

    :param num_dropped, num_added: r and s, 0 to 2 each; they may be traced.
    :return: the new subset, and the logarithm of the Hastings ratio for the law w det L_S of subsets of all sizes, with
        w the weight of the size,

    .. math:: w_{|S'|} \binom{|S|}{r} Z_s(A) \Big/ w_{|S|} \binom{|S'|}{s} Z_r(A), \qquad
              Z_s(A) = \sum_{|T|=s} \det L_{A∪T} ,

    zero for r = s; -inf where there is no such move. The reverse of a move has r and s exchanged: propose both
    equally often. O(w d² + d³ + d² log n).
    """
    kernel, first, width = walk.kernel, len(walk.pinned), len(subset)
    n, decisions = kernel.num_items, kernel.tree.num_decisions
    state, slot = walk.init(subset), jnp.arange(first + width)
    size = jnp.sum(state.subset[first:] < n)
    uniforms = random.uniform(key, (2 + len(slot) + 2 * decisions,), walk.dtype)
    spread, down = uniforms[2 : 2 + len(slot)], uniforms[2 + len(slot) :].reshape(2, decisions)
    i, j = two_slots(uniforms[:2], first, size)
    dropped = ((slot == i) & (num_dropped >= 1)) | ((slot == j) & (num_dropped == 2))
    num_used = None if walk.size_logits is None else first + size
    bordered = border(kernel, state, (state.subset < n) & ~dropped, spread, num_used)

    # up to the same factor: det L_A, and the sums over one and two items more
    members, queries = bordered.members, Queries.of(kernel, state, bordered)
    nothing = jnp.zeros(len(kernel.W), walk.dtype)
    one, two = dense(kernel, queries.second(nothing, jnp.asarray(False))), dense(kernel, queries.first())
    sums = jnp.stack([determinant(bordered.E), jnp.sum(one * kernel.C), 0.5 * jnp.sum(two * kernel.C)])
    log_sums = jnp.log(jnp.maximum(sums, 0.0))
    a, found_a = descend_symmetric(kernel.tree, jnp.where(num_added == 2, two, one), down[0], members)
    second = queries.second(kernel.rows(a), jnp.asarray(True))
    b, found_b = draw_item(kernel, second, down[1], jnp.append(members, a))
    added = jnp.where(jnp.arange(2) < num_added, jnp.stack([a, b]), n).astype(subset.dtype)
    together = jnp.sort(jnp.append(members[first:], added))
    new_size = size - num_dropped + num_added
    log_ratio = log_sums[num_added] - log_sums[num_dropped] + (num_added - num_dropped) * kernel.log_scale
    log_ratio += _log_choose(size, num_dropped) - _log_choose(new_size, num_added)
    if walk.log_size_weights is not None:
        whole_sizes = jnp.stack([size, new_size]) + jnp.sum(walk.pinned < n)
        old, new = walk.log_size_weights.at[whole_sizes].get(mode="fill", fill_value=-jnp.inf)
        log_ratio += jnp.where(new == -jnp.inf, -jnp.inf, new - jnp.where(old == -jnp.inf, 0.0, old))
    log_ratio = jnp.where(jnp.equal(num_dropped, num_added), 0.0, log_ratio).astype(walk.dtype)
    whole = jnp.sort(jnp.append(walk.pinned, together))
    possible = (size >= num_dropped) & (new_size <= width)
    possible &= (log_sums[num_dropped] > -jnp.inf) & (log_sums[num_added] > -jnp.inf)
    possible &= ((num_added < 1) | found_a) & ((num_added < 2) | found_b)
    possible &= kernel.is_possible(whole)
    return jnp.where(possible, together[:width], subset), jnp.where(possible, log_ratio, -jnp.inf)


def _log_choose(n: Array, r: Array | int) -> Array:
    """log of the number of ways to choose r = 0, 1 or 2 of n; zero where there is none."""
    n = jnp.maximum(n, 1)
    pairs = jnp.log(jnp.maximum(n * (n - 1), 2) / 2)
    return jnp.where(jnp.equal(r, 0), 0.0, jnp.where(jnp.equal(r, 1), jnp.log(n), pairs))
