"""Where minors vanish exactly: all members of a law agree on what is impossible, and on what is certain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz import failures

from numpyro_ndpp import KNDPP, NDPP, pad_subsets
from numpyro_ndpp.kernel import gram
from numpyro_ndpp.polynomials import true_rank


def column(*entries):
    return np.array(entries, float)[:, None]


def matrix(*rows):
    return np.array(rows, float)


@pytest.mark.filterwarnings("ignore:Out-of-support")
@pytest.mark.parametrize(
    ("dtype", "number"),
    [("float64", 100), *(pytest.param(dtype, 2000, marks=pytest.mark.slow) for dtype in ("float64", "float32"))],
)
def test_integer_kernels_equal_enumeration(dtype, number):
    assert failures(number, 0, dtype) == []


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
    law = NDPP(V, B, D, max_size=2)
    np.testing.assert_allclose(np.exp(law.marginal_log_prob(jnp.array([0]))), 0.9, atol=1e-14)
    given = law.condition([0])
    np.testing.assert_allclose(np.exp(given.log_prob(jnp.array([3]))), 1, atol=1e-14)
    np.testing.assert_allclose(given.inclusion_probs(), [0, 0, 0, 1], atol=1e-14)
    assert given.sample(jax.random.key(0)).tolist() == [3]


def test_nothing_of_an_impossible_size():
    V, B, D = column(-1, 0, 0, 0), matrix([0, 0], [-1, -1], [1, 1], [0, 0]), matrix([-1, 0], [-1, 0])
    law = KNDPP(V, B, D, 2)
    assert law.log_normalizer == -jnp.inf
    assert (law.inclusion_probs() == 0).all()
    with pytest.raises(ValueError, match="could be drawn"):
        law.sample(jax.random.key(0))


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
