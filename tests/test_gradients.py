"""Derivatives against central differences, entry by entry, and where there is nothing to differentiate."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_ndpp import KNDPP, NDPP
from numpyro_ndpp.normalizer import log_sum_esp
from numpyro_ndpp.size_law import log_esps

N_ITEMS = 8
SUBSETS = np.array([[0, 1, 8, 8], [1, 2, 3, 4], [2, 8, 8, 8], [8, 8, 8, 8]])
SIZED = np.array([[0, 1, 3], [1, 2, 4]])


def ordinary():
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=shape) for shape in [(N_ITEMS, 2), (N_ITEMS, 4), (4, 4)])


def repeated_eigenvalues():
    """Orthonormal X and equal blocks in D: the eigenvalues of W C are 1, 1, ±i, ±i."""
    X = np.linalg.qr(np.random.default_rng(1).normal(size=(N_ITEMS, 6)))[0]
    D = np.zeros((4, 4))
    D[0, 1] = D[2, 3] = 1.0
    return X[:, :2], X[:, 2:], D


def central_differences(function, parts, step=1e-5):
    """Fourth-order differences in every entry of every part."""
    gradients = []
    for which, part in enumerate(parts):
        gradient = np.zeros(part.shape)
        for index in np.ndindex(part.shape):

            def shifted(by, which=which, index=index):
                moved = [p.copy() for p in parts]
                moved[which][index] += by
                return float(function(*moved))

            near = shifted(step) - shifted(-step)
            far = shifted(2 * step) - shifted(-2 * step)
            gradient[index] = (8 * near - far) / (12 * step)
        gradients.append(gradient)
    return gradients


LAWS = {
    "NDPP": lambda V, B, D: NDPP(V, B, D).log_prob(SUBSETS).sum(),
    "not empty": lambda V, B, D: NDPP(V, B, D, min_size=1).log_prob(np.array([0, 1, 3])),
    "some sizes": lambda V, B, D: NDPP(V, B, D, min_size=1, max_size=3).log_prob(SIZED).sum(),
    "size 3": lambda V, B, D: KNDPP(V, B, D, 3).log_prob(SIZED).sum(),
    "size 1": lambda V, B, D: KNDPP(V, B, D, 1).log_prob(np.array([2])),
    "full rank": lambda V, B, D: KNDPP(V, B, D, 6).log_normalizer,
}


@partial(jax.jit, static_argnums=0)
def value_and_gradients(law, V, B, D):
    """In one program, for the gradient and for the differences alike."""
    return jax.value_and_grad(LAWS[law], argnums=(0, 1, 2))(V, B, D)


@pytest.mark.parametrize("parts", [ordinary(), repeated_eigenvalues()], ids=["ordinary", "repeated eigenvalues"])
@pytest.mark.parametrize("law", LAWS)
def test_gradient_in_every_entry(law, parts):
    gradients = value_and_gradients(law, *parts)[1]
    differences = central_differences(lambda *parts: value_and_gradients(law, *parts)[0], parts)
    scale = max(np.abs(numeric).max() for numeric in differences)
    for gradient, numeric in zip(gradients, differences, strict=True):
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("law", ["NDPP", "size 3", pytest.param("some sizes", marks=pytest.mark.slow)])
def test_second_derivatives(law):
    V, B, D = ordinary()
    hessian = np.asarray(jax.jit(jax.hessian(LAWS[law], argnums=2))(V, B, D))
    assert np.isfinite(hessian).all()
    step = np.zeros_like(D)
    step[0, 1] = 1e-5
    above, below = (np.asarray(value_and_gradients(law, V, B, D + sign * step)[1][2]) for sign in (1, -1))
    np.testing.assert_allclose(hessian[..., 0, 1], (above - below) / 2e-5, rtol=1e-6, atol=1e-8)


def test_reverse_over_reverse_with_padding():
    V, B, D = ordinary()
    gradient = jax.grad(LAWS["NDPP"])
    first = np.zeros_like(V)
    first[0, 0] = 1.0
    twice = jax.jit(jax.grad(lambda V: gradient(V, B, D)[0, 0]))(V)
    # the Hessian is symmetric: its first row is the derivative of the gradient along the first entry
    forward = jax.jit(lambda V: jax.jvp(lambda V: gradient(V, B, D), (V,), (first,))[1])(V)
    np.testing.assert_allclose(twice, forward, rtol=1e-8)


@pytest.mark.parametrize("law", ["NDPP", "size 3"])
def test_forward_mode_agrees_with_reverse_mode(law):
    parts = ordinary()
    reverse = value_and_gradients(law, *parts)[1][0]
    forward = jax.jit(jax.jacfwd(LAWS[law]))(*parts)
    np.testing.assert_allclose(forward, reverse, rtol=1e-10)


def test_gradient_of_many_grouped_subsets_is_the_sum_of_single_ones():
    rng = np.random.default_rng(3)
    n, d = 40, 16
    X, W = rng.normal(size=(n, d)), np.eye(d) + 0.5 * np.triu(np.ones((d, d)), 1) - 0.5 * np.tril(np.ones((d, d)), -1)
    sizes = rng.integers(0, d + 1, size=300)
    values = np.full((300, d), n)
    for row, size in zip(values, sizes, strict=True):
        row[:size] = np.sort(rng.choice(n, size, replace=False))
    weights = rng.normal(size=300)

    def dense(X):
        L = X @ W @ X.T
        total = 0.0
        for row, size, weight in zip(values, sizes, weights, strict=True):
            items = row[:size]
            inverse = np.linalg.inv(L[np.ix_(items, items)])
            gradient[items] += weight * (inverse.T @ X[items] @ W.T + inverse @ X[items] @ W)
            total += weight * np.linalg.slogdet(L[np.ix_(items, items)])[1]
        return total

    gradient = np.zeros((n, d))
    expected = dense(X)

    def weighted(X):
        law = NDPP.from_factors(X, W)
        return jnp.dot(law.log_prob(values) + law.log_normalizer, weights)

    value, slope = jax.jit(jax.value_and_grad(weighted))(X)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(slope, gradient, rtol=1e-8, atol=1e-8 * np.abs(gradient).max())


IMPOSSIBLE = np.array([[0, 0, 8], [1, 0, 8], [0, 11, 8], [-1, -1, -1], [0, 8, 8], [8, 8, 8]])


def test_gradient_is_zero_outside_the_support():
    parts = ordinary()

    def total(V, B, D):
        values = KNDPP(V, B, D, 3, validate_args=False).log_prob(IMPOSSIBLE)
        return jnp.where(jnp.isfinite(values), values, 0.0).sum(), values

    gradients, values = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(*parts)
    assert (np.asarray(values) == -np.inf).all()
    assert all((np.asarray(gradient) == 0).all() for gradient in gradients)


def test_gradient_is_zero_where_the_minor_or_the_normaliser_is():
    V, B, D = np.zeros((5, 1)), np.eye(5)[:, :4], np.triu(np.ones((4, 4)), 1)  # skew only: no minors of odd size

    @jax.jit
    def all_gradients(V):
        value = np.array([0, 1, 2])
        return [
            jax.grad(function)(V)
            for function in (
                lambda V: NDPP(V, B, D).log_prob(value),
                lambda V: KNDPP(V, B, D, 3).log_prob(value),
                lambda V: KNDPP(V, B, D, 3).log_normalizer,
                lambda V: NDPP(V, B, D).size_log_prob()[3],
            )
        ]

    for gradient in all_gradients(V):
        assert (np.asarray(gradient) == 0).all()


def test_gradient_of_the_law_of_the_size():
    rng = np.random.default_rng(4)
    X, W = rng.normal(size=(5, 3)), np.eye(3) + np.array([[0, 1, 0], [-1, 0, 2], [0, -2, 0.0]])
    C = jnp.asarray(X.T @ X)
    by_sizes = np.asarray(jax.jit(jax.jacrev(lambda W: log_esps(W, C)))(W))
    by_circles = jax.jit(lambda W: [jax.grad(lambda W, k=k: log_sum_esp(W, C, k, k, 3))(W) for k in (1, 2, 3)])(W)
    for k, by_circle in enumerate(by_circles, 1):
        np.testing.assert_allclose(by_sizes[k], by_circle, rtol=1e-8)
    assert (by_sizes[0] == 0).all()


def test_inclusion_probabilities_are_differentiable():
    parts = ordinary()

    def first(V, B, D):
        return KNDPP(V, B, D, 2).inclusion_probs()[0]

    by_D = jax.jit(lambda D: jax.value_and_grad(first, argnums=2)(*parts[:2], D))
    numeric = central_differences(lambda D: by_D(D)[0], parts[2:])[0]
    np.testing.assert_allclose(by_D(parts[2])[1], numeric, rtol=1e-6, atol=1e-8)
