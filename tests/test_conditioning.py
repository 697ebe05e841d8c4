"""Conditioning, marginals and next items: against enumeration, over the whole table of kernels."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chi_square import chi_square_p_value
from kernels import PARTS, TRUE_RANK, N, all_subsets, enumerated_minors, inclusion, sizes, table

from numpyro_ndpp import KNDPP, NDPP, Cholesky, Contour, Rejection, UpDown, pad_subsets, to_multihot

NUM_DRAWS = 20_000
# what is in and what is out
GIVENS = [([3], [5]), ([0, 2], []), ([1, 4, 6], [9, 0]), ([], [2, 3])]


@cache
def minors_above_rounding(name):
    """The minors of all subsets. A skew kernel has none of odd size, and what is zero is not left to rounding."""
    minors = dict(enumerated_minors(name))
    for size in range(N + 1):
        of_size = [subset for subset in minors if len(subset) == size]
        largest = max((minors[subset] for subset in of_size), default=0.0)
        for subset in of_size:
            if minors[subset] <= 1e-13 * largest or (name in ("skew", "skew pairs") and size % 2):
                minors[subset] = 0.0
    return minors


def conditional(name, include, exclude, low=0, high=N):
    """P(T | include, exclude) of every T of other items, by enumeration; None if what is given is impossible."""
    weights = {}
    for subset, minor in minors_above_rounding(name).items():
        if set(include) <= set(subset) and not set(exclude) & set(subset) and low <= len(subset) <= high:
            weights[tuple(item for item in subset if item not in include)] = minor
    total = sum(weights.values())
    return {T: weight / total for T, weight in weights.items()} if total else None


def log_probs(law):
    """The probability of every subset of up to as many items as the law's values have."""
    subsets = all_subsets(N, law.min_size, law.max_size)
    return dict(zip(subsets, np.exp(law.log_prob(pad_subsets(subsets, N))), strict=True))


def check_law(law, expected):
    probs = log_probs(law)
    assert not any(np.isnan(p) for p in probs.values())
    if expected is None:
        assert max(probs.values()) == 0
        return
    for subset, p in probs.items():
        assert p == pytest.approx(expected.get(subset, 0.0), abs=1e-10)
    np.testing.assert_allclose(law.inclusion_probs(), inclusion(expected), atol=1e-10)
    length = law.rank + 1
    np.testing.assert_allclose(np.exp(law.size_log_prob()), sizes(expected, length), atol=1e-10)


@pytest.mark.parametrize("name", table())
def test_conditional_ndpp_equals_enumeration(name):
    for include, exclude in GIVENS:
        law = NDPP(*PARTS[name]).condition(include, exclude)
        check_law(law, conditional(name, include, exclude))


@pytest.mark.parametrize("name", table())
@pytest.mark.parametrize("k", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_conditional_kndpp_equals_enumeration(name, k):
    for include, exclude in GIVENS[: 2 if k == 3 else 3]:
        law = KNDPP(*PARTS[name], k=k).condition(include, exclude)
        assert law.event_shape == (k - len(include),)
        assert law.k == k - len(include)
        check_law(law, conditional(name, include, exclude, k, k))


@pytest.mark.parametrize("name", ["ordinary", "skew", "skew pairs and V"])
def test_limits_on_the_size_are_those_of_the_whole_subset(name):
    law = NDPP(*PARTS[name], min_size=2, max_size=5).condition([3], [5])
    check_law(law, conditional(name, [3], [5], 2, 5))
    law = NDPP(*PARTS[name], min_size=3, max_size=3).condition([3])
    check_law(law, conditional(name, [3], [], 3, 3))


@pytest.mark.parametrize("name", table())
def test_marginals_equal_enumeration(name):
    sets = all_subsets(N, 0, 3)
    padded = pad_subsets(sets, N)
    for law, low, high in [
        (NDPP(*PARTS[name]), 0, N),
        (KNDPP(*PARTS[name], k=4), 4, 4),
        (NDPP(*PARTS[name], min_size=1, max_size=3), 1, 3),
    ]:
        minors = {s: m for s, m in enumerated_minors(name).items() if low <= len(s) <= high}
        total = sum(minors.values())
        expected = [sum(m for s, m in minors.items() if set(items) <= set(s)) / total for items in sets]
        actual = np.exp(law.marginal_log_prob(padded))
        np.testing.assert_allclose(actual, expected, atol=1e-10)
        unpadded = np.exp(law.marginal_log_prob(padded[-5:]))
        np.testing.assert_allclose(unpadded, expected[-5:], atol=1e-10)


@pytest.mark.parametrize("name", table())
def test_next_items_equal_enumeration(name):
    minors = minors_above_rounding(name)
    sets = [s for s in all_subsets(N, 0, 5) if len(s) < TRUE_RANK[name]]
    actual = np.exp(NDPP(*PARTS[name]).next_item_log_prob(pad_subsets(sets, N)))
    assert not np.isnan(actual).any()
    for items, probs in zip(sets, actual, strict=True):
        weights = np.array([0.0 if a in items else minors.get(tuple(sorted((*items, a))), 0.0) for a in range(N)])
        expected = weights / weights.sum() if weights.sum() else weights
        np.testing.assert_allclose(probs, expected, atol=1e-10)


def test_next_item_respects_the_largest_size():
    law = NDPP(*PARTS["ordinary"], max_size=2)
    log_prob = law.next_item_log_prob(jnp.array([[0, 1], [0, N]]))
    assert (log_prob[0] == -jnp.inf).all()
    assert np.exp(log_prob[1]).sum() == pytest.approx(1)


def test_conditioning_twice_is_conditioning_on_the_union():
    law = NDPP(*PARTS["ordinary"])
    twice = law.condition([3], [5]).condition([1], [0])
    once = law.condition([1, 3], [0, 5])
    subsets = pad_subsets(all_subsets(N, 0, 4), N)
    np.testing.assert_allclose(twice.log_prob(subsets), once.log_prob(subsets), rtol=1e-10)
    fixed = KNDPP(*PARTS["ordinary"], k=5)
    twice, once = fixed.condition([3]).condition([1]), fixed.condition([3, 1])
    assert twice.event_shape == once.event_shape == (3,)
    np.testing.assert_allclose(twice.inclusion_probs(), once.inclusion_probs(), rtol=1e-10, atol=1e-14)


def test_marginals_and_next_items_of_a_conditioned_law():
    name, items = "ordinary", [1, 4]
    law = NDPP(*PARTS[name])
    given = law.condition([3], [5])
    expected = conditional(name, [3], [5])
    marginal = sum(p for T, p in expected.items() if set(items) <= set(T))
    assert np.exp(given.marginal_log_prob(jnp.array(items))) == pytest.approx(marginal, abs=1e-12)
    assert given.marginal_log_prob(jnp.array([3])) == -jnp.inf
    together = law.condition(exclude=[5]).next_item_log_prob(jnp.array([1, 3, 4]))
    np.testing.assert_allclose(given.next_item_log_prob(jnp.array(items)), together, rtol=1e-10)


def test_padded_and_batched_items():
    name = "ordinary"
    law = NDPP(*PARTS[name])
    sets = [[], [3], [1, 4]]
    batch = law.condition(pad_subsets(sets, N), jnp.array([5]))
    assert batch.batch_shape == (3,)
    subsets = all_subsets(N, 0, 3)
    values = np.exp(batch.log_prob(pad_subsets(subsets, N)[:, None]))
    for column, items in enumerate(sets):
        expected = conditional(name, items, [5])
        np.testing.assert_allclose(values[:, column], [expected.get(s, 0.0) for s in subsets], atol=1e-12)
        np.testing.assert_allclose(batch.inclusion_probs()[column], inclusion(expected), atol=1e-12)
    limited = NDPP(*PARTS[name], min_size=2, max_size=3).condition(pad_subsets(sets, N))
    values = np.exp(limited.log_prob(pad_subsets(subsets, N)[:, None]))
    for column, items in enumerate(sets):
        expected = conditional(name, items, [], 2, 3)
        np.testing.assert_allclose(values[:, column], [expected.get(s, 0.0) for s in subsets], atol=1e-12)


def test_under_jit_items_may_be_traced():
    law = NDPP(*PARTS["ordinary"])

    @jax.jit
    def of_items(items, value):
        given = law.condition(items)
        return given.log_prob(value), law.marginal_log_prob(items), law.next_item_log_prob(items)

    items, value = jnp.array([3, 7, N]), jnp.array([1, 4])
    log_prob, marginal, following = of_items(items, value)
    np.testing.assert_allclose(log_prob, law.condition([3, 7]).log_prob(value), rtol=1e-10)
    np.testing.assert_allclose(marginal, law.marginal_log_prob(jnp.array([3, 7])), rtol=1e-10)
    np.testing.assert_allclose(following, law.next_item_log_prob(jnp.array([3, 7])), rtol=1e-10)
    # an item twice has no place in a set
    assert of_items(jnp.array([3, 3, N]), value)[1] == -jnp.inf


@pytest.mark.parametrize("name", ["ordinary", "skew", "skew pairs and V"])
def test_gradients_are_those_of_the_formula(name):
    """The gradient of log P(T | J) is that of log P(J∪T) - log P(J ⊆ S), and finite where things are impossible."""
    V, B, D = (jnp.asarray(part) for part in PARTS[name])
    items, value = jnp.array([2]), jnp.array([3])

    def by_conditioning(V, B, D):
        return NDPP(V, B, D).condition(items).log_prob(value)

    def by_joint(V, B, D):
        law = NDPP(V, B, D)
        return law.log_prob(jnp.array([2, 3])) - law.marginal_log_prob(items)

    def of_fixed_size(V, B, D):
        return KNDPP(V, B, D, k=2).condition(items).log_prob(value)

    def by_next(V, B, D):
        return NDPP(V, B, D).next_item_log_prob(items)[3]

    for first, second in [(by_conditioning, by_joint), (of_fixed_size, by_next)]:
        ours, theirs = (jax.grad(f, argnums=(0, 1, 2))(V, B, D) for f in (first, second))
        for a, b in zip(ours, theirs, strict=True):
            assert np.isfinite(a).all()
            np.testing.assert_allclose(a, b, atol=1e-8)
    impossible = jax.grad(lambda V: NDPP(V * 0, B * 0, D).next_item_log_prob(items)[3])(V)
    assert np.isfinite(impossible).all()


def test_second_derivatives_of_next_items():
    """Of the next item's log-probability, they are those of a subset of two given one of them."""
    V, B, D = (jnp.asarray(part) for part in PARTS["ordinary"])
    along = jnp.cos(jnp.arange(V.size, dtype=V.dtype)).reshape(V.shape)

    def by_size(V):
        return KNDPP(V, B, D, k=2).condition([2]).log_prob(jnp.array([3]))

    def by_next(V):
        return NDPP(V, B, D).next_item_log_prob(jnp.array([2]))[3]

    ours, theirs = (jax.jvp(jax.grad(f), (V,), (along,))[1] for f in (by_size, by_next))
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


# --- Draws -----------------------------------------------------------------------------------------------------------


SAMPLERS = [UpDown(), Contour(), Cholesky(), Rejection()]


@jax.jit
def draw_masks(law, key):
    return to_multihot(law.sample(key, (NUM_DRAWS,)), N)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
@pytest.mark.parametrize(
    "name",
    ["skew pairs", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ordinary", "skew", "repeated rows"))],
)
def test_draws_given_items_follow_the_law(name, sampler):
    """Chi-square over all subsets, false-alarm rate 1e-4 each. Skew kernels have no conditional kernel here."""
    include, exclude = ([3], [5]) if name != "skew pairs" else ([0, 2], [7])
    expected = conditional(name, include, exclude)
    law = NDPP(*PARTS[name], sampler=sampler).condition(include, exclude)
    draws = np.asarray(draw_masks(law, jax.random.key(1)))
    assert draws[:, include + exclude].sum() == 0
    assert chi_square_p_value(expected, draws) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
@pytest.mark.parametrize(("name", "include"), [("ordinary", [3]), ("skew", [3]), ("ordinary", [1, 3, 6])])
def test_draws_of_a_fixed_size_given_items_follow_the_law(name, include, sampler):
    law = KNDPP(*PARTS[name], k=4, sampler=sampler).condition(include, [5])
    draws = np.asarray(draw_masks(law, jax.random.key(2)))
    assert (draws.sum(1) == 4 - len(include)).all()
    assert chi_square_p_value(conditional(name, include, [5], 4, 4), draws) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_draws_of_a_padded_batch_follow_the_law(sampler):
    sets = [[], [1, 4]]
    law = NDPP(*PARTS["ordinary"], min_size=2, max_size=4, sampler=sampler).condition(pad_subsets(sets, N))
    draws = np.asarray(draw_masks(law, jax.random.key(3)))
    for column, items in enumerate(sets):
        assert chi_square_p_value(conditional("ordinary", items, [], 2, 4), draws[:, column]) > 1e-4


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_impossible_items_are_an_error_when_drawn(sampler):
    law = NDPP(*PARTS["zero rows"], sampler=sampler).condition([2])
    with pytest.raises(ValueError, match="could be drawn"):
        law.sample(jax.random.key(0))
    assert (jax.jit(lambda law, key: law.sample(key))(law, jax.random.key(0)) == -1).all()


def test_greedy_stands_beside_the_given_items():
    law = NDPP(*PARTS["skew pairs"]).condition([0, 2])
    assert law.greedy(2).tolist() == [1, 3]
    law = KNDPP(*PARTS["ordinary"], k=4).condition([3], [5])
    items = law.greedy(3)
    assert (law.mode == items).all()
    assert not {3, 5, N} & set(items.tolist())
    assert law.log_prob(items) > np.log(np.mean(list(conditional("ordinary", [3], [5], 4, 4).values())))


def test_a_pinned_item_may_be_poor_or_like_another():
    """A start has to hold the pinned items, however small their own gains are."""
    V = np.diag([0.01, 1.0, 1.0, 1.0]).astype(np.float32)
    V[2] = V[1] + np.float32(0.01) * V[3]
    for include, k in (([0], 2), ([1, 2], 3)):
        law = KNDPP(V, np.zeros((4, 1), np.float32), np.zeros((1, 1), np.float32), k=k).condition(include)
        draws = law.sample(jax.random.key(0), (20,))
        assert not np.isin(draws, include).any()
        assert law.log_prob(law.mode) > -jnp.inf


def test_mode_beside_a_poor_pinned_item():
    """The pinned item lowers the determinant, but it has no choice; the others raise it, and join."""
    V = np.diag([0.5, 1.5, 0.9, 1.2])
    law = NDPP(V, np.zeros((4, 1)), np.zeros((1, 1))).condition([0])
    np.testing.assert_array_equal(law.mode, [1, 3, 4])


def test_the_smallest_number_of_others_of_a_skew_kernel():
    law = KNDPP(*PARTS["skew"], k=2, sampler=Cholesky()).condition([3])
    draws = np.asarray(draw_masks(law, jax.random.key(4)))
    assert chi_square_p_value(conditional("skew", [3], [], 2, 2), draws) > 1e-4


def test_mode_of_a_padded_batch_is_in_the_support():
    law = NDPP(*PARTS["ordinary"], min_size=2, max_size=3).condition(pad_subsets([[0], [0, 1]], N))
    assert (law.log_prob(law.mode) > -jnp.inf).all()


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_dependent_items_are_impossible(sampler):
    V, B, D = (np.array(part) for part in PARTS["symmetric"])
    V[2] = V[0] + V[1]
    law = NDPP(V, B, D, sampler=sampler).condition([0, 1, 2])
    assert (law.inclusion_probs() == 0).all()
    with pytest.raises(ValueError, match="could be drawn"):
        law.sample(jax.random.key(0))


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
        KNDPP(*PARTS["ordinary"], k=4).condition(**arguments)


def test_more_bad_items():
    law = NDPP(*PARTS["ordinary"])
    with pytest.raises(ValueError, match="include has 9 items, but subsets have at most 8"):
        law.condition(list(range(9)))
    with pytest.raises(ValueError, match="item 3 has been included already"):
        law.condition([3]).condition([3])
    with pytest.raises(ValueError, match="include and exclude both name item 3"):
        law.condition([3]).condition(exclude=[3])
    with pytest.raises(ValueError, match="include has 3 items, but subsets have at most 2"):
        jax.jit(KNDPP(*PARTS["ordinary"], k=2).condition)(jnp.array([0, 1, 2]))
    with pytest.raises(ValueError, match="could be drawn"):
        KNDPP(*PARTS["zero rows"], k=1).condition([2]).sample(jax.random.key(0))
    with pytest.raises(TypeError, match="include must hold integer item numbers"):
        law.condition([0.5])
    with pytest.raises(ValueError, match="items has item 12"):
        law.marginal_log_prob(jnp.array([12]))
    with pytest.raises(ValueError, match="items has item 1 more than once"):
        law.next_item_log_prob(jnp.array([1, 1]))
    with pytest.raises(NotImplementedError, match="rescale the law, then condition"):
        law.condition([3]).with_expected_size(2.0)
