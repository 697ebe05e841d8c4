"""Checks of a fit: expected numbers against enumeration, z-scores of simulated baskets, comparisons, figures."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import stats

from numpyro_ndpp import KNDPP, NDPP, Exact
from numpyro_ndpp.fit_checks import Frequencies, check_fit, compare_fits
from numpyro_ndpp.fits import Fit
from numpyro_ndpp.metrics import mean_log_likelihood
from numpyro_ndpp.subsets import unpad_subsets

N = 6


def parts(seed=0, scale=0.8):
    rng = np.random.default_rng(seed)
    return scale * rng.normal(size=(N, 3)), scale * rng.normal(size=(N, 4)), rng.normal(size=(4, 4))


def enumerated(V, B, D, low, high):
    """P(S) of every subset of low to high items, by NumPy's determinants of the dense kernel."""
    L = V @ V.T + B @ (D - D.T) @ B.T
    subsets = [s for k in range(low, high + 1) for s in itertools.combinations(range(N), k)]
    weights = {s: max(np.linalg.det(L[np.ix_(s, s)]), 0.0) if s else 1.0 for s in subsets}
    total = sum(weights.values())
    return {s: w / total for s, w in weights.items()}


@pytest.mark.parametrize(
    ("limits", "dist"),
    [
        ((0, N), NDPP(*parts())),
        pytest.param((1, N), NDPP(*parts(), min_size=1), marks=pytest.mark.slow),
        pytest.param((1, 4), NDPP(*parts(), min_size=1, max_size=4), marks=pytest.mark.slow),
        pytest.param((3, 3), KNDPP(*parts(), k=3), marks=pytest.mark.slow),
    ],
    ids=["any size", "not empty", "limited", "fixed"],
)
def test_expected_numbers_are_those_of_enumeration(limits, dist):
    law, number = enumerated(*parts(), *limits), 1000
    baskets = [list(next(iter(law)))] * number
    check = check_fit(dist, baskets)
    item = [number * sum(p for s, p in law.items() if i in s) for i in range(N)]
    np.testing.assert_allclose(check.items.expected, item, rtol=1e-9)
    pair = [number * sum(p for s, p in law.items() if set(both) <= set(s)) for both in check.pair_items.tolist()]
    assert check.pair_items.tolist() == [list(both) for both in itertools.combinations(range(N), 2)]
    np.testing.assert_allclose(check.pairs.expected, pair, rtol=1e-8)
    size = [
        number * sum(p for s, p in law.items() if low <= len(s) <= high) for low, high in check.size_classes.tolist()
    ]
    np.testing.assert_allclose(check.sizes.expected, size, rtol=1e-9)
    assert check.sizes.observed.sum() == check.sizes.expected.sum().round(9) == number
    for part in (check.items, check.pairs):
        p = part.expected / number
        certain = np.isclose(p, 1.0) | np.isclose(p, 0.0)
        z = (part.observed - number * p) / np.sqrt(number * p * (1 - p))
        np.testing.assert_allclose(part.z[~certain], z[~certain], rtol=1e-9)


@pytest.mark.slow
def test_z_scores_of_simulated_baskets_are_standard_normal():
    """Twenty data sets of 500 baskets. Three tests at a false-alarm rate of 10⁻⁴ each.

    Within a data set z-scores depend on one another, across data sets they do not: sums over data sets are compared
    with their own spread.
    """
    dist = NDPP(*parts(), sampler=Exact())
    draws = np.asarray(dist.sample(random.key(1), (20, 500)))
    checks = [check_fit(dist, unpad_subsets(part, N)) for part in draws]
    for name in ("sizes", "items", "pairs"):
        z = np.stack([getattr(check, name).z for check in checks])
        # For each event, the sum of 20 squares of independent standard normal numbers; Bonferroni over the events.
        p_values = stats.chi2.sf(np.sum(z**2, axis=0), 20)
        assert len(p_values) * p_values.min() > 1e-4
        assert len(p_values) * stats.chi2.cdf(np.sum(z**2, axis=0), 20).min() > 1e-4
    assert stats.kstest([check.sizes_p_value for check in checks], "uniform").pvalue > 1e-4


def test_another_kernel_does_not_fit():
    dist, other = NDPP(*parts(), sampler=Exact()), NDPP(*parts(3))
    baskets = unpad_subsets(np.asarray(dist.sample(random.key(1), (500,))), N)
    check = check_fit(other, baskets)
    assert check.sizes_p_value < 1e-6
    assert min(check.sizes.rms_z, check.items.rms_z, check.pairs.rms_z) > 3
    fits, does_not = check_fit(dist, baskets), check
    assert max(fits.items.rms_z, fits.pairs.rms_z) < 2 < does_not.pairs.rms_z
    # The worst pair is the one whose z is largest, and comes first.
    worst = check.worst_pairs(3)
    assert len(worst) == 3
    assert abs(worst[0][-1]) == np.abs(check.pairs.z[np.maximum(check.pairs.observed, check.pairs.expected) >= 5]).max()


def test_pairs_by_draws_have_an_error_of_their_own():
    """As many draws as baskets double the variance; 15 pairs, each beyond 5 once in 10⁶."""
    dist = NDPP(*parts(), sampler=Exact())
    baskets = unpad_subsets(np.asarray(dist.sample(random.key(1), (500,))), N)
    exact, drawn = check_fit(dist, baskets), check_fit(dist, baskets, num_draws=500)
    assert drawn.num_draws == 500
    assert "by 500 draws" in str(drawn)
    assert np.abs(drawn.pairs.z).max() < 5
    assert (drawn.pairs.observed == exact.pairs.observed).all()
    deviation = np.sqrt(exact.pairs.expected * (1 - exact.pairs.expected / 500))
    assert np.abs((drawn.pairs.expected - exact.pairs.expected) / deviation).max() < 5
    assert (drawn.items.expected == exact.items.expected).all()


def test_pairs_are_those_of_the_items_expected_most():
    V = np.diag([1.0, 0.1, 2.0, 0.2, 3.0, 0.3])
    check = check_fit(NDPP(V), [[0, 2], [4]], num_pair_items=3)
    assert check.pair_items.tolist() == [[0, 2], [0, 4], [2, 4]]
    assert check.pairs.observed.tolist() == [1, 0, 0]


def test_what_is_impossible_and_observed_is_infinitely_far():
    V = np.diag([1.0, 0.0, 1.0])
    check = check_fit(NDPP(V), [[0, 1]] * 5 + [[0, 1, 2]] * 5)
    assert check.items.z[1] == np.inf
    assert check.worst_items(1)[0][0] == "1"
    part = Frequencies(np.array([4, 4]), np.array([4.0, 1.0]), np.array([9.0, 9.0]))
    assert part.worst(2).tolist() == []  # too few of both
    assert np.isnan(part.rms_z)
    # Sizes above the rank go to the last class.
    check = check_fit(NDPP(np.eye(6, 2)), [[0, 1, 2, 3]] * 30)
    assert check.size_classes[-1, 1] == 4
    assert check.sizes.observed.sum() == 30


def test_table_and_figure_have_the_names():
    rng = np.random.default_rng(0)
    names = ["tea", "coffee", "bread", "butter", "a very long name of an item that nobody reads", "jam"]
    fitted = Fit(*parts(), {}, {"min_size": 1}, names)
    baskets = [[item for item in range(N) if rng.random() < 0.5] or [0] for _ in range(300)]
    check = check_fit(fitted, baskets)
    text = str(check)
    assert "worst pairs" in text
    assert text.startswith("300 baskets; expected numbers are exact, those of pairs exact")
    first, second, observed, expected, z = check.worst_pairs(1)[0]
    assert {first, second} <= set(names)
    assert f"{observed:>9}{expected:>11.1f}{z:>8.1f}" in text
    assert all(len(line) < 120 for line in text.splitlines())
    figure = check.plot()
    assert len(figure.axes) == 4
    assert repr(check).startswith("<FitCheck: 300 baskets")
    # A table and a figure of next to nothing are there too.
    nearly = check_fit(NDPP(np.zeros((3, 2))), [[]])
    assert nearly.worst_pairs() == []
    assert str(nearly)
    assert nearly.plot().axes


def test_comparison_is_paired():
    first, second = NDPP(*parts(), sampler=Exact()), NDPP(*parts(3))
    baskets = unpad_subsets(np.asarray(first.sample(random.key(1), (400,))), N)
    law = [enumerated(*parts(), 0, N), enumerated(*parts(3), 0, N)]
    a, b = (np.log([each[tuple(basket)] for basket in baskets]) for each in law)
    found = compare_fits(first, second, baskets)
    assert found.first == pytest.approx(a.mean(), rel=1e-9)
    assert found.first == pytest.approx(mean_log_likelihood(first, baskets, num_bootstraps=0).value)
    assert found.second == pytest.approx(b.mean(), rel=1e-9)
    assert found.difference == pytest.approx((a - b).mean(), rel=1e-8)
    assert found.standard_error == pytest.approx(stats.sem(a - b), rel=1e-8)
    assert found.share_better == pytest.approx(np.mean(a > b))
    assert found.num_baskets == 400
    # Baskets of the first: it is better, by its Kullback-Leibler divergence, within five standard errors.
    divergence = sum(p * np.log(p / law[1][s]) for s, p in law[0].items() if p > 0)
    assert abs(found.difference - divergence) < 5 * found.standard_error
    same = compare_fits(first, first, baskets)
    assert (same.difference, same.standard_error, same.share_better) == (0.0, 0.0, 0.5)


def test_comparison_with_impossible_baskets():
    possible, impossible = NDPP(np.eye(3)), NDPP(np.diag([1.0, 1.0, 0.0]))
    found = compare_fits(possible, impossible, [[0], [2]])
    assert found.difference == np.inf
    assert found.impossible == (0, 1)
    assert np.isnan(found.standard_error)
    assert "0 and 1 have probability zero" in str(found)
    assert np.isnan(compare_fits(impossible, impossible, [[2]]).difference)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda law: check_fit(law, []), ValueError, "baskets: one basket at least is needed, got none"),
        (lambda law: check_fit(law, [[7]]), ValueError, "baskets: row 0 has item 7; items must be 0 to 2"),
        (lambda law: check_fit(law, [[0]], num_pair_items=1), ValueError, "num_pair_items must be at least 2, got 1"),
        (lambda law: check_fit(law, [[0]], num_draws=0), ValueError, "num_draws must be at least 1, got 0"),
        (lambda law: check_fit("law", [[0]]), TypeError, "fit must be a Fit or a distribution of subsets, got str"),
        (
            lambda law: check_fit(NDPP(jnp.ones((2, 3, 3))), [[0]]),
            ValueError,
            r"fit must be one distribution, got a batch of shape \(2,\)",
        ),
        (lambda law: compare_fits(law, 3, [[0]]), TypeError, "second must be a Fit or a distribution of subsets"),
        (
            lambda law: compare_fits(law, NDPP(np.eye(4)), [[0]]),
            ValueError,
            "first has 3 items, but second has 4",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(NDPP(np.eye(3)))
