r"""The symmetric proposal of the published up operator, and tree-based draws from a k-DPP.

A kernel X W Xᵀ with W + Wᵀ ⪰ 0 is dominated by a symmetric one. With the Youla decomposition of the skew part,

.. math:: \tfrac12 (W - W^\top) = \sum_i \sigma_i (y_i z_i^\top - z_i y_i^\top), \qquad
          \hat W = \tfrac12 (W + W^\top) + \sum_i \sigma_i (y_i y_i^\top + z_i z_i^\top) ,

:math:`\det(X W X^\top)_S \le \det(X \hat W X^\top)_S` for every S. A subset of size k from the dominating kernel takes
k descents of the tree: with U = Ŵ^{½} and (λ_i, v_i) the eigenpairs of U C U, draw k eigenvectors with probability
proportional to the product of their eigenvalues, then items one after the other from the projection that they span.
(The paper's Algorithm 3 has U = Ŵ^{-½}; it must be Ŵ^{½}.)

References: Han, Gartrell, Dohmatob and Karbasi (2022), *Scalable MCMC sampling for nonsymmetric determinantal point
processes*, ICML, Theorem 1 and Algorithm 3; Kulesza and Taskar (2012), *Determinantal point processes for machine
learning*, Algorithm 8.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.samplers.tree import Tree, descend_symmetric


def youla_symmetrization(W: Array) -> Array:
    """Ŵ (d, d), symmetric and positive semidefinite: the symmetric part of W and the absolute value of its skew part.

    The eigenvalues of i(W - Wᵀ)/2, which is Hermitian, are ±σ_i: no pairing of Youla vectors is needed.
    """
    skew = 0.5 * (W - W.T)
    values, vectors = jnp.linalg.eigh(1j * skew)
    absolute = jnp.real(matmul(vectors * jnp.abs(values), vectors.conj().T))
    return 0.5 * (W + W.T) + absolute


class SymmetricKernel(NamedTuple):
    """The kernel X Ŵ Xᵀ by its eigenvalues λ (d,) and the matrix U v_i / √λ_i (d, d) of its eigenvectors' features."""

    eigenvalues: Array
    features: Array


def decompose(What: Array, C: Array) -> SymmetricKernel:
    """Eigenvalues and eigenvectors of X Ŵ Xᵀ. O(d³)."""
    values, vectors = jnp.linalg.eigh(What)
    root = matmul(vectors * jnp.sqrt(jnp.maximum(values, 0.0)), vectors.T)
    eigenvalues, v = jnp.linalg.eigh(matmul(root, matmul(C, root)))
    # What is zero to rounding has no eigenvector that could be drawn.
    positive = eigenvalues > len(C) * jnp.finfo(C.dtype).eps * eigenvalues[-1]
    eigenvalues = jnp.where(positive, eigenvalues, 0.0)
    inverse_roots = jnp.where(positive, 1 / jnp.sqrt(jnp.where(positive, eigenvalues, 1.0)), 0.0)
    return SymmetricKernel(eigenvalues, matmul(root, v) * inverse_roots)


def log_esp_table(eigenvalues: Array, k: int) -> Array:
    """log e_0 .. log e_k of the first i eigenvalues, for i = 0 .. d (d+1, k+1). O(d k)."""
    log_values = jnp.log(eigenvalues)

    def include(log_e: Array, log_value: Array) -> tuple[Array, Array]:
        # e_l of one more eigenvalue; what is kept is e_l of those before it
        longer = jnp.logaddexp(log_e, jnp.pad(log_e[:-1], (1, 0), constant_values=-jnp.inf) + log_value)
        return longer, log_e

    start = jnp.full(k + 1, -jnp.inf, log_values.dtype).at[0].set(0.0)
    last, before = lax.scan(include, start, log_values)
    return jnp.concatenate([before, last[None]])


def select_eigenvectors(eigenvalues: Array, table: Array, size: Array | int, key: Array) -> Array:
    """A mask (d,) of ``size`` eigenvectors, drawn with probability proportional to the product of their eigenvalues.

    :param table: the :func:`log_esp_table` of the eigenvalues, up to ``size`` at least.
    """

    def decide(missing: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        log_value, log_e, log_uniform = step
        with_it = jnp.where(missing > 0, log_value + log_e[missing - 1], -jnp.inf)
        taken = log_uniform < with_it - jnp.logaddexp(with_it, log_e[missing])
        return missing - taken, taken

    log_values = jnp.log(eigenvalues)
    log_uniforms = jnp.log(random.uniform(key, eigenvalues.shape, log_values.dtype))
    _, taken = lax.scan(decide, jnp.asarray(size), (log_values, table[:-1], log_uniforms), reverse=True)
    return taken


def draw_k_dpp(
    tree: Tree,
    kernel: SymmetricKernel,
    table: Array,
    size: Array | int,
    key: Array,
    excluded: Array | None = None,
) -> tuple[Array, Array]:
    """Items (k,) of a k-DPP with the symmetric kernel, in the order of their draws, and whether all were found.

    :param table: the :func:`log_esp_table` of the eigenvalues up to k.
    :param size: how many items to draw, at most k; the others are n.
    :param excluded: items (m,) whose mass is known to be zero.

    O(d) for the eigenvectors, O(k d²) for the projection, and k descents.
    """
    n, k = tree.num_items, table.shape[1] - 1
    key, select_key = random.split(key)
    chosen = select_eigenvectors(kernel.eigenvalues, table, size, select_key)
    columns = jnp.flatnonzero(chosen, size=k, fill_value=n + len(chosen))
    features = kernel.features.at[:, columns].get(mode="fill", fill_value=0)
    Q = matmul(features, features.T)
    uniforms = random.uniform(key, (k, tree.num_decisions), Q.dtype)

    def take(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        Q, items, found = carry
        taken = items if excluded is None else jnp.append(excluded, items)
        item, found_one = descend_symmetric(tree, Q, uniforms[number], taken)
        x = tree.rows(item)
        Qx = matmul(Q, x)
        mass = jnp.dot(x, Qx, precision="highest")
        Q = Q - jnp.outer(Qx, Qx) / jnp.where(mass > 0, mass, 1.0)
        return Q, items.at[number].set(item), found & found_one

    _, items, found = lax.fori_loop(0, size, take, (Q, jnp.full(k, n), jnp.asarray(True)))
    return items, found
