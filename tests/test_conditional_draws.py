"""Draws given that some items are in and others are out: against enumeration, by every sampler."""

from functools import partial

import jax
import numpy as np
import pytest
from chi_square import chi_square_p_value
from kernels import PARTS, N, conditional, factored

from numpyro_ndpp import KNDPP, NDPP, Cholesky, Exact, Rejection, UpDown, pad_subsets, to_multihot

NUM_DRAWS = 8_192
NUM_QUICK_DRAWS = 4_096
SAMPLERS = [UpDown(), Exact(), Cholesky(), Rejection()]
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
# Outside jit a sampler is compiled anew; what happens there is the law's doing, and alike for all samplers.
one_sampler_quick = pytest.mark.parametrize(
    "sampler",
    [pytest.param(s, marks=[] if isinstance(s, Cholesky) else pytest.mark.slow) for s in SAMPLERS],
    ids=lambda sampler: type(sampler).__name__,
)


@partial(jax.jit, static_argnums=2)
def draw_masks(law, key, num_draws=NUM_DRAWS):
    """-1 throughout where there was nothing to draw. Laws of as many items given share what is compiled."""
    return to_multihot(law.sample(key, (num_draws,)), N)


@pytest.mark.parametrize(
    "sampler",
    [pytest.param(s, marks=pytest.mark.slow if isinstance(s, (Rejection, UpDown)) else []) for s in SAMPLERS],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.parametrize(
    ("name", "num_draws"),
    [
        ("skew pairs", NUM_QUICK_DRAWS),
        *(
            pytest.param(name, NUM_DRAWS, marks=pytest.mark.slow)
            for name in ("skew pairs", "ordinary", "skew", "repeated rows")
        ),
    ],
)
def test_draws_given_items_follow_the_law(name, num_draws, sampler):
    """Chi-square over all subsets, false-alarm rate 1e-4 each. Skew kernels have no conditional kernel here."""
    include, exclude = ([3], [5]) if name != "skew pairs" else ([0, 2, 3], [7])
    expected = conditional(name, include, exclude)
    law = factored(name, sampler=sampler).condition(include, exclude)
    draws = np.asarray(draw_masks(law, jax.random.key(1), num_draws))
    assert draws[:, include + exclude].sum() == 0
    assert chi_square_p_value(expected, draws) > 1e-4


@pytest.mark.slow
@every_sampler
def test_draws_given_one_of_each_of_two_pairs(sampler):
    law = factored("skew pairs", sampler=sampler).condition([0, 2], [7])
    draws = np.asarray(draw_masks(law, jax.random.key(1)))
    assert draws[:, [0, 2, 7]].sum() == 0
    assert chi_square_p_value(conditional("skew pairs", [0, 2], [7]), draws) > 1e-4


@pytest.mark.slow
@every_sampler
@pytest.mark.parametrize(("name", "include"), [("ordinary", [3]), ("skew", [3]), ("ordinary", [1, 3, 6])])
def test_draws_of_a_fixed_size_given_items_follow_the_law(name, include, sampler):
    law = factored(name, 4, sampler=sampler).condition(include, [5])
    draws = np.asarray(draw_masks(law, jax.random.key(2)))
    assert (draws.sum(1) == 4 - len(include)).all()
    assert chi_square_p_value(conditional(name, include, [5], 4, 4), draws) > 1e-4


@pytest.mark.slow
@every_sampler
def test_draws_of_a_padded_batch_follow_the_law(sampler):
    sets = [[], [1, 4]]
    law = factored("ordinary", min_size=2, max_size=4, sampler=sampler).condition(pad_subsets(sets, N))
    draws = np.asarray(draw_masks(law, jax.random.key(3)))
    for column, items in enumerate(sets):
        assert chi_square_p_value(conditional("ordinary", items, [], 2, 4), draws[:, column]) > 1e-4


@pytest.mark.parametrize(
    "sampler",
    [pytest.param(s, marks=[] if isinstance(s, Exact) else pytest.mark.slow) for s in SAMPLERS],
    ids=lambda sampler: type(sampler).__name__,
)
def test_impossible_items_give_no_subset_under_jit(sampler):
    law = factored("zero rows", sampler=sampler).condition([0, 2, 3])
    assert (np.asarray(draw_masks(law, jax.random.key(0))) == -1).all()


@one_sampler_quick
def test_impossible_items_are_an_error_when_drawn(sampler):
    law = factored("zero rows", sampler=sampler).condition([0, 2, 3])
    with pytest.raises(ValueError, match="could be drawn"):
        law.sample(jax.random.key(0))


@pytest.mark.slow
@every_sampler
def test_one_impossible_item(sampler):
    law = factored("zero rows", sampler=sampler).condition([2])
    with pytest.raises(ValueError, match="could be drawn"):
        law.sample(jax.random.key(0))
    assert (jax.jit(lambda law, key: law.sample(key))(law, jax.random.key(0)) == -1).all()


def law_given_dependent_items(sampler):
    V, B, D = (np.array(part) for part in PARTS["symmetric"])
    V[2] = V[0] + V[1]
    X, W = np.hstack([V, B]), np.eye(8)
    W[6:, 6:] = D - D.T
    return NDPP.from_factors(X, W, sampler=sampler).condition([0, 1, 2])


def test_dependent_items_are_never_included():
    law = law_given_dependent_items(Cholesky())
    assert (np.asarray(law.inclusion_probs()) == 0).all()


@every_sampler
def test_dependent_items_give_no_subset_under_jit(sampler):
    assert (np.asarray(draw_masks(law_given_dependent_items(sampler), jax.random.key(0))) == -1).all()


@one_sampler_quick
def test_dependent_items_are_an_error_when_drawn(sampler):
    with pytest.raises(ValueError, match="could be drawn"):
        law_given_dependent_items(sampler).sample(jax.random.key(0))


def test_an_impossible_item_of_the_only_size():
    with pytest.raises(ValueError, match="could be drawn"):
        factored("zero rows", 1).condition([2]).sample(jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize(("include", "k"), [([0], 2), ([1, 2], 3)])
def test_a_pinned_item_may_be_poor_or_like_another(include, k):
    """A start has to hold the pinned items, however small their own gains are."""
    V = np.diag([0.01, 1.0, 1.0, 1.0]).astype(np.float32)
    V[2] = V[1] + np.float32(0.01) * V[3]
    law = KNDPP(V, np.zeros((4, 1), np.float32), np.zeros((1, 1), np.float32), k=k).condition(include)
    draws = np.asarray(law.sample(jax.random.key(0), (20,)))
    assert not np.isin(draws, include).any()
    assert law.log_prob(law.mode) > -np.inf


@pytest.mark.slow
def test_the_smallest_number_of_others_of_a_skew_kernel():
    law = factored("skew", 2, sampler=Cholesky()).condition([3])
    draws = np.asarray(draw_masks(law, jax.random.key(4)))
    assert chi_square_p_value(conditional("skew", [3], [], 2, 2), draws) > 1e-4
