"""What is refused, and what the message says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_ndpp import KNDPP, NDPP, UpDown
from numpyro_ndpp.checks import finite_float, static_int

V, B, D = np.ones((5, 2)), np.ones((5, 3)), np.ones((3, 3))
RNG = np.random.default_rng(0)
GOOD = RNG.normal(size=(5, 2)), RNG.normal(size=(5, 2)), RNG.normal(size=(2, 2))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((np.ones((4, 2)), B, D), r"V and B .* V of shape \(4, 2\) and B of shape \(5, 3\)"),
        ((V, B, np.ones((2, 2))), r"D must be square .* D of shape \(2, 2\) and B of shape \(5, 3\)"),
        ((V, B, np.ones((3, 2))), r"D must be square .* D of shape \(3, 2\)"),
        ((np.ones(5), B, D), r"V must be a matrix .* got shape \(5,\)"),
        ((V, np.ones(5), D), r"B must be a matrix"),
        ((V, B, 1.0), r"D must be a matrix .* got shape \(\)"),
        ((np.ones((2, 5, 2)), np.ones((3, 5, 3)), D), "do not broadcast"),
        ((np.ones((5, 0)), np.ones((5, 0)), np.ones((0, 0))), "a row and a column at least"),
    ],
)
def test_shapes(parts, message):
    for make in (NDPP, lambda *parts: KNDPP(*parts, 2)):
        with pytest.raises(ValueError, match=message):
            make(*parts)


def test_shapes_of_factors():
    with pytest.raises(ValueError, match=r"W must be square .* W of shape \(2, 2\) and X of shape \(5, 3\)"):
        NDPP.from_factors(np.ones((5, 3)), np.eye(2))
    with pytest.raises(ValueError, match="X must be a matrix"):
        KNDPP.from_factors(np.ones(5), np.eye(2), 1)


@pytest.mark.parametrize("k", [-1, 5, 2.0, "2", None, True, jnp.array(2.0), np.ones(2)])
def test_size_that_is_not_allowed(k):
    with pytest.raises(ValueError, match=r"k must be (between 0 and min\(num_items=5, rank=4\) = 4|a Python integer)"):
        KNDPP(*GOOD, k)


def test_size_above_the_number_of_items():
    with pytest.raises(ValueError, match=r"min\(num_items=2, rank=4\) = 2, got 3"):
        KNDPP(GOOD[0][:2], GOOD[1][:2], GOOD[2], 3)


def test_size_that_is_traced():
    with pytest.raises(ValueError, match="k must be a Python integer"):
        jax.jit(lambda k: KNDPP(*GOOD, k).log_normalizer)(2)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_size": 3, "max_size": 2}, "min_size must be between 0 and max_size = 2, got 3"),
        ({"min_size": -1}, "min_size must be between 0"),
        ({"max_size": 5}, r"max_size must be between 0 and min\(num_items=5, rank=4\) = 4, got 5"),
        ({"max_size": 2.5}, "max_size must be a Python integer"),
    ],
)
def test_size_limits(limits, message):
    with pytest.raises(ValueError, match=message):
        NDPP(*GOOD, **limits)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_parameters_that_are_not_finite(which, bad):
    parts = [part.copy() for part in GOOD]
    parts[which][0, 0] = bad
    with pytest.raises(ValueError, match=f"invalid {'VBD'[which]} parameter"):
        NDPP(*parts, validate_args=True)
    with pytest.raises(ValueError, match=f"invalid {'VBD'[which]} parameter"):
        jax.jit(lambda: KNDPP(*parts, 2, validate_args=True).log_normalizer)()
    NDPP(*parts, validate_args=False)


def test_inner_matrix_that_is_not_semidefinite():
    X = np.ones((5, 2))
    with pytest.raises(ValueError, match="invalid W parameter"):
        NDPP.from_factors(X, -np.eye(2), validate_args=True)
    with pytest.raises(ValueError, match="invalid X parameter"):
        NDPP.from_factors(X * np.nan, np.eye(2), validate_args=True)
    features = RNG.normal(size=(2, 9))
    W = features.T @ features  # semidefinite, with eigenvalues just below zero by rounding
    NDPP.from_factors(np.ones((5, 9)), W, validate_args=True)


OUTSIDE = [[0, 0], [2, 1], [0, 7], [-1, 2], [1, 5], [-1, -1]]
log_prob_of_two = jax.jit(KNDPP(*GOOD, 2).log_prob)


@pytest.mark.parametrize("value", OUTSIDE)
def test_value_outside_the_support(value):
    value = jnp.array(value)
    with pytest.warns(UserWarning, match="Out-of-support"):
        assert KNDPP(*GOOD, 2, validate_args=True).log_prob(value) == -jnp.inf
    assert KNDPP(*GOOD, 2, validate_args=False).log_prob(value) == -jnp.inf
    assert log_prob_of_two(value) == -jnp.inf


def test_value_that_is_not_an_integer():
    for value in [jnp.array([0.0, 1.0]), np.array([True, False])]:
        with pytest.raises(TypeError, match=r"integer item numbers, got (float64|bool); for 0/1 vectors use multihot"):
            NDPP(*GOOD).log_prob(value)
    with pytest.raises(ValueError, match="one dimension at least"):
        NDPP(*GOOD).log_prob(3)
    with pytest.raises(ValueError, match=r"each of the 5 items, got shape \(4,\)"):
        NDPP(*GOOD).multihot().log_prob(jnp.zeros(4, int))


@pytest.mark.parametrize("size", [0.0, 4.0, -1.0, 10.0])
def test_expected_size_out_of_reach(size):
    with pytest.raises(ValueError, match="expected_size must be between 0 and 4"):
        NDPP(*GOOD).with_expected_size(size)


def test_expected_size_above_the_true_rank():
    with pytest.raises(ValueError, match=r"expected_size is 3\.5, but this kernel reaches no more than"):
        NDPP(GOOD[0], np.zeros((5, 2)), GOOD[2]).with_expected_size(3.5)


def test_greedy_size_that_is_not_allowed():
    with pytest.raises(ValueError, match="k must be between 0 and"):
        NDPP(*GOOD).greedy(5)
    with pytest.raises(ValueError, match="num_exchanges must be"):
        NDPP(*GOOD).greedy(2, num_exchanges=-1)


@pytest.mark.parametrize("sampler", [UpDown, "contour", None])
def test_sampler_that_is_none(sampler):
    for make in (NDPP, lambda *parts, **settings: KNDPP(*parts, 2, **settings)):
        with pytest.raises(ValueError, match=r"sampler must be a sampler such as UpDown\(\)"):
            make(*GOOD, sampler=sampler)


def test_key_that_is_none():
    with pytest.raises(ValueError, match="key must be a JAX random key, got 0"):
        NDPP(*GOOD).sample(0)


def test_complex_parameters():
    with pytest.raises(ValueError, match="must be real, got complex128"):
        NDPP(GOOD[0] * (1 + 1j), *GOOD[1:])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_parameters_of_16_bits_count_as_32(dtype):
    narrow = [jnp.asarray(part, dtype) for part in GOOD]
    value = NDPP(*narrow).log_prob(jnp.array([0, 2]))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, NDPP(*(part.astype(jnp.float32) for part in narrow)).log_prob(jnp.array([0, 2])))


@pytest.mark.parametrize("k", [None, 2])
def test_parameters_that_are_not_numbers_give_none_under_jit(k):
    def numbers(V, B, D):
        law = NDPP(V, B, D) if k is None else KNDPP(V, B, D, k)
        return law.log_prob(jnp.array([0, 1])), law.inclusion_probs()

    for which in range(3):
        parts = [jnp.full_like(part, jnp.nan) if i == which else jnp.asarray(part) for i, part in enumerate(GOOD)]
        log_prob, probs = jax.jit(numbers)(*parts)
        assert np.isnan(log_prob)
        assert np.isnan(probs).all()


def test_known_parameters_are_checked_within_jit():
    V = np.zeros((4, 1))
    V[2, 0] = np.nan
    with pytest.raises(ValueError, match="invalid V parameter"):
        jax.jit(lambda x: x + NDPP(V, np.ones((4, 2)), np.ones((2, 2)), validate_args=True).V.sum())(1.0)


@pytest.mark.parametrize("value", [True, np.True_, "1", None, np.ones(2), np.nan, np.inf, 10**400, 0, 2.5])
def test_numbers_that_are_not_allowed(value):
    with pytest.raises(ValueError, match=r"rate must be a finite number above 0 and below 2, got "):
        finite_float("rate", value, 0, 2, exclusive=True)


def test_numbers_that_are_allowed():
    assert finite_float("rate", jnp.float32(0.5), 0, 2, exclusive=True) == 0.5
    assert [finite_float("rate", value, 0, 2) for value in (0, np.int8(2))] == [0.0, 2.0]
    assert static_int("number", np.int64(2**40), 0) == 2**40
    with pytest.raises(ValueError, match="number must be at least 0, got -1"):
        static_int("number", -1, 0)
