"""Conditioning: against enumeration, over the whole table of kernels."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import KERNELS, PARTS, N, all_subsets, conditional, factored, inclusion, sizes

from numpyro_ndpp import KNDPP, NDPP, pad_subsets

# what is in and what is out
GIVENS = [([3], [5]), ([0, 2], []), ([1, 4, 6], [9, 0]), ([], [2, 3])]


@jax.jit
def members(law, values):
    """What a law tells, in one program: for every kernel of a shape the same."""
    return law.log_prob(values), law.inclusion_probs(), law.size_log_prob()


@cache
def padded(low, high):
    subsets = all_subsets(N, low, high)
    return subsets, np.asarray(pad_subsets(subsets, N))


def evaluated(law):
    """The probability of every subset of up to as many items as the law's values have, of every item and size."""
    subsets, values = padded(law.min_size, law.max_size)
    log_probs, included, log_sizes = members(law, values.reshape(len(values), *(1,) * len(law.batch_shape), -1))
    return subsets, np.exp(log_probs), np.asarray(included), np.exp(log_sizes)


def check(subsets, probs, included, size_probs, expected):
    assert not np.isnan(probs).any()
    if expected is None:
        assert probs.max() == 0
        return
    np.testing.assert_allclose(probs, [expected.get(subset, 0.0) for subset in subsets], rtol=0, atol=1e-10)
    np.testing.assert_allclose(included, inclusion(expected), atol=1e-10)
    np.testing.assert_allclose(size_probs, sizes(expected, len(size_probs)), atol=1e-10)


def check_law(law, expected):
    subsets, probs, included, size_probs = evaluated(law)
    assert size_probs.shape == (law.rank + 1,)
    check(subsets, probs, included, size_probs, expected)


def quick_if(condition, *values):
    return pytest.param(*values, marks=[] if condition else pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "given"),
    [quick_if(given == 0 and name != "n < d", name, given) for given in range(len(GIVENS)) for name in KERNELS],
)
def test_conditional_ndpp_equals_enumeration(name, given):
    include, exclude = GIVENS[given]
    check_law(factored(name).condition(include, exclude), conditional(name, include, exclude))


@pytest.mark.parametrize("name", [quick_if(name != "n < d", name) for name in KERNELS])
def test_a_padded_batch_of_all_that_is_given(name):
    law = factored(name).condition(*(pad_subsets(items, N) for items in zip(*GIVENS, strict=True)))
    assert law.batch_shape == (len(GIVENS),)
    subsets, probs, included, size_probs = evaluated(law)
    for column, given in enumerate(GIVENS):
        check(subsets, probs[:, column], included[column], size_probs[column], conditional(name, *given))


@pytest.mark.parametrize(
    ("name", "k", "given"),
    [
        quick_if(k == 3 and name != "n < d", name, k, given)
        for k in (3, 4)
        for given in range(k - 1)
        for name in KERNELS
    ],
)
def test_conditional_kndpp_equals_enumeration(name, k, given):
    include, exclude = GIVENS[given]
    law = factored(name, k).condition(include, exclude)
    assert law.event_shape == (k - len(include),)
    assert law.k == k - len(include)
    check_law(law, conditional(name, include, exclude, k, k))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ordinary", "skew", "skew pairs and V"])
def test_conditioning_of_parts(name):
    check_law(NDPP(*PARTS[name]).condition([3], [5]), conditional(name, [3], [5]))
    check_law(KNDPP(*PARTS[name], k=3).condition([3], [5]), conditional(name, [3], [5], 3, 3))


@pytest.mark.parametrize("name", ["ordinary", "skew", "skew pairs and V"])
def test_limits_on_the_size_are_those_of_the_whole_subset(name):
    law = factored(name, min_size=2, max_size=5).condition([3], [5])
    check_law(law, conditional(name, [3], [5], 2, 5))
    law = factored(name, min_size=3, max_size=3).condition([3])
    check_law(law, conditional(name, [3], [], 3, 3))


def test_conditioning_twice_is_conditioning_on_the_union():
    law = factored("ordinary")
    twice = law.condition([3], [5]).condition([1], [0])
    once = law.condition([1, 3], [0, 5])
    _, subsets = padded(0, 4)
    np.testing.assert_allclose(members(twice, subsets)[0], members(once, subsets)[0], rtol=1e-10)


@pytest.mark.parametrize("k", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_conditioning_a_fixed_size_twice(k):
    fixed = factored("ordinary", k)
    twice, once = fixed.condition([3]).condition([1]), fixed.condition([3, 1])
    assert twice.event_shape == once.event_shape == (k - 2,)
    np.testing.assert_allclose(evaluated(twice)[2], evaluated(once)[2], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("low", "high"), [pytest.param(0, None, marks=pytest.mark.slow), (2, 3)])
def test_padded_and_batched_items(low, high):
    name, sets = "ordinary", [[], [3], [1, 4]]
    batch = factored(name, min_size=low, max_size=high).condition(pad_subsets(sets, N), jnp.array([5]))
    assert batch.batch_shape == (3,)
    subsets, values = padded(0, 3)
    log_probs, included, _ = members(batch, values[:, None])
    for column, items in enumerate(sets):
        expected = conditional(name, items, [5], low, high or N)
        np.testing.assert_allclose(
            np.exp(log_probs)[:, column], [expected.get(s, 0.0) for s in subsets], rtol=1e-7, atol=1e-12
        )
        np.testing.assert_allclose(np.asarray(included)[column], inclusion(expected), atol=1e-12)


def test_under_jit_items_may_be_traced():
    law = factored("ordinary")

    @jax.jit
    def of_items(items, value):
        given = law.condition(items)
        return given.log_prob(value), law.marginal_log_prob(items), law.next_item_log_prob(items)

    items, value = np.array([3, 7, N]), np.array([1, 4])
    log_prob, marginal, following = of_items(items, value)
    np.testing.assert_allclose(log_prob, law.condition([3, 7]).log_prob(value), rtol=1e-10)
    np.testing.assert_allclose(marginal, law.marginal_log_prob(np.array([3, 7])), rtol=1e-10)
    np.testing.assert_allclose(following, law.next_item_log_prob(np.array([3, 7])), rtol=1e-10)
    # an item twice has no place in a set
    assert of_items(np.array([3, 3, N]), value)[1] == -np.inf


def test_greedy_stands_beside_the_given_items():
    law = factored("skew pairs").condition([0, 2])
    assert law.greedy(2).tolist() == [1, 3]
    law = factored("ordinary", 4).condition([3], [5])
    items = law.greedy(3)
    assert (law.mode == items).all()
    assert not {3, 5, N} & set(items.tolist())
    assert law.log_prob(items) > np.log(np.mean(list(conditional("ordinary", [3], [5], 4, 4).values())))


def test_mode_beside_a_poor_pinned_item():
    """The pinned item lowers the determinant, but it has no choice; the others raise it, and join."""
    V = np.diag([0.5, 1.5, 0.9, 1.2])
    law = NDPP(V, np.zeros((4, 1)), np.zeros((1, 1))).condition([0])
    np.testing.assert_array_equal(law.mode, [1, 3, 4, 4])


def test_mode_of_a_padded_batch_is_in_the_support():
    law = factored("ordinary", min_size=2, max_size=3).condition(pad_subsets([[0], [0, 1]], N))
    mode, log_prob = jax.jit(lambda law: (law.mode, law.log_prob(law.mode)))(law)
    assert mode.shape == (2, law.max_size)
    assert (np.asarray(log_prob) > -np.inf).all()


# --- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"include": [3], "exclude": [3]}, "include and exclude both name item 3"),
        ({"include": [N + 1]}, f"include has item {N + 1}; items must be 0 to {N - 1}"),
        ({"exclude": [-1]}, "exclude has item -1"),
        ({"include": [2, 2]}, "include has item 2 more than once"),
        ({"include": list(range(5))}, "include has 5 items, but subsets have at most 4"),
        ({"include": [2, N]}, "include must have no padding"),
    ],
)
def test_bad_items(arguments, message):
    with pytest.raises(ValueError, match=message):
        factored("ordinary", 4).condition(**arguments)


def test_more_bad_items():
    law = factored("ordinary")
    with pytest.raises(ValueError, match="include has 9 items, but subsets have at most 8"):
        law.condition(list(range(9)))
    with pytest.raises(ValueError, match="item 3 has been included already"):
        law.condition([3]).condition([3])
    with pytest.raises(ValueError, match="include and exclude both name item 3"):
        law.condition([3]).condition(exclude=[3])
    with pytest.raises(ValueError, match="include has 3 items, but subsets have at most 2"):
        jax.jit(factored("ordinary", 2).condition)(jnp.array([0, 1, 2]))
    with pytest.raises(TypeError, match="include must hold integer item numbers"):
        law.condition([0.5])
    with pytest.raises(ValueError, match="items has item 12"):
        law.marginal_log_prob(jnp.array([12]))
    with pytest.raises(ValueError, match="items has item 1 more than once"):
        law.next_item_log_prob(jnp.array([1, 1]))
    with pytest.raises(NotImplementedError, match="rescale, then condition"):
        law.condition([3]).with_expected_size(2.0)


def test_shapes_depend_on_no_value():
    """Where the size varies, what is given may be padding: there is room for as many items as if it were."""
    law = factored("ordinary", max_size=5)
    for include in ([3], [3, N], [N, N]):
        include = jnp.array(include)
        outside = law.condition(include)
        within = jax.eval_shape(law.condition, include)
        assert within.event_shape == outside.event_shape == (5,)
        assert (within.min_size, within.max_size) == (outside.min_size, outside.max_size)


def test_what_is_out_stays_out():
    law = factored("ordinary").condition(exclude=[3])
    with pytest.raises(ValueError, match="include and exclude both name item 3"):
        law.condition([3])
    with pytest.raises(ValueError, match="include and exclude both name item 3"):
        law.condition([4], [5]).condition([3])
