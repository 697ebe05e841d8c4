"""The linear-time sampler: chi-square tests over all subsets, at a false-alarm rate of 1e-4 each, with fixed keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chi_square import chi_square_p_value
from kernels import PARTS, N, enumerated_law, factors, table
from scipy import stats

from numpyro_ndpp import KNDPP, NDPP, Cholesky, to_multihot
from numpyro_ndpp.samplers.cholesky import _uniform

NUM_DRAWS = 2**14


def draw_masks(law, key):
    return to_multihot(law.sample(key, (NUM_DRAWS,)), N)


def factored(name, k=None, **limits):
    X, W = factors(name)
    if k is None:
        return NDPP.from_factors(X, W, sampler=Cholesky(), **limits)
    return KNDPP.from_factors(X, W, k, sampler=Cholesky())


@pytest.mark.parametrize("name", table())
def test_draws_follow_the_law(name):
    draws = np.asarray(draw_masks(factored(name), jax.random.key(1)))
    assert chi_square_p_value(enumerated_law(name), draws) > 1e-4


# Near-skew kernels are drawn at an even size: at an odd one hardly a sweep in a thousand has it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "k"),
    [
        ("skew pairs and V", 3),
        *((name, 3) for name in ("ordinary", "scaled 1e-6", "scaled 1e6")),
        ("near skew", 2),
    ],
)
def test_draws_of_one_size_follow_the_law(name, k):
    draws = np.asarray(draw_masks(factored(name, k), jax.random.key(2)))
    assert (draws.sum(1) == k).all()
    assert chi_square_p_value(enumerated_law(name, k, k), draws) > 1e-4


@pytest.mark.parametrize(("low", "high"), [pytest.param(1, 8, marks=pytest.mark.slow), (2, 4)])
def test_draws_of_limited_size_follow_the_law(low, high):
    draws = np.asarray(draw_masks(factored("ordinary", min_size=low, max_size=high), jax.random.key(3)))
    assert chi_square_p_value(enumerated_law("ordinary", low, high), draws) > 1e-4


def test_float32_draws_follow_the_law():
    law = NDPP(*(np.float32(part) for part in PARTS["ordinary"]), sampler=Cholesky())
    draws = np.asarray(draw_masks(law, jax.random.key(4)))
    assert chi_square_p_value(enumerated_law("ordinary"), draws) > 1e-4


def test_sizes_zero_one_and_rank():
    assert factored("ordinary", 0).sample(jax.random.key(0), (3,)).shape == (3, 0)
    assert factored("ordinary", max_size=0).sample(jax.random.key(0), (3,)).shape == (3, 0)
    for k in (1, 8):
        draws = factored("ordinary", k).sample(jax.random.key(0), (100,))
        assert (draws < N).all()
        assert (jnp.diff(draws, axis=1) > 0).all()


def test_impossible_size_is_an_error_and_minus_one_under_jit():
    law = factored("skew", 3)
    with pytest.raises(ValueError, match="no subset of 3 items could be drawn"):
        law.sample(jax.random.key(0))
    draws = jax.jit(lambda key: law.sample(key, (4,)))(jax.random.key(0))
    assert (draws == -1).all()
    assert (jax.jit(law.log_prob)(draws) == -jnp.inf).all()


@pytest.mark.slow
def test_uniform_numbers_are_fine_enough_for_small_probabilities():
    """Below 2⁻²³, the spacing of float32's own uniform numbers, the share of numbers is still what it should be."""
    numbers = np.asarray(_uniform(jax.random.key(5), (2**26,), np.float32))
    assert numbers.dtype == np.float32
    below = (numbers < 2.0**-24).sum()  # expected 4 of 2²⁶
    assert stats.poisson.sf(below - 1, 4) > 1e-4
    assert len(np.unique(numbers[numbers < 2.0**-21])) > 16  # the coarse ones have 4 values there
