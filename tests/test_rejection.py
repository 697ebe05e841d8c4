"""The rejection sampler: chi-square tests over all subsets, at a false-alarm rate of 1e-4 each, with fixed keys."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chi_square import chi_square_p_value
from kernels import KERNELS, PARTS, TRUE_RANK, N, all_subsets, dense_kernel, enumerated_law, factors, table

from numpyro_ndpp import KNDPP, NDPP, Rejection, to_multihot
from numpyro_ndpp.linalg import log_determinant

NUM_DRAWS = 2**12


def draw_masks(law, key):
    return to_multihot(law.sample(key, (NUM_DRAWS,)), N)


def factored(name, k=None, dtype=np.float64, max_proposals=10_000, **limits):
    X, W = factors(name, dtype)
    sampler = Rejection(max_proposals)
    if k is None:
        return NDPP.from_factors(X, W, sampler=sampler, **limits)
    return KNDPP.from_factors(X, W, k, sampler=sampler)


def dominating_kernel(name):
    """The symmetric part of L and the absolute value of its skew part, by NumPy on the dense kernel."""
    L = dense_kernel(*PARTS[name])
    values, vectors = np.linalg.eigh(0.5j * (L - L.T))
    return (L + L.T) / 2 + np.real(vectors * np.abs(values) @ vectors.conj().T)


def enumerated_ratio(name, low, high):
    L, Lhat = dense_kernel(*PARTS[name]), dominating_kernel(name)
    sums = [sum(np.linalg.det(K[np.ix_(s, s)]) for s in all_subsets(N, low, high)) for K in (Lhat, L)]
    return sums[0] / sums[1]


@pytest.mark.parametrize("name", ["ordinary", "symmetric", "near skew", "skew pairs and V", "n < d", "cond(C) 1e6"])
@pytest.mark.parametrize("sizes", [(0, 10), (3, 3), (2, 4)])
def test_expected_proposals_is_the_ratio_of_the_normalisers(name, sizes):
    low, high = sizes[0], min(sizes[1], factored(name).rank)
    law = factored(name, low) if low == high else factored(name, min_size=low, max_size=high)
    expected = law.sampler.expected_proposals(law)
    np.testing.assert_allclose(expected, enumerated_ratio(name, low, high), rtol=1e-6)


# Kernels whose odd sizes are rare take too many proposals there.
@pytest.mark.parametrize("name", table())
def test_draws_follow_the_law(name):
    draws = np.asarray(draw_masks(factored(name), jax.random.key(1)))
    assert chi_square_p_value(enumerated_law(name), draws) > 1e-4


@pytest.mark.parametrize("name", table(*(name for name in KERNELS if "skew" in name)))
@pytest.mark.parametrize("k", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 1, "rank"))])
def test_draws_of_one_size_follow_the_law(name, k):
    k = TRUE_RANK[name] if k == "rank" else k
    draws = np.asarray(draw_masks(factored(name, k), jax.random.key(2)))
    assert (draws.sum(axis=1) == k).all()
    assert chi_square_p_value(enumerated_law(name, k, k), draws) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["skew", "near skew", "skew pairs", "skew pairs and V"])
def test_even_sizes_of_skew_kernels(name):
    draws = np.asarray(draw_masks(factored(name, 4), jax.random.key(2)))
    assert chi_square_p_value(enumerated_law(name, 4, 4), draws) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("low", "high"), [(1, 8), (2, 4), (7, 8)])
def test_draws_of_limited_size_follow_the_law(low, high):
    draws = np.asarray(draw_masks(factored("ordinary", min_size=low, max_size=high), jax.random.key(3)))
    assert chi_square_p_value(enumerated_law("ordinary", low, high), draws) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "k"), [("ordinary", None), ("symmetric", 4), ("cond(C) 1e6", 3)])
def test_float32_draws_follow_the_law(name, k):
    draws = np.asarray(draw_masks(factored(name, k, np.float32), jax.random.key(4)))
    expected = enumerated_law(name) if k is None else enumerated_law(name, k, k)
    assert chi_square_p_value(expected, draws) > 1e-4


def test_symmetric_kernels_are_never_rejected():
    for k in (None, 4):
        law = factored("symmetric", k, max_proposals=1)
        assert (law.sample(jax.random.key(5), (2000,)) >= 0).all()
        np.testing.assert_allclose(law.sampler.expected_proposals(law), 1.0, rtol=1e-10)


def test_mean_number_of_proposals_agrees_with_the_closed_form():
    """A single proposal is accepted with probability one over the expected number."""
    law = factored("ordinary", 3, max_proposals=1)
    draws = jax.jit(lambda law, key: law.sample(key, (20_000,)))(law, jax.random.key(6))
    accepted = np.asarray((draws >= 0).all(axis=1))
    p = 1 / float(law.sampler.expected_proposals(law))
    assert abs(accepted.mean() - p) < 3.9 * np.sqrt(p * (1 - p) / len(accepted))


def test_too_many_proposals_is_an_error_that_names_the_expected_number():
    law = factored("near skew", 3, max_proposals=2)
    expected = float(law.sampler.expected_proposals(law))
    assert expected > 1000
    message = re.escape(f"expected to take {expected:.3g} proposals, allowed were max_proposals=2")
    with pytest.raises(ValueError, match=message):
        law.sample(jax.random.key(0))
    assert (jax.jit(lambda key: law.sample(key, (4,)))(jax.random.key(0)) == -1).all()


def test_impossible_size():
    law = factored("skew", 3)
    assert law.sampler.expected_proposals(law) == jnp.inf
    with pytest.raises(ValueError, match=r"no subset of 3 items could be drawn .*: they have probability zero"):
        law.sample(jax.random.key(0))


@pytest.mark.parametrize("m", [1, 2, 5, 30])
def test_log_determinant_by_elimination(m):
    A = np.random.default_rng(m).normal(size=(20, m, m))
    A[0, 0, 0] = 0.0  # the first pivot has to be looked for
    with np.errstate(divide="ignore"):
        expected = np.linalg.slogdet(A)[1]
    np.testing.assert_allclose(jax.jit(jax.vmap(log_determinant))(A), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("value", [0, -1, 2.5, True, None])
def test_bad_settings(value):
    with pytest.raises(ValueError, match=r"max_proposals must be (at least 1|a Python integer), got"):
        Rejection(value)


@pytest.mark.slow
def test_batch_of_kernels():
    laws = [factored(name, 2) for name in ("ordinary", "zero rows")]
    batch = KNDPP.from_factors(
        jnp.stack([law.X for law in laws]), jnp.stack([law.W for law in laws]), 2, sampler=Rejection()
    )
    assert batch.sampler.expected_proposals(batch).shape == (2,)
    draws = batch.sample(jax.random.key(0), (2000,))
    for number, name in enumerate(("ordinary", "zero rows")):
        assert chi_square_p_value(enumerated_law(name, 2, 2), np.asarray(to_multihot(draws[:, number], N))) > 1e-4


def test_draws_that_could_be_made_are_not_lost():
    law = factored("ordinary", 3, max_proposals=1)
    with pytest.warns(UserWarning, match=r"of 64 draws are -1 throughout, .* allowed were max_proposals=1"):
        draws = np.asarray(law.sample(jax.random.key(0), (64,)))
    failed = (draws < 0).all(axis=1)
    assert failed.any()
    assert np.isfinite(law.log_prob(draws[~failed])).all()
