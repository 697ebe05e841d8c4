"""Marginals and next items: against enumeration, over the whole table of kernels, and their derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import (
    KERNELS,
    PARTS,
    TRUE_RANK,
    N,
    all_subsets,
    conditional,
    enumerated_minors,
    factored,
    factors,
    minors_above_rounding,
)

from numpyro_ndpp import KNDPP, NDPP, pad_subsets
from numpyro_ndpp.size_law_given import log_esps_near

QUICK = [pytest.param(name, marks=pytest.mark.slow if name == "n < d" else []) for name in KERNELS]


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize(("low", "high"), [(0, N), (4, 4), (1, 3)])
def test_marginals_equal_enumeration(name, low, high):
    sets = all_subsets(N, 0, 3)
    padded = np.asarray(pad_subsets(sets, N))
    law = factored(name, low) if low == high else factored(name, min_size=low, max_size=high if high < N else None)
    minors = {s: m for s, m in enumerated_minors(name).items() if low <= len(s) <= high}
    total = sum(minors.values())
    expected = [sum(m for s, m in minors.items() if set(items) <= set(s)) / total for items in sets]
    np.testing.assert_allclose(np.exp(law.marginal_log_prob(padded)), expected, atol=1e-10)
    # without padding as many items are certain as there are
    np.testing.assert_allclose(np.exp(law.marginal_log_prob(padded[-5:])), expected[-5:], atol=1e-10)


@pytest.mark.parametrize("name", QUICK)
def test_next_items_equal_enumeration(name):
    minors = minors_above_rounding(name)
    sets = [s for s in all_subsets(N, 0, 5) if len(s) < TRUE_RANK[name]]
    actual = np.exp(factored(name).next_item_log_prob(pad_subsets(sets, N)))
    assert not np.isnan(actual).any()
    for items, probs in zip(sets, actual, strict=True):
        weights = np.array([0.0 if a in items else minors.get(tuple(sorted((*items, a))), 0.0) for a in range(N)])
        expected = weights / weights.sum() if weights.sum() else weights
        np.testing.assert_allclose(probs, expected, atol=1e-10)


def test_next_item_respects_the_largest_size():
    law = factored("ordinary", max_size=2)
    log_prob = np.asarray(law.next_item_log_prob(np.array([[0, 1], [0, N]])))
    assert (log_prob[0] == -np.inf).all()
    assert np.exp(log_prob[1]).sum() == pytest.approx(1)


def test_marginals_and_next_items_of_a_conditioned_law():
    name, items = "ordinary", [1, 4]
    law = factored(name)
    given = law.condition([3], [5])
    expected = conditional(name, [3], [5])
    marginal = sum(p for T, p in expected.items() if set(items) <= set(T))
    assert np.exp(given.marginal_log_prob(np.array(items))) == pytest.approx(marginal, abs=1e-12)
    assert given.marginal_log_prob(np.array([3])) == -np.inf
    together = law.condition(exclude=[5]).next_item_log_prob(np.array([1, 3, 4]))
    np.testing.assert_allclose(given.next_item_log_prob(np.array(items)), together, rtol=1e-10)


def by_conditioning(make, items, *parts):
    return make(*parts).condition(items).log_prob(np.array([3]))


def by_joint(make, items, *parts):
    law = make(*parts)
    return law.log_prob(np.array([2, 3])) - law.marginal_log_prob(items)


def by_next(make, items, *parts):
    return make(*parts).next_item_log_prob(items)[3]


@partial(jax.jit, static_argnums=(0, 1))
def slopes(function, make, *parts):
    return jax.grad(function, argnums=tuple(range(2, 2 + len(parts))))(make, np.array([2]), *parts)


def fixed_factors(X, W):
    return KNDPP.from_factors(X, W, 2)


def fixed_parts(V, B, D):
    return KNDPP(V, B, D, 2)


def check_gradients(make, make_fixed, parts, of_parts=lambda *slopes: slopes):
    pairs = [((by_conditioning, make), (by_joint, make)), ((by_conditioning, make_fixed), (by_next, make))]
    for first, second in pairs:
        ours, theirs = (of_parts(*slopes(*way, *parts)) for way in (first, second))
        for a, b in zip(ours, theirs, strict=True):
            assert np.isfinite(a).all()
            np.testing.assert_allclose(a, b, atol=1e-8)


@pytest.mark.parametrize("name", ["ordinary", "skew", "skew pairs and V"])
def test_gradients_are_those_of_the_formula(name):
    """The gradient of log P(T | J) is that of log P(J∪T) - log P(J ⊆ S), and finite where things are impossible."""
    X, W = factors(name)
    d1 = PARTS[name][0].shape[1]

    def of_parts(X_slope, W_slope):
        """By V, B and D; by W alone they differ where a larger symmetric part makes impossible items possible."""
        inner = np.asarray(W_slope)[d1:, d1:]
        return np.asarray(X_slope), inner - inner.T

    check_gradients(NDPP.from_factors, fixed_factors, (X, W), of_parts)
    impossible = slopes(by_next, NDPP.from_factors, X * 0, W)
    assert np.isfinite(impossible[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ordinary", "skew", "skew pairs and V"])
def test_gradients_in_the_parts_are_those_of_the_formula(name):
    V, B, D = PARTS[name]
    check_gradients(NDPP, fixed_parts, (V, B, D))
    impossible = jax.grad(lambda V: NDPP(V * 0, B * 0, D).next_item_log_prob(np.array([2]))[3])(V)
    assert np.isfinite(impossible).all()


def curvature(function):
    V = PARTS["ordinary"][0]
    along = np.cos(np.arange(V.size, dtype=V.dtype)).reshape(V.shape)
    return jax.jit(lambda V: jax.jvp(jax.grad(function), (V,), (along,))[1])(V)


def next_of_parts(V):
    return NDPP(V, *PARTS["ordinary"][1:]).next_item_log_prob(np.array([2]))[3]


def test_second_derivatives_of_next_items():
    """They are those of the logarithms of the minors of two items, multiplied out."""
    _, B, D = PARTS["ordinary"]

    def by_minors(V):
        L = V @ V.T + B @ (D - D.T) @ B.T
        minors = L[2, 2] * jnp.diag(L) - L[2] * L[:, 2]
        return jnp.log(minors[3]) - jnp.log(jnp.sum(minors))  # that of item 2 itself is zero

    np.testing.assert_allclose(curvature(next_of_parts), curvature(by_minors), atol=1e-8)


@pytest.mark.slow
def test_second_derivatives_of_next_items_are_those_of_conditioning():
    """Of the next item's log-probability, they are those of a subset of two given one of them."""

    def by_size(V):
        return KNDPP(V, *PARTS["ordinary"][1:], k=2).condition([2]).log_prob(np.array([3]))

    np.testing.assert_allclose(curvature(by_size), curvature(next_of_parts), atol=1e-8)


@pytest.mark.parametrize(("name", "items"), [("skew pairs and V", [4]), ("zero rows", [2, 5]), ("ordinary", [2, 5])])
def test_eigenvalues_are_asked_of_finite_matrices_alone(name, items, monkeypatch):
    """Beside items that are never there together nothing is finite. A GPU's library makes an error of that."""
    asked, eigvals = [], jnp.linalg.eigvals

    def recorded(A):
        jax.debug.callback(lambda is_finite: asked.append(bool(is_finite)), jnp.isfinite(A).all())
        return eigvals(A)

    monkeypatch.setattr(jnp.linalg, "eigvals", recorded)
    X, W = factors(name)
    log_e = jax.jit(lambda: log_esps_near(W, X.T @ X, X[items], np.ones(len(items), bool), 0, 3))()
    jax.effects_barrier()
    assert asked == [True]
    assert (log_e[:3] > -np.inf).all() == (name == "ordinary")
