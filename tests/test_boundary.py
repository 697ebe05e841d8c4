"""Where minors vanish exactly: all members of a law agree on what is impossible, and on what is certain."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz import (
    GIVEN,
    HOLDS,
    KINDS,
    LAWS,
    LOGITS,
    SHAPES,
    SIZES,
    SUBSETS,
    all_minors,
    failures,
    random_kernels,
    weights_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from numpyro_ndpp import KNDPP, NDPP, Cholesky, SizedNDPP, pad_subsets
from numpyro_ndpp.kernel import gram
from numpyro_ndpp.normalizer import true_rank

FREE_SIZE = next(law for law in LAWS if law.startswith("SizedNDPP"))  # whose sizes have the LOGITS


def column(*entries):
    return np.array(entries, float)[:, None]


def matrix(*rows):
    return np.array(rows, float)


AT_ONCE = 25  # kernels


@st.composite
def kernels(draw):
    """V, B and D of some kernels: small integers or quarters, whose minors often vanish exactly."""
    units, most = draw(st.sampled_from([(1, 2), (4, 8)]))
    one = st.tuples(*(arrays(int, shape, elements=st.integers(-most, most)) for shape in SHAPES.values()))
    some = draw(st.lists(one, min_size=AT_ONCE, max_size=AT_ONCE))
    return [np.stack(parts) / units for parts in zip(*some, strict=True)]


# Nearly all the time is compilation, once for all kernels.
QUICK = ("NDPP(V, B, D, min_size=1)", "")


@pytest.mark.filterwarnings("ignore:Out-of-support")
@pytest.mark.parametrize(
    ("law", "condition"),
    [
        pytest.param(law, condition, marks=[] if (law, condition) == QUICK else pytest.mark.slow)
        for law in LAWS
        for condition in GIVEN
    ],
)
def test_all_members_agree_with_enumeration(law, condition):
    """Sums, marginals, sizes, next items, Bayes, greedy and draws: all against minors enumerated without rounding.

    First of kernels that Hypothesis looks for, then of random ones of all kinds.
    """

    # How long the examples take to make depends on what else the machine does.
    @settings(
        max_examples=10,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(kernels())
    def check(parts):
        assert failures(*parts, laws=(law,), givens=(condition,)) == []

    check()
    for kind in KINDS:
        for seed in range(20):
            assert failures(*random_kernels(kind, AT_ONCE, (0, seed)), laws=(law,), givens=(condition,)) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Out-of-support")
@pytest.mark.parametrize("law", LAWS)
def test_many_kernels_in_float32(law):
    """All kinds of kernels by the same programs."""
    assert [failures(*random_kernels(kind, 500, 0), "float32", laws=(law,)) for kind in KINDS] == [[]] * len(KINDS)


@pytest.mark.filterwarnings("ignore:Out-of-support")
def test_nothing_but_the_empty_subset_of_a_view():
    """There is no room for an item that is too many."""
    law = KNDPP(*(part[0] for part in random_kernels("reals", 1, 0)), 1).condition([0]).multihot()
    np.testing.assert_allclose(np.exp(law.log_prob(np.array([[0, 0, 0, 0], [0, 1, 0, 0]]))), [1, 0], atol=1e-14)


def test_no_pair_beside_an_item():
    """With item 1 and without item 3 there are one or three items: the others of a pair are parallel to item 1."""
    V, D = column(0.5, 0.25, 1.75, -1.75), matrix([-0.75, 2], [-1.75, -0.5])
    B = matrix([-2, -1], [0, 0], [-1.25, -0.5], [-0.5, -1])
    given = SizedNDPP(V, B, D, LOGITS).condition([1], [3])
    weights = weights_of(FREE_SIZE, all_minors(V[None], B[None], D[None]))[0]
    alone, all_three = weights[SUBSETS.index((1,))], weights[SUBSETS.index((0, 1, 2))]
    wanted = np.array([alone, 0, all_three, 0]) / (alone + all_three)
    np.testing.assert_allclose(np.exp(given.size_log_prob()), wanted, atol=1e-12)


def test_a_pair_that_needs_a_third():
    """Items 1 and 2 are parallel: no scale makes a pair of them likely, and every subset with both has three items."""
    V, D = column(-1.5, 1, 2, 1).astype(np.float32), matrix([-2, 1.5], [1.25, -1.5]).astype(np.float32)
    B = matrix([-0.5, -0.5], [-1.75, 1.75], [-2, 2], [2, -1]).astype(np.float32)
    law = SizedNDPP(V, B, D, np.zeros(4, np.float32))
    minors = all_minors(*(part[None].astype(float) for part in (V, B, D)))[0]
    three = minors * (SIZES == 3)
    wanted = three[HOLDS[:, [1, 2]].all(axis=1)].sum() / three.sum() / 4
    np.testing.assert_allclose(np.exp(law.marginal_log_prob(np.array([1, 2]))), wanted, rtol=1e-4)


def test_an_item_of_a_large_whole_in_float32():
    """The whole is much larger than what holds item 1: what is read off at too large a scale is rounded away."""
    V, D = column(-0.5, -2.0, -1.5, 1.5), matrix([-1.75, -1.75], [0.0, -0.25])
    B = matrix([-0.75, 0.75], [2.0, -1.5], [-0.75, 1.0], [-0.5, 1.75])
    wanted = weights_of(FREE_SIZE, all_minors(V[None], B[None], D[None]))[0] @ (HOLDS[:, 1] & ~HOLDS[:, 3])
    law = SizedNDPP(*(part.astype(np.float32) for part in (V, B, D)), LOGITS.astype(np.float32))
    np.testing.assert_allclose(np.exp(law.condition([1], [3]).log_normalizer), wanted, rtol=1e-4)


def test_pairs_that_are_rare_at_any_scale_in_float32():
    """They have some millionths of the weight of single items and triples: fewer digits than eigenvalues have."""
    V, D = column(1.0, -1.125, -1.25, -1.0), matrix([0.0, 2.0**-9], [0.0, 0.0])
    B = matrix([0.875, 0.6875], [-0.1875, 1.0], [-0.4375, -0.5], [-0.125, -0.0625])
    minors = all_minors(V[None], B[None], D[None])[0]
    law = SizedNDPP(*(part.astype(np.float32) for part in (V, B, D)), np.zeros(4, np.float32))
    wanted = [minors[size == SIZES].sum() for size in range(4)]
    np.testing.assert_allclose(np.exp(-law.log_size_weights), wanted, rtol=2e-3)


def test_padding_changes_no_marginal():
    V, B, D = column(0, 1, 1, 0), matrix([0, -1], [1, 0], [0, 1], [1, 0]), matrix([0, 0], [1, 0])
    law = NDPP(V, B, D, min_size=1)
    padded = pad_subsets([[1, 3], [1], [0, 1, 2]], 4)
    np.testing.assert_allclose(np.exp(law.marginal_log_prob(padded)), [0.2, 0.6, 0.1], atol=1e-14)
    np.testing.assert_allclose(np.exp(law.marginal_log_prob(jnp.array([1, 3]))), 0.2, atol=1e-14)


def test_beside_an_item_that_needs_a_partner():
    V, B, D = column(0, -1, 0, 0), matrix([1, 0], [0, -1], [-1, 0], [-1, 0]), matrix([1, 2], [1, 2])
    law = KNDPP(V, B, D, 2).condition([0])
    np.testing.assert_allclose(np.exp(law.log_prob(jnp.array([[1], [2], [3]]))), [1, 0, 0], atol=1e-14)
    np.testing.assert_allclose(law.inclusion_probs(), [0, 1, 0, 0], atol=1e-14)


def test_a_partner_is_certain():
    V, B, D = np.zeros((4, 1)), matrix([0, 1], [0, 0], [0, 0], [-1, -1]), matrix([2, -1], [2, 0])
    law = NDPP(V, B, D, max_size=2, sampler=Cholesky())
    np.testing.assert_allclose(np.exp(law.marginal_log_prob(jnp.array([0]))), 0.9, atol=1e-14)
    given = law.condition([0])
    np.testing.assert_allclose(np.exp(given.log_prob(jnp.array([3]))), 1, atol=1e-14)
    np.testing.assert_allclose(given.inclusion_probs(), [0, 0, 0, 1], atol=1e-14)
    assert given.sample(jax.random.key(0)).tolist() == [3, 4]


def test_nothing_of_an_impossible_size():
    V, B, D = column(-1, 0, 0, 0), matrix([0, 0], [-1, -1], [1, 1], [0, 0]), matrix([-1, 0], [-1, 0])
    law = KNDPP(V, B, D, 2, sampler=Cholesky())
    assert law.log_normalizer == -jnp.inf
    assert (law.inclusion_probs() == 0).all()
    with pytest.raises(ValueError, match="could be drawn"):
        law.sample(jax.random.key(0))


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_nothing_of_an_odd_size_beside_an_item(dtype):
    """What is left of this kernel beside its item is skew; the determinants whose sum is zero are rounded by more."""
    V, B = column(1.25, -1.75, 0.5, 1), matrix([1, 1], [0, 0], [-1.5, -1.75], [0.5, 1.25])
    D = matrix([0.75, 0.5], [-2.25, -1.25])
    law = KNDPP(V.astype(dtype), B.astype(dtype), D.astype(dtype), 2).condition([1], [3])
    assert law.log_normalizer == -jnp.inf
    assert (law.inclusion_probs() == 0).all()
    assert (law.size_log_prob() == -jnp.inf).all()
    assert (law.marginal_log_prob(jnp.array([[0], [2]])) == -jnp.inf).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("V", "row", "skew", "law"),
    [
        ((0, 0, -0.75, -1), (1.75, 1.75), -4.0, partial(NDPP, max_size=2)),
        ((0, 0, -0.75, -1), (1.75, 1.75), -2.25, partial(KNDPP, k=1)),
        ((0.75, 0, -1.75, -2), (1.5, -1.0), -3.5, NDPP),
        ((-1.75, -0.25, -1.25, 1.5), (0.5, 1.5), -3.25, partial(NDPP, min_size=2)),
    ],
)
def test_nothing_where_all_rows_are_parallel(V, row, skew, law):
    """The skew part of these kernels is zero, and so is all that is left beside item 1; the rest is rounding."""
    law = law(column(*V), matrix(row, row, row, row), matrix([0, skew], [0, 0])).condition([1], [3])
    assert law.log_normalizer == -jnp.inf
    assert (law.inclusion_probs() == 0).all()
    assert (law.size_log_prob() == -jnp.inf).all()
    assert (law.marginal_log_prob(jnp.array([[4], [0], [2]])) == -jnp.inf).all()


def test_two_others_are_certain():
    """No radius makes them fewer: the largest one serves, where determinants look rougher than they are."""
    V, B, D = (part[465] for part in random_kernels("reals", 500, 0))
    law = KNDPP(V, B, D, 3).condition([1], [3])
    L = V @ V.T + B @ (D - D.T) @ B.T
    np.testing.assert_allclose(law.log_normalizer, np.log(np.linalg.det(L[:3, :3])), rtol=1e-7)
    np.testing.assert_allclose(law.inclusion_probs(), [1, 0, 1, 0], atol=1e-7)


def test_two_certain_items_that_look_like_a_conjugate_pair():
    """One probability is one, the other one to rounding: eigenvalues come as 1 ± 1e-14 i."""
    V, B = column(0.5, 0, -1.25, 1.5), matrix([-0.75, 0], [1.25, 2], [1.5, 0], [1.75, -0.25])
    D = matrix([-1.75, 0.25], [-0.75, -1])
    scales = jnp.linspace(0.5, 2, 40)  # of the features: rounding differs, and nothing else
    sizes = jax.jit(jax.vmap(lambda c: KNDPP(c * V, c * B, D, 3).condition([1], [3]).size_log_prob()))(scales)
    np.testing.assert_allclose(np.exp(sizes), np.tile([0.0, 0, 1, 0], (40, 1)), atol=1e-12)


@pytest.mark.slow
def test_inclusion_beside_an_item_that_is_mostly_alone():
    """The derivative of the likely size, of no other item, is zero: rounding in it would be others' inclusion."""
    V, B = column(-0.5, -2, -1.5, 1.5), matrix([-0.75, 0.75], [2, -1.5], [-0.75, 1], [-0.5, 1.75])
    parts = [part.astype(np.float32) for part in (V, B, matrix([-1.75, -1.75], [0, -0.25]))]
    logits, scales = jnp.array([0, 1, -1, 0], jnp.float32), jnp.linspace(0.5, 2, 40, dtype=jnp.float32)

    def inclusion(scale):
        law = SizedNDPP(scale * parts[0], scale * parts[1], parts[2], logits)
        return law.condition([1], [3]).inclusion_probs()

    expected = [0.00477484, 0, 0.02270589, 0]  # by the minors, which are short binary fractions
    np.testing.assert_allclose(jax.jit(jax.vmap(inclusion))(scales), np.tile(expected, (40, 1)), atol=2e-5)


def test_marginals_agree_with_inclusion():
    V, B, D = column(0, 0, 1, 0), matrix([1, 0], [0, 0], [1, 1], [1, 0]), matrix([0, -1], [0, 1])
    law = KNDPP(V, B, D, 1)
    np.testing.assert_allclose(
        np.exp(law.marginal_log_prob(jnp.array([[0, 4], [2, 4], [3, 4]]))), [0, 1, 0], atol=1e-14
    )
    np.testing.assert_allclose(law.inclusion_probs(), [0, 0, 1, 0], atol=1e-14)


@pytest.mark.parametrize("seed", range(8))
def test_no_more_items_than_the_rank(seed):
    rng = np.random.default_rng(seed)
    law = KNDPP(rng.normal(size=(5, 2)), rng.normal(size=(5, 2)), np.zeros((2, 2)), 4)
    assert law.log_normalizer == -jnp.inf
    greedy = law.greedy(4)
    assert (greedy < 5).sum() <= 2
    with pytest.raises(ValueError, match="could be drawn"):
        law.sample(jax.random.key(0))


def test_a_kernel_of_zeros_has_no_rank():
    """Its features have a range, and rounding of W on it is no rank."""
    X = np.array([[0, 0, 0], [0, -1, 1], [0, 1, -1], [0, 0, 0]], float)
    W = np.array([[1, 0, 0], [0, 0, -1 / 3], [0, 1 / 3, 0]])
    assert true_rank(jnp.asarray(W), gram(jnp.asarray(X))) == 0
