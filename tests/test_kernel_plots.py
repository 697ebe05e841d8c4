"""The strongest pairs of a kernel: their log-odds ratios against enumeration, and that figures show both kinds."""

import numpy as np
import pytest
from kernels import PARTS, N, enumerated_law

from numpyro_ndpp import KNDPP, NDPP, plot_kernel, plot_pairs
from numpyro_ndpp.figure_style import ATTRACT, REPEL, short_name
from numpyro_ndpp.plots import pair_log_odds, strongest_pairs

PAIRS = np.stack(np.triu_indices(N, 1), axis=1)


def enumerated_log_odds(exact):
    """Of every pair, from the four shares of subsets with both, one and none of its items."""
    masks = np.array([[item in subset for item in range(N)] for subset in exact])
    weights = np.array(list(exact.values()))
    values = []
    for a, b in PAIRS:
        shares = [weights[(masks[:, a] == x) & (masks[:, b] == y)].sum() for x, y in ((1, 1), (0, 0), (1, 0), (0, 1))]
        with np.errstate(divide="ignore"):
            both, none, one, other = np.log(np.where(np.array(shares) < 1e-13, 0.0, shares))
        fixed = (masks[:, [a, b]] * weights[:, None]).sum(axis=0)
        values.append(0.0 if ((fixed < 1e-13) | (fixed > 1 - 1e-13)).any() else both + none - one - other)
    return np.array(values)


@pytest.mark.parametrize(
    ("dist", "exact"),
    [
        (NDPP(*PARTS["ordinary"]), enumerated_law("ordinary")),
        (KNDPP(*PARTS["ordinary"], k=3), enumerated_law("ordinary", 3, 3)),
        (NDPP(*PARTS["skew pairs and V"]), enumerated_law("skew pairs and V")),
    ],
    ids=["ordinary", "three items", "always together"],
)
def test_log_odds_equal_enumeration(dist, exact):
    expected = enumerated_log_odds(exact)
    assert np.isfinite(expected).any()
    found = pair_log_odds(dist, PAIRS)
    np.testing.assert_allclose(found, expected, atol=1e-6)  # a skew pair that V does not touch is never parted: inf
    by_pair = dict(zip(map(tuple, PAIRS.tolist()), found, strict=True))
    num = 4
    attract, repel = strongest_pairs(dist, num, num_baskets=10**9)
    best = np.sort(expected)
    np.testing.assert_allclose([value for *_, value in attract], best[::-1][:num][best[::-1][:num] > 1e-4], atol=1e-6)
    np.testing.assert_allclose([value for *_, value in repel], best[:num][best[:num] < -1e-4], atol=1e-6)
    for a, b, value in attract + repel:
        assert value == pytest.approx(by_pair[a, b])


def shop(attraction=1.0, repulsion=0.8):
    """Five likely items, of which 0 and 1 attract and 2 and 3 repel, and two rare ones that attract strongly."""
    V, B = np.eye(7), np.zeros((7, 4))
    V[3] = 0.0
    V[3, 2:4] = repulsion, np.sqrt(1 - repulsion**2)
    V[5:] *= 0.01
    B[[0, 1], [0, 1]], B[[5, 6], [2, 3]] = 1.0, 0.01
    D = np.zeros((4, 4))
    D[0, 1], D[2, 3] = attraction, 5.0
    return NDPP(V, B, D)


def test_rare_pairs_do_not_count():
    (a, b, value), *_ = strongest_pairs(shop(), num_baskets=1000)[0]
    assert (a, b) == (0, 1)
    assert value == pytest.approx(np.log(2), abs=1e-4)  # det L is 1 + 1 for both, 1 for one of them and for none
    assert strongest_pairs(shop(), num_baskets=10**12)[0][0][:2] == (5, 6)
    with pytest.raises(ValueError, match="num_baskets is 3: no pair of items is expected five times"):
        plot_pairs(shop(), num_baskets=3)


def bars_of(figure):
    (plot,) = figure.axes
    return plot, {bar.get_facecolor(): bar.get_width() for bar in plot.patches}


def test_both_kinds_have_one_scale():
    from matplotlib.colors import to_rgba

    plot, bars = bars_of(plot_pairs(shop(), names=["a$1", "b$2", "c", "d", "e", "f", "g"], num_baskets=1000))
    assert bars[to_rgba(ATTRACT)] == pytest.approx(np.log(2), abs=1e-4)
    assert bars[to_rgba(REPEL)] == pytest.approx(np.log(1 - 0.8**2), abs=1e-4)
    low, high = plot.get_xlim()
    assert low == -high
    assert [label.get_text() for label in plot.get_yticklabels()] == [r"a\$1 + b\$2", "c + d"]
    assert plot.get_title() == ""


def test_a_kind_that_has_nothing_to_show_is_named():
    plot, bars = bars_of(plot_pairs(shop(repulsion=0.2), num_baskets=1000))
    assert len(bars) == 2
    assert plot.get_title() == "no pair repels by more than 0.04"  # log(1 - 0.04)
    plot, bars = bars_of(plot_pairs(shop(attraction=0.0), num_baskets=1000))
    assert plot.get_title() == "no pair attracts"
    together = NDPP(np.zeros((2, 0)), np.eye(2), np.array([[0.0, 1.0], [0.0, 0.0]]))
    plot, _ = bars_of(plot_pairs(together))
    assert [text.get_text() for text in plot.texts] == ["always together"]


def test_pairs_are_drawn_into_other_figures(tmp_path):
    from numpyro_ndpp.plots import panels

    figure, [[left, right]] = panels(1, 2)
    assert plot_pairs(shop(), num_baskets=1000, ax=right) is figure
    assert len(right.patches) == 2
    assert not left.patches
    figure.savefig(tmp_path / "pairs.svg")


def test_the_map_shows_both_kinds():
    """The 20 likeliest of 40 items are independent; what attracts and repels is among the others."""
    V, B = np.diag(np.where(np.arange(40) < 20, 1.0, 0.5)), np.zeros((40, 2))
    V[31, 30:32] = 0.45, 0.2
    B[[38, 39], [0, 1]] = 0.5
    dist = NDPP(V, B, np.array([[0.0, 2.0], [0.0, 0.0]]))
    figure = plot_kernel(dist)
    labels = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert len(labels) == 20
    assert {"30", "31", "38", "39"} <= labels
    image = figure.axes[0].images[0]
    assert image.get_array().min() < -0.05 < 0.05 < image.get_array().max()
    assert image.get_clim()[0] == -image.get_clim()[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"names": ["a"]}, "names must have one name for each of 7 items, got 1"),
        ({"num": 0}, "num must be"),
        ({"num_baskets": 0}, "num_baskets must be"),
    ],
)
def test_bad_pairs(settings, message):
    with pytest.raises(ValueError, match=message):
        plot_pairs(shop(), **settings)


def test_other_distributions_have_no_pairs():
    with pytest.raises(TypeError):
        plot_pairs(np.eye(3))
    with pytest.raises(ValueError, match="batch"):
        plot_pairs(NDPP(np.ones((2, 3, 3))))


def test_long_names_are_cut():
    assert short_name("tea") == "tea"
    assert short_name("a" * 30, 10) == "a" * 9 + "…"
