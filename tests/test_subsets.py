"""The ways to write a subset down: padded vectors, lists, 0/1 vectors, and the constraint that tells them from junk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_ndpp import constraints, from_multihot, pad_subsets, to_multihot, unpad_subsets
from numpyro_ndpp.subsets import as_padded, check_items

LISTS = [[3, 1], [], [0], [4, 2, 0]]


def test_padding_and_unpadding_are_inverse():
    padded = pad_subsets(LISTS, num_items=5, width=4)
    assert padded.dtype == jnp.int32
    assert padded.tolist() == [[1, 3, 5, 5], [5, 5, 5, 5], [0, 5, 5, 5], [0, 2, 4, 5]]
    assert unpad_subsets(padded, 5) == [sorted(row) for row in LISTS]


def test_default_width_is_that_of_the_largest_subset():
    assert pad_subsets(LISTS, 5).shape == (4, 3)
    assert pad_subsets([[], []], 5).shape == (2, 0)
    assert pad_subsets([], 5).shape == (0, 0)


def test_unpad_keeps_leading_dimensions():
    values = jnp.array([[[0, 5], [5, 5]], [[1, 2], [3, 5]]])
    assert unpad_subsets(values, 5) == [[[0], []], [[1, 2], [3]]]


def test_multihot_round_trip_batched_and_jitted():
    padded = pad_subsets(LISTS, 5, width=4).reshape(2, 2, 4)
    masks = jax.jit(to_multihot, static_argnums=1)(padded, 5)
    assert masks.shape == (2, 2, 5)
    assert masks.dtype == jnp.int32
    expected = [[int(item in row) for item in range(5)] for row in LISTS]
    assert masks.reshape(4, 5).tolist() == expected
    assert (jax.jit(from_multihot, static_argnums=1)(masks, 4) == padded).all()
    assert (from_multihot(masks.astype(bool), 4) == padded).all()


def test_draw_that_could_not_be_made_stays_no_subset():
    failed = jnp.full((2, 3), -1)
    assert (to_multihot(failed, 5) == -1).all()
    assert (from_multihot(to_multihot(failed, 5), 3) == -1).all()
    with pytest.raises(ValueError, match="not a subset"):
        unpad_subsets(failed, 5)


@pytest.mark.parametrize(
    ("subsets", "width", "message"),
    [
        ([[0], [5]], None, "row 1 has item 5; items must be 0 to 4"),
        ([[0], [1], [-1, 2]], None, "row 2 has item -1"),
        ([[0, 1], [3, 2, 3]], None, "row 1 has item 3 more than once"),
        ([[0], [0, 1, 2]], 2, "row 1 has 3 items, which is more than the width of 2"),
    ],
)
def test_pad_names_the_bad_row(subsets, width, message):
    with pytest.raises(ValueError, match=message):
        pad_subsets(subsets, 5, width)


@pytest.mark.parametrize("x64", [True, False])
def test_large_numbers_are_no_other_items(x64):
    with jax.enable_x64(x64), pytest.raises(ValueError, match="items has item 4294967297; items must be 0 to 4"):
        check_items("items", np.array([2**32 + 1, 3]), 5)


def test_pad_refuses_what_is_not_an_item_number():
    with pytest.raises(TypeError, match="row 1 has items of type float64"):
        pad_subsets([[0], [1.5]], 5)
    with pytest.raises(TypeError, match="subsets must be lists of items, got 3"):
        pad_subsets(3, 5)


def test_pad_refuses_one_subset_in_place_of_many():
    with pytest.raises(ValueError, match="row 0 must be a list of items, got 1"):
        pad_subsets([1, 2], 5)


def test_from_multihot_with_too_many_ones():
    masks = jnp.ones((2, 5), int)
    with pytest.raises(ValueError, match="5 ones, more than the width of 3"):
        from_multihot(masks, 3)
    assert (jax.jit(from_multihot, static_argnums=1)(masks, 3) == -1).all()


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray])
def test_subset_constraint(asarray):
    constraint = constraints.subset(num_items=5, min_size=1, max_size=3)
    good = asarray([[0, 5, 5, 5], [1, 2, 5, 5], [0, 3, 4, 5]])
    bad = asarray([[5, 5, 5, 5], [2, 1, 5, 5], [2, 2, 5, 5], [0, 1, 2, 3], [-1, 2, 5, 5], [0, 6, 6, 6], [0, 5, 1, 5]])
    assert constraint(good).all()
    assert not constraint(bad).any()
    assert not constraint(asarray([-1, -1, -1]))
    assert constraint(constraint.feasible_like(good)).all()
    assert constraint.is_discrete
    assert constraint.event_dim == 1


def test_constraints_compare_and_survive_flattening():
    constraint = constraints.subset(5, 1, 3)
    leaves, tree = jax.tree.flatten(constraint)
    assert jax.tree.unflatten(tree, leaves) == constraint
    assert constraint != constraints.subset(5, 0, 3)
    assert constraint != constraints.positive_semidefinite_part
    assert repr(constraint) == "Subset(num_items=5, min_size=1, max_size=3)"


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray])
def test_positive_semidefinite_part(asarray):
    skew = np.array([[0.0, 2.0], [-2.0, 0.0]])
    constraint = constraints.positive_semidefinite_part
    assert constraint(asarray(np.stack([skew, skew + np.eye(2), np.zeros((2, 2))]))).all()
    assert not constraint(asarray(skew - 1e-6 * np.eye(2)))
    assert not constraint(asarray(skew * np.nan))
    rows = np.random.default_rng(0).normal(size=(3, 20))
    assert constraint(asarray(rows.T @ rows))  # semidefinite up to rounding
    assert constraint(constraint.feasible_like(asarray(skew)))


def test_arrays_of_lists():
    ragged = np.empty(2, dtype=object)
    ragged[:] = [[3, 1], [2]]
    assert as_padded("baskets", ragged, 4).tolist() == [[1, 3], [2, 4]]
    assert as_padded("baskets", np.array([[3, 1], [2, 4]], dtype=object), 4).tolist() == [[1, 3], [2, 4]]
    with pytest.raises(ValueError, match="baskets: row 0 must be a list of items"):
        as_padded("baskets", np.array([1, None], dtype=object), 4)
