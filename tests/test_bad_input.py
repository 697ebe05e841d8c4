"""What is refused, and what the message says."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

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
    parts[which][1, 0] = bad
    message = f"^{'VBD'[which]} must be finite, got {bad} in row 1, column 0"
    with pytest.raises(ValueError, match=message):
        NDPP(*parts, validate_args=True)
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda: KNDPP(*parts, 2, validate_args=True).log_normalizer)()
    NDPP(*parts, validate_args=False)


def test_parameters_of_a_batch_that_are_not_finite():
    V = np.stack([GOOD[0]] * 6).reshape(3, 2, 5, 2)
    V[2, 0, 3, 1] = -np.inf
    message = r"V must be finite, got -inf in row 3, column 1, of kernel \(2, 0\) in the batch"
    with pytest.raises(ValueError, match=message):
        NDPP(V, *GOOD[1:], validate_args=True)
    V[2, 1, 0, 0] = np.nan
    with pytest.raises(ValueError, match=message + "; 2 entries are not"):
        NDPP(V, *GOOD[1:], validate_args=True)


def test_parameters_that_are_no_numbers():
    with pytest.raises(TypeError, match=r"the kernel's parameters must be arrays of numbers: "):
        NDPP([["tea"], ["milk"]])


def test_inner_matrix_that_is_not_semidefinite():
    X = np.ones((5, 2))
    message = "W must have a positive semidefinite symmetric part, got one with the eigenvalue -1: then some subsets"
    with pytest.raises(ValueError, match=message):
        NDPP.from_factors(X, -np.eye(2), validate_args=True)
    with pytest.raises(ValueError, match="X must be finite, got nan in row 0, column 0; 10 entries are not"):
        NDPP.from_factors(X * np.nan, np.eye(2), validate_args=True)
    features = RNG.normal(size=(2, 9))
    W = features.T @ features  # semidefinite, with eigenvalues just below zero by rounding
    NDPP.from_factors(np.ones((5, 9)), W, validate_args=True)


OUTSIDE = {
    "repeated": ([0, 0], r"value = \[0, 0\] has item 0 more than once; padding is 5"),
    "not increasing": ([2, 1], r"value = \[2, 1\] is not increasing, with padding \(5\) at its end: pad_subsets sorts"),
    "padding first": ([5, 1], r"is not increasing, with padding \(5\) at its end"),
    "out of range": ([0, 7], r"value = \[0, 7\] has item 7; items are 0 to 4, and padding is 5"),
    "negative": ([-1, 2], r"has item -1; items are 0 to 4"),
    "no draw": ([-1, -1], r"is a draw that could not be made"),
    "zeros and ones": ([1, 0, 0, 1, 0], r"looks like a vector of zeros and ones: multihot\(\) takes these"),
    "narrow": ([3], r"value of shape \(1,\) has room for 1 items, but subsets have 2 at least"),
    "a row": ([[0, 1], [3, 2]], r"value\[1\] = \[3, 2\] is not increasing"),
}
log_prob_of_two = jax.jit(KNDPP(*GOOD, 2).log_prob)


@pytest.mark.parametrize("name", OUTSIDE)
def test_value_that_is_no_subset(name):
    """A warning, as NumPyro has it: by validation, where the value is known; and -inf in any case."""
    value, message = jnp.array(OUTSIDE[name][0]), OUTSIDE[name][1] + ".*; its log-probability is -inf"
    law = KNDPP(*GOOD, 2, validate_args=True)
    for known in (value, np.asarray(value)):
        with pytest.warns(UserWarning, match=message):
            assert np.min(law.log_prob(known)) == -np.inf
    with pytest.warns(UserWarning, match=message):
        assert np.min(jax.jit(lambda x: x + law.log_prob(value))(0.0)) == -np.inf
    assert np.min(KNDPP(*GOOD, 2, validate_args=False).log_prob(value)) == -np.inf
    assert np.min(log_prob_of_two(value)) == -np.inf


@pytest.mark.parametrize("value", [[1, 5], [5, 5], [0, 1, 2], [0, 1, 2, 5]])
def test_a_size_that_is_not_allowed_has_no_warning(value):
    value = np.array(value)
    assert KNDPP(*GOOD, 2, validate_args=True).log_prob(value) == -jnp.inf
    hot = np.zeros(5, int)
    hot[value[value < 5]] = 1
    assert KNDPP(*GOOD, 2, validate_args=True).multihot().log_prob(hot) == -jnp.inf


def test_value_that_holds_an_included_item():
    law = NDPP(*GOOD, validate_args=True).condition(include=[2])
    with pytest.warns(
        UserWarning, match="a value has item 2, which is included already: values are of the other items"
    ):
        assert law.log_prob(np.array([1, 2])) == -jnp.inf


def test_observed_value_that_is_no_subset():
    """In a model the warning comes from the likelihood's first evaluation, data known."""

    def model(data):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("baskets", len(data)):
            numpyro.sample("basket", NDPP(scale * GOOD[0], *GOOD[1:], validate_args=True), obs=data)

    data = np.array([[0, 1, 5, 5], [3, 2, 5, 5]])
    with pytest.warns(UserWarning, match=r"value\[1\] = \[3, 2, 5, 5\] is not increasing"):
        jax.jit(lambda scale: log_density(model, (data,), {}, {"scale": scale})[0])(1.0)


def test_values_that_do_not_broadcast_with_the_batch():
    law = NDPP(np.stack([GOOD[0]] * 3), *GOOD[1:])
    message = r"sets of items of shape \(2, 4\), .* must broadcast with a batch of shape \(3,\)"
    for member in (law.log_prob, law.marginal_log_prob, law.next_item_log_prob):
        with pytest.raises(ValueError, match=message):
            member(np.array([[0, 1, 5, 5], [2, 3, 5, 5]]))


@pytest.mark.parametrize("items", ["bread", ["bread", "tea"], np.array(["bread"]), [[0], [1, 2]], None], ids=str)
def test_items_that_are_no_numbers(items):
    law = NDPP(*GOOD)
    members = {
        "value": law.log_prob,
        "items": law.marginal_log_prob,
        "include": lambda items: law.condition(include=items),
        "exclude": lambda items: law.condition(exclude=items),
    }
    for name, member in members.items():
        if items is None and name in ("include", "exclude"):
            continue
        with pytest.raises(TypeError, match=f"^{name} must hold integer item numbers, got "):
            member(items)
    with pytest.raises(TypeError, match=r"^items must hold integer item numbers, got "):
        law.next_item_log_prob(items)


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


def test_greedy_size_beside_given_items():
    law = NDPP(*GOOD).condition(include=[0])
    assert law.greedy(3).shape == (3,)
    message = r"between 0 and what is left of min\(num_items=5, rank=4\) beside 1 included and 0 excluded = 3, got 4"
    with pytest.raises(ValueError, match=message):
        law.greedy(4)
    with pytest.raises(ValueError, match="beside 1 included and 2 excluded = 2, got 3"):
        law.condition(exclude=[2, 3]).greedy(3)


@pytest.mark.parametrize("shape", [5, np.int64(5), "5", None, 2.0])
def test_sample_shape_that_is_no_tuple(shape):
    example = r", such as \(5,\)" if isinstance(shape, (int, np.integer)) else ""
    for law in (NDPP(*GOOD), NDPP(*GOOD).multihot()):
        with pytest.raises(TypeError, match=f"sample_shape must be a tuple of integers{example}, got "):
            law.sample(jax.random.key(0), shape)
    with pytest.raises(ValueError, match=r"sample_shape's entries must be a Python integer, got 2\.5"):
        NDPP(*GOOD).sample(jax.random.key(0), (2.5,))
    with pytest.raises(ValueError, match="sample_shape's entries must be at least 0, got -1"):
        NDPP(*GOOD).sample(jax.random.key(0), (-1,))


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
    with pytest.raises(ValueError, match="V must be finite, got nan in row 2, column 0"):
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


def test_vectors_of_zeros_and_ones_that_are_texts():
    view = NDPP(np.eye(3)).multihot()
    for value in (["a", "b", "c"], np.array(["1", "0", "1"])):
        with pytest.raises(TypeError, match="value must be vectors of zeros and ones, got "):
            view.log_prob(value)
