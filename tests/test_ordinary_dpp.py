"""Kernels without a skew part: B and D, or W, may be left out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import all_subsets
from numpyro.distributions.batch_util import vmap_over

from numpyro_ndpp import KNDPP, NDPP, pad_subsets

N, RANK = 10, 4
V = np.random.default_rng(0).normal(size=(N, RANK))
NONE = np.zeros((N, 0)), np.zeros((0, 0))
SUBSETS = np.asarray(pad_subsets(all_subsets(N, 0, RANK), N))


def enumerated(low=0, high=RANK):
    L = V @ V.T
    sets = all_subsets(N, 0, RANK)
    minors = np.array([np.linalg.det(L[np.ix_(s, s)]) if s else 1.0 for s in sets])
    minors *= [low <= len(s) <= high for s in sets]
    return minors / minors.sum()


@pytest.mark.parametrize(
    "law", [NDPP(V), NDPP(V, None, None), NDPP.from_factors(V)], ids=["V", "V and None", "factors"]
)
def test_every_subset_as_enumerated(law):
    np.testing.assert_allclose(np.exp(law.log_prob(SUBSETS)), enumerated(), atol=1e-12)
    assert (law.rank, law.event_shape) == (RANK, (RANK,))


@pytest.mark.parametrize(
    "law", [KNDPP(V, k=3), KNDPP(V, None, None, 3), KNDPP.from_factors(V, k=3)], ids=["V", "V and None", "factors"]
)
def test_every_subset_of_one_size_as_enumerated(law):
    is_of_size = np.sum(SUBSETS < N, axis=1) == 3
    np.testing.assert_allclose(np.exp(law.log_prob(SUBSETS[is_of_size])), enumerated(3, 3)[is_of_size], atol=1e-12)
    assert law.k == 3


def test_the_same_numbers_and_draws_as_with_an_empty_skew_part():
    short, long = KNDPP(V, k=3), KNDPP(V, *NONE, 3)
    assert jax.tree.structure(short) == jax.tree.structure(long)
    np.testing.assert_array_equal(short.inclusion_probs(), long.inclusion_probs())
    key = jax.random.key(0)
    np.testing.assert_array_equal(short.sample(key, (4,)), long.sample(key, (4,)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_type_is_that_of_the_features(dtype):
    for law in (NDPP(V.astype(dtype)), NDPP.from_factors(V.astype(dtype))):
        assert law.log_normalizer.dtype == law.X.dtype == law.W.dtype == dtype


@pytest.mark.parametrize("make", [NDPP, NDPP.from_factors], ids=["parts", "factors"])
def test_batches_jit_and_vmap(make):
    batch = np.stack([V, 0.5 * V, -2 * V])
    law = make(batch)
    assert law.batch_shape == (3,)
    expected = np.stack([make(V).log_prob(SUBSETS) for V in batch], axis=1)
    np.testing.assert_allclose(law.log_prob(SUBSETS[:, None]), expected, rtol=1e-10)
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda V: make(V).log_prob(SUBSETS)))(batch), expected.T, rtol=1e-10)
    axes = {"X": 0} if make is NDPP.from_factors else {"V": 0}
    mapped = jax.vmap(make, out_axes=vmap_over(make(V), **axes))(batch)
    over = jax.vmap(lambda law: law.log_prob(SUBSETS), in_axes=(vmap_over(mapped, **axes),))(mapped)
    np.testing.assert_allclose(over, expected.T, rtol=1e-10)


def test_gradient_is_that_of_the_kernel_with_an_empty_skew_part():
    short = jax.grad(lambda V: NDPP(V).log_prob(SUBSETS[:50]).sum())(V)
    long = jax.grad(lambda V: NDPP(V, *NONE).log_prob(SUBSETS[:50]).sum())(V)
    np.testing.assert_array_equal(short, long)


def test_expected_size_and_condition():
    np.testing.assert_allclose(NDPP(V).with_expected_size(2.5).inclusion_probs().sum(), 2.5, rtol=1e-6)
    given = KNDPP(V, k=3).condition(include=[2], exclude=[0])
    assert given.event_shape == (2,)
    np.testing.assert_allclose(np.asarray(given.inclusion_probs())[[0, 2]], 0.0, atol=1e-12)


def test_one_of_both_is_missing():
    with pytest.raises(ValueError, match=r"D is missing: B and D come together .* got B of shape \(10, 2\) alone"):
        NDPP(V, np.ones((N, 2)))
    with pytest.raises(ValueError, match=r"B is missing: .* got D of shape \(2, 2\) alone"):
        NDPP(V, D=np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"D is missing: .* got B of shape \(\) alone; a size k goes by its name"):
        KNDPP(V, 3)


@pytest.mark.parametrize("make", [KNDPP, KNDPP.from_factors], ids=["parts", "factors"])
def test_the_size_is_missing(make):
    with pytest.raises(ValueError, match="k must be a Python integer, the number of items of a subset; it is missing"):
        make(V)


def test_features_that_are_no_matrix():
    with pytest.raises(ValueError, match=r"V must be a matrix .* got shape \(10,\)"):
        NDPP(np.ones(N))
    with pytest.raises(ValueError, match=r"X must be a matrix .* got shape \(10,\)"):
        NDPP.from_factors(np.ones(N))
    with pytest.raises(ValueError, match=r"a row and a column at least, got V of shape \(10, 0\)"):
        NDPP(np.ones((N, 0)))
