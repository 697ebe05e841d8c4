"""Bytes, as XLA counts them before anything runs."""

import jax
import jax.numpy as jnp
import pytest

from numpyro_ndpp import KNDPP, NDPP, Cholesky


def temporary_bytes(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    return jax.jit(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


def parts(n, d1, d2, dtype=jnp.float64):
    return ((n, d1), dtype), ((n, d2), dtype), ((d2, d2), dtype)


def test_gradient_of_many_wide_subsets():
    """20,000 subsets padded to 100 at n = 3,941, d = 200: 3.2 GB if their rows were gathered at once."""

    def total(V, B, D, values):
        return NDPP(V, B, D, validate_args=False).log_prob(values).sum()

    used = temporary_bytes(
        jax.value_and_grad(total, argnums=(0, 1, 2)), *parts(3941, 100, 100), ((20_000, 100), jnp.int32)
    )
    assert used < 2e9


@pytest.mark.parametrize("k", [None, 10])
def test_inclusion_probs_of_a_million_items(k):
    n, d = 10**6, 100

    def inclusion(V, B, D):
        law = NDPP(V, B, D, validate_args=False) if k is None else KNDPP(V, B, D, k, validate_args=False)
        return law.inclusion_probs()

    used = temporary_bytes(inclusion, *parts(n, d // 2, d // 2, jnp.float32))
    assert used < 4 * (n * d * 4)


def test_many_draws_item_by_item():
    """5,000 draws at n = 20,000 in float32: 3 GB of uniform numbers if they were made side by side."""
    n, d = 20_000, 5

    def draws(V, B, D, key):
        return NDPP(V, B, D, sampler=Cholesky(), validate_args=False).sample(key, (5000,))

    assert temporary_bytes(draws, *parts(n, d, 2, jnp.float32), ((2,), jnp.uint32)) < 1.2e9
