"""Exact draws of laws whose size varies, by leaps: the probabilities they rest on, and whole draws against enumeration.

Chi-square and Kolmogorov-Smirnov tests are at a false-alarm rate of 1e-4 each, with fixed keys.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chi_square import chi_square_p_value
from kernels import HARDEST, KERNELS, N, enumerated_law, factors, table
from scipy import stats

from numpyro_ndpp import KNDPP, NDPP, Contour, Exact, to_multihot
from numpyro_ndpp.kernel import Kernel
from numpyro_ndpp.samplers.contour import ContourState
from numpyro_ndpp.samplers.leap import LeapState, _first_of
from numpyro_ndpp.target import Target

NUM_DRAWS = 4096


def exact(name, dtype=np.float64, **limits):
    X, W = factors(name, dtype)
    return NDPP.from_factors(X, W, sampler=Exact(), **limits)


def masks(law, seed, num_draws=NUM_DRAWS):
    return np.asarray(to_multihot(law.sample(jax.random.key(seed), (num_draws,)), N))


@pytest.mark.parametrize("name", table())
def test_draws_follow_the_law(name):
    assert chi_square_p_value(enumerated_law(name), masks(exact(name), 1)) > 1e-4


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == HARDEST[2] else pytest.mark.slow) for n in KERNELS])
def test_float32_draws_follow_the_law(name):
    assert chi_square_p_value(enumerated_law(name), masks(exact(name, np.float32), 2)) > 1e-4


@pytest.mark.parametrize(
    "name", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("ordinary", "scaled 1e-6")), "near skew"]
)
@pytest.mark.parametrize(
    ("low", "high"), [(2, 4), *(pytest.param(*limits, marks=pytest.mark.slow) for limits in [(1, 8), (0, 3), (5, 7)])]
)
def test_draws_of_limited_size_follow_the_law(low, high, name):
    """The limits are below the likely sizes of one kernel, and above those of another."""
    draws = masks(exact(name, min_size=low, max_size=high), 3)
    assert chi_square_p_value(enumerated_law(name, low, high), draws) > 1e-4


def test_the_first_item_of_a_block_has_its_probability():
    """Against P(the first item in S is j) by enumeration of the marginal kernel's law."""
    X, W = factors("ordinary")
    L = X @ W @ X.T
    K = np.linalg.solve((np.eye(N) + L).T, L.T).T[:5, :5]
    expected = np.zeros(5)
    for size in range(1, 6):
        for subset in itertools.combinations(range(5), size):
            signed = np.where(np.isin(np.arange(5), subset)[:, None], K, np.eye(5) - K)
            expected[subset[0]] += np.linalg.det(signed)
    np.testing.assert_allclose(_first_of(jnp.asarray(K), jnp.abs(jnp.diagonal(K))), expected, atol=1e-12)


def random_law(n, d, expected_size, dtype):
    rng = np.random.default_rng(0)
    X, D = rng.normal(size=(n, d)).astype(dtype) / np.sqrt(n).astype(dtype), rng.normal(size=(d // 2, d // 2))
    law = NDPP(X[:, : d // 2], X[:, d // 2 :], D.astype(dtype), sampler=Exact())
    return law.with_expected_size(expected_size)


@pytest.mark.slow
@pytest.mark.parametrize("expected_size", [36.0, 6.0])
def test_sizes_in_float32(expected_size):
    """Near the rank too, where the sum over a circle was off by 0.06."""
    law = random_law(500, 40, expected_size, np.float32)
    sizes = np.sum(np.asarray(law.sample(jax.random.key(4), (200,))) < 500, axis=1)
    probs = np.exp(np.asarray(law.size_log_prob(), np.float64))
    variance = probs @ np.arange(41) ** 2 - (probs @ np.arange(41)) ** 2
    assert abs(sizes.mean() - expected_size) < 3.9 * np.sqrt(variance / len(sizes))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_inclusion_frequencies_beyond_enumeration(dtype):
    n, num_draws = 2000, 10_000
    law = random_law(n, 40, 10.0, dtype)
    draws = np.asarray(law.sample(jax.random.key(6), (num_draws,)))
    counts = np.bincount(draws[draws < n], minlength=n)
    probs = np.asarray(law.inclusion_probs(), np.float64)
    uniform = np.random.default_rng(0).uniform(size=n)
    below, at = stats.binom.cdf(counts - 1, num_draws, probs), stats.binom.pmf(counts, num_draws, probs)
    # A count of ten is not normal yet; a uniform number within the step of its distribution function makes it exact.
    assert stats.kstest(stats.norm.ppf(below + uniform * at), "norm").pvalue > 1e-4


def test_impossible_range_of_sizes():
    law = exact("skew", min_size=7, max_size=8)
    with pytest.raises(ValueError, match="no subset of 7 to 8 items could be drawn"):
        law.sample(jax.random.key(0))


def test_nothing_but_empty_subsets():
    assert exact("ordinary", max_size=0).sample(jax.random.key(0), (3,)).shape == (3, 0)
    zero = NDPP(np.zeros((5, 2)), np.zeros((5, 2)), np.zeros((2, 2)), sampler=Exact())
    assert (zero.sample(jax.random.key(0), (3,)) == 5).all()


def test_exact_takes_the_engine_of_the_law():
    X, W = factors("ordinary")
    shapes = jax.ShapeDtypeStruct(X.shape, X.dtype), jax.ShapeDtypeStruct(W.shape, W.dtype)

    def engine(low, high):
        return jax.eval_shape(lambda X, W: Exact().prepare(Target.of(Kernel.of(X, W), low, high)), *shapes)

    assert isinstance(engine(3, 3), ContourState)
    assert isinstance(engine(0, 8), LeapState)
    assert isinstance(engine(2, 3), LeapState)
    with pytest.raises(ValueError, match=r"Contour draws subsets of one size; .* use Exact\(\)"):
        NDPP.from_factors(X, W, sampler=Contour()).sample(jax.random.key(0))


@pytest.mark.slow
def test_exact_draws_of_one_size_are_those_of_the_contour():
    X, W = factors("ordinary")
    one, other = (KNDPP.from_factors(X, W, 3, sampler=sampler) for sampler in (Exact(), Contour()))
    key = jax.random.key(5)
    assert (one.sample(key, (16,)) == other.sample(key, (16,))).all()
