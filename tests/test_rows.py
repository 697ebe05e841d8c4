"""Rows by number: values and derivatives of every kind are those of plain indexing, and no two additions meet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from numpyro_ndpp.rows import take_rows, take_rows_once

N, D = 7, 3


def plain(X, numbers):
    return jnp.concatenate([X, jnp.zeros((1, X.shape[1]), X.dtype)])[jnp.minimum(numbers, len(X))]


def numbers_of(shape, seed=0):
    """Rows that are asked for many times, others that nobody asks for, and padding."""
    return random.choice(random.key(seed), jnp.array([0, 0, 0, 2, 5, N, N + 3]), shape)


@pytest.mark.parametrize("take", [take_rows, take_rows_once])
@pytest.mark.parametrize("shape", [(1,), pytest.param((2, 3, 4), marks=pytest.mark.slow)])
def test_values_and_derivatives_are_those_of_indexing(take, shape):
    X, numbers = random.normal(random.key(1), (N, D)), numbers_of(shape)
    weights = random.normal(random.key(2), (*shape, D))

    def total(take):
        return lambda X: jnp.sum(jnp.sin(take(X, numbers)) * weights)

    np.testing.assert_array_equal(take(X, numbers), plain(X, numbers))
    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        ours, theirs = (jax.jit(derivative(total(way)))(X) for way in (take, plain))
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("take", [take_rows, take_rows_once])
@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)])
def test_batches(take, axes):
    X, numbers = random.normal(random.key(1), (4, N, D)), numbers_of((4, 6))
    X, numbers = (array if axis == 0 else array[0] for array, axis in zip((X, numbers), axes, strict=True))

    def slope(take):
        return jax.jit(jax.vmap(jax.grad(lambda X, numbers: jnp.sum(take(X, numbers) ** 3)), axes))(X, numbers)

    np.testing.assert_allclose(slope(take), slope(plain), rtol=1e-12, atol=1e-14)


def additions(jaxpr):
    """The scatter-adds of a program and of those within it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scatter-add":
            yield equation
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(inner, "eqns"):
                yield from additions(inner)
            elif hasattr(inner, "jaxpr"):
                yield from additions(inner.jaxpr)


def test_no_two_additions_meet():
    X, numbers = jnp.ones((N, D)), numbers_of((12,))

    def found(take):
        return list(additions(jax.make_jaxpr(jax.grad(lambda X: jnp.sum(take(X, numbers) ** 2)))(X).jaxpr))

    assert any(not equation.params["unique_indices"] for equation in found(plain))
    assert found(take_rows_once)
    assert all(equation.params["unique_indices"] for equation in found(take_rows_once))
