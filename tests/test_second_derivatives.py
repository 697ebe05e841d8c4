"""Derivatives of every member where items, sizes or whole minors vanish: numbers, and right to second order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_ndpp import KNDPP, NDPP

SHAPES = [(4, 1), (4, 2), (2, 2)]
STEP = 2e-4


def kernels():
    """All as vectors (c, 16): zero and repeated rows, a symmetric and a skew kernel, kernels of integers."""
    V, B, D = (np.random.default_rng(0).normal(size=shape) for shape in SHAPES)
    keep, repeat = np.array([[0], [1], [1], [1]]), [0, 0, 1, 2]
    return np.array(
        [
            np.concatenate([np.ravel(part) for part in parts])
            for parts in [
                (V, B, D),
                (V * keep, B * keep, D),
                (V[repeat], B[repeat], D),
                (V, B, 0 * D),
                (0 * V, B, D),
                ([0, 1, 1, 0], [[0, -1], [1, 0], [0, 1], [1, 0]], [[0, 0], [1, 0]]),
                ([0, -1, 0, 0], [[1, 0], [0, -1], [-1, 0], [-1, 0]], [[1, 2], [1, 2]]),
            ]
        ],
        dtype=float,
    )


def parts_of(vector):
    places = np.cumsum([np.prod(shape) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(jnp.split(vector, places[:-1]), SHAPES, strict=True)]


SETS = np.array([[1, 4, 4], [1, 3, 4], [0, 1, 4], [1, 2, 3], [0, 4, 4]])
MEMBERS = {
    "log_prob": lambda *parts: NDPP(*parts).log_prob(SETS),
    "log_prob of size 2": lambda *parts: KNDPP(*parts, 2).log_prob(np.array([[1, 3], [0, 1], [2, 3]])),
    "size_log_prob": lambda *parts: NDPP(*parts).size_log_prob(),
    "size_log_prob of sizes 1 and 2": lambda *parts: NDPP(*parts, min_size=1, max_size=2).size_log_prob(),
    "size_log_prob given an item": lambda *parts: NDPP(*parts).condition([1]).size_log_prob(),
    "marginal_log_prob": lambda *parts: NDPP(*parts).marginal_log_prob(SETS),
    "marginal_log_prob, not empty": lambda *parts: NDPP(*parts, min_size=1).marginal_log_prob(SETS),
    "marginal_log_prob of size 2": lambda *parts: KNDPP(*parts, 2).marginal_log_prob(SETS),
    "inclusion_probs": lambda *parts: NDPP(*parts).inclusion_probs(),
    "inclusion_probs, not empty": lambda *parts: NDPP(*parts, min_size=1).inclusion_probs(),
    "inclusion_probs given an item": lambda *parts: NDPP(*parts, min_size=1).condition([1]).inclusion_probs(),
    "next_item_log_prob": lambda *parts: NDPP(*parts).next_item_log_prob(np.array([1])),
    "next_item_log_prob of the first": lambda *parts: NDPP(*parts).next_item_log_prob(np.array([4])),
    "next_item_log_prob of the third": lambda *parts: NDPP(*parts).next_item_log_prob(np.array([1, 3])),
}
QUICK = ("size_log_prob",)


@pytest.mark.parametrize(
    "member", [pytest.param(member, marks=[] if member in QUICK else pytest.mark.slow) for member in MEMBERS]
)
def test_second_derivatives_on_the_boundary(member):
    """To 1e-6 of the largest. Where a value is -inf there is no derivative, and zero stands for it."""

    def values(vector):
        return MEMBERS[member](*parts_of(vector))

    slopes = jax.jit(jax.vmap(lambda vector: jax.jacrev(values)(vector)))
    at = kernels()
    width = at.shape[1]

    def moved(by):
        around = (at[:, None] + by * np.eye(width)).reshape(-1, width)
        return np.moveaxis(np.asarray(slopes(around)).reshape(len(at), width, -1, width), 1, -1)

    differences = (8 * (moved(STEP) - moved(-STEP)) - (moved(2 * STEP) - moved(-2 * STEP))) / (12 * STEP)
    value, hessian = jax.jit(jax.vmap(lambda vector: (values(vector), jax.jacfwd(jax.jacrev(values))(vector))))(at)
    value, hessian = np.asarray(value), np.asarray(hessian)
    assert np.isfinite(hessian).all()
    for kernel, entry in np.argwhere(np.isfinite(value)):
        scale = max(1.0, np.abs(differences[kernel, entry]).max())
        np.testing.assert_allclose(hessian[kernel, entry], differences[kernel, entry], atol=1e-6 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS)
def test_gradients_of_integer_kernels_are_numbers(member):
    """Backwards too, where a zero that is masked meets what is no number. Half of the kernels have no skew part."""

    def values(vector):
        return MEMBERS[member](*parts_of(vector))

    at = np.round(np.random.default_rng(1).normal(size=(500, 16)))
    at[250:, 12:] = 0
    assert np.isfinite(jax.jit(jax.vmap(jax.jacrev(values)))(at)).all()
