"""Metrics against their definitions written out, on kernels small enough for dense matrices."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_programs import compilations

from numpyro_ndpp import NDPP, Cholesky
from numpyro_ndpp.datasets import simulate_baskets
from numpyro_ndpp.metrics import _size_groups, mean_log_likelihood, mean_percentile_rank, subset_auc

N = 12


@pytest.fixture(scope="module")
def law():
    """Of the shape and sampler that simulated shops have, so that both share what is compiled."""
    rng = np.random.default_rng(0)
    return NDPP(*(rng.normal(size=shape) for shape in [(N, 12), (N, 6), (6, 6)]), sampler=Cholesky())


@pytest.fixture(scope="module")
def baskets():
    rng = np.random.default_rng(0)
    return [sorted(rng.choice(N, size=size, replace=False).tolist()) for size in rng.integers(1, 9, size=60)]


@pytest.fixture(scope="module")
def log_prob(law):
    L = np.asarray(law.V @ law.V.T + law.B @ (law.D - law.D.T) @ law.B.T)
    normalizer = np.linalg.slogdet(np.eye(N) + L)[1]
    return lambda items: np.linalg.slogdet(L[np.ix_(items, items)])[1] - normalizer


def test_log_likelihood(law, baskets, log_prob):
    values = np.array([log_prob(basket) for basket in baskets])
    found = mean_log_likelihood(law, baskets)
    assert found.value == pytest.approx(values.mean(), rel=1e-10)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert found.low == pytest.approx(values.mean() - half, abs=0.25 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.25 * half)


def groups_of(sizes):
    """Three equal steps of log10, as pandas' cut makes them for 1 to the largest, closed on the left."""
    edges = np.linspace(0, np.log10(max(sizes)), 4)
    edges[-1] += 1e-3 * edges[-1]
    return np.searchsorted(edges, np.log10(sizes), side="right") - 1


def auc_by_pairs(real, fake):
    return np.mean([(a > b) + 0.5 * (a == b) for a in real for b in fake])


def test_auc(law, baskets, log_prob):
    rng = np.random.default_rng(3)
    random_sets = [rng.choice(N, size=len(basket), replace=False) for basket in baskets]
    real, fake = (np.array([log_prob(np.sort(items)) for items in sets]) for sets in (baskets, random_sets))
    assert subset_auc(law, baskets, kind="paired", seed=3).value == pytest.approx(
        np.mean((real > fake) + 0.5 * (real == fake))  # of one item, some are the same
    )
    assert subset_auc(law, baskets, kind="pooled", seed=3).value == pytest.approx(auc_by_pairs(real, fake))
    groups = groups_of([len(basket) for basket in baskets])
    grouped = np.mean([auc_by_pairs(real[groups == g], fake[groups == g]) for g in range(3)])
    assert subset_auc(law, baskets, kind="grouped", seed=3).value == pytest.approx(grouped)


@pytest.mark.parametrize("definition", ["paper", "reference"])
def test_percentile_rank(law, baskets, log_prob, definition):
    rng, ranks, sizes = np.random.default_rng(5), [], []
    for basket in baskets:
        if len(basket) < 2:
            continue
        place = len(basket) - 1 if definition == "reference" else rng.integers(len(basket))
        hidden, rest = basket[place], basket[:place] + basket[place + 1 :]
        scores = {a: log_prob(sorted([*rest, a])) for a in range(N) if a not in rest}
        if definition == "paper":
            ranks.append(100 * np.mean([score <= scores[hidden] for score in scores.values()]))
        else:
            ranks.append(100 * (1 - np.mean([score >= scores[hidden] for score in scores.values()])))
        sizes.append(len(basket))
    ranks, groups = np.array(ranks), groups_of(sizes)
    expected = (
        ranks.mean() if definition == "paper" else np.mean([ranks[groups == g].mean() for g in np.unique(groups)])
    )
    assert mean_percentile_rank(law, baskets, definition=definition, seed=5).value == pytest.approx(expected, rel=1e-6)


def test_scores_keep_all_their_digits(without_x64):
    rng = np.random.default_rng(0)
    scores = 40 + 1e-9 * rng.permutation(200)
    chosen = [rng.choice(200, size=4, replace=False) for _ in range(400)]
    assert abs(mean_percentile_rank(scores, chosen, num_bootstraps=0).value - 50) < 6  # four standard errors
    large = 2**40 * np.arange(5)
    assert mean_percentile_rank(large, [[0, 4]], definition="reference").value == 75  # none of four is likelier
    for impossible in (-np.inf, np.nan):
        assert mean_percentile_rank([3.0, 2.0, impossible, 1.0], [[0, 2]], definition="reference").value == 0
    with pytest.raises(ValueError, match=r"a score for every item, got an array of shape \(2, 2\)"):
        mean_percentile_rank(np.eye(2), [[0, 1]])


def test_groups_are_cut_where_the_authors_cut_them():
    assert _size_groups(np.array([1, 4, 5, 24, 25, 125])).tolist() == [0, 0, 1, 1, 2, 2]
    assert _size_groups(np.array([0, 1, 2])).tolist() == [0, 0, 2]


def test_percentile_rank_of_popularity(baskets):
    popularity = np.arange(N, dtype=float)
    largest = [[0, N - 1]] * 5
    assert mean_percentile_rank(popularity, largest, definition="reference").value == pytest.approx(100 * (1 - 1 / 11))
    equal = mean_percentile_rank(np.ones(N), baskets).value
    assert equal == 100.0  # all are no likelier than the hidden one


def test_interval_is_that_of_the_same_groups():
    """One large basket is a group of its own: in every third of the baskets drawn anew it would be missing."""
    popularity = np.arange(80)[::-1].astype(float)
    baskets = [[0, 1]] * 400 + [[78, 79]] * 400 + [[*range(8, 16)]] * 80 + [[*range(60)]]
    estimate = mean_percentile_rank(popularity, baskets, definition="reference", num_bootstraps=300)
    alone = mean_percentile_rank(popularity, baskets[:-1], definition="reference", num_bootstraps=0).value
    assert estimate.low < estimate.value < estimate.high
    assert abs(estimate.value - alone) > 2 * (estimate.high - estimate.low)


def test_the_law_itself_is_told_from_chance():
    shop = simulate_baskets(400)
    assert subset_auc(shop.distribution, shop.baskets).value > 0.7
    assert mean_percentile_rank(shop.distribution, shop.baskets).low > 60


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (subset_auc, {"kind": "mean"}, "kind must be 'paired', 'grouped' or 'pooled', got 'mean'"),
        (mean_percentile_rank, {"definition": "mine"}, "definition must be 'paper' or 'reference', got 'mine'"),
    ],
)
def test_bad_settings(function, settings, message, law, baskets):
    with pytest.raises(ValueError, match=message):
        function(law, baskets, **settings)


def test_bad_baskets(law):
    for function in (mean_log_likelihood, subset_auc, mean_percentile_rank):
        with pytest.raises(ValueError, match="one basket at least"):
            function(law, [])
        with pytest.raises(ValueError, match="row 0 has item 99; items must be 0 to 11"):
            function(law, [[99, 1]])
    with pytest.raises(ValueError, match="none has two items or more"):
        mean_percentile_rank(law, [[1], []])


@pytest.mark.filterwarnings("ignore:Out-of-support values")
def test_impossible_items_are_last():
    rank_two = NDPP(np.random.default_rng(0).normal(size=(N, 2)), np.zeros((N, 0)), np.zeros((0, 0)))
    for definition in ("paper", "reference"):
        assert mean_percentile_rank(rank_two, [[0, 1, 2], [3, 4, 5, 6]], definition=definition).value == 0.0
    # Others can join, which is nothing in favour of one that cannot.
    half = NDPP(jnp.eye(8) * (jnp.arange(8) < 4), jnp.zeros((8, 0)), jnp.zeros((0, 0)))
    for definition in ("paper", "reference"):
        assert mean_percentile_rank(half, [[6, 7]], definition=definition).value == 0.0
        assert mean_percentile_rank(half, [[0, 7]] * 40, definition=definition).value == 0.0
    found = mean_log_likelihood(rank_two, [[0], [0, 1, 2]] * 5)
    assert found.value == found.low == -np.inf


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level": 95}, "level must be a finite number above 0 and below 1, got 95"),
        ({"num_bootstraps": -5}, "num_bootstraps must be at least 0, got -5"),
    ],
)
def test_bad_intervals(settings, message):
    with pytest.raises(ValueError, match=message):
        mean_percentile_rank(np.ones(4), [[0, 1]], **settings)


@pytest.mark.parametrize("metric", [mean_log_likelihood, subset_auc, mean_percentile_rank])
def test_distributions_that_cannot_be_judged(metric, law):
    batch = NDPP(*(jnp.stack([part, part]) for part in (law.V, law.B, law.D)))
    # as many baskets as kernels, which would fit
    with pytest.raises(ValueError, match=r"dist must be one distribution, got a batch of shape \(2,\)"):
        metric(batch, [[0, 1], [1, 2]])
    with pytest.raises(TypeError, match="dist must be an NDPP or KNDPP, or one of these conditioned, got Multihot"):
        metric(law.multihot(), [[0, 1], [1, 2]])


@pytest.mark.parametrize("kind", ["paired", "grouped", "pooled"])
def test_what_is_no_number_is_no_score(kind):
    law = NDPP(jnp.full((4, 2), jnp.nan), jnp.zeros((4, 0)), jnp.zeros((0, 0)), validate_args=False)
    estimates = mean_log_likelihood(law, [[0, 1]]), subset_auc(law, [[0, 1]], kind=kind)
    for estimate in (*estimates, mean_percentile_rank(law, [[0, 1]])):
        assert np.isnan(estimate).all()


@pytest.mark.slow
def test_pinned_items_are_not_beaten():
    own = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.1, 1.0])
    law = NDPP(jnp.diag(own), jnp.zeros((7, 0)), jnp.zeros((0, 0)))
    # given 0 to 3, and 4 or 5 that are shown, the hidden one of 4 and 5 has 6 beside it
    basket = [[4, 5]]
    ranks = {mean_percentile_rank(law.condition(include=[0, 1, 2, 3]), basket, seed=seed).value for seed in range(8)}
    assert ranks == {50.0, 100.0}
    # a basket with a pinned item is none of the law's values: nothing can join, whatever is hidden
    law = NDPP(jnp.eye(3), jnp.zeros((3, 0)), jnp.zeros((0, 0))).condition(include=[2])
    assert mean_percentile_rank(law, [[0, 1, 2]], definition="reference").value == 0
    assert {mean_percentile_rank(law, [[0, 1, 2]], seed=seed).value for seed in range(8)} == {0.0}


def test_random_subsets_have_none_of_the_items_that_are_decided(law):
    """Else most of them would be impossible, and anything likelier."""
    given = law.condition([0, 1], [2, 3, 4])
    uniform = given.condition(exclude=[5])
    free = list(range(6, N))
    rng = np.random.default_rng(1)
    baskets = [np.sort(rng.choice(free, size=3, replace=False)) for _ in range(400)]
    # Baskets that are uniform themselves cannot be told from random ones: one half, to four standard deviations.
    assert abs(subset_auc(uniform, baskets).value - 0.5) < 4 * 0.5 / 400**0.5
    with pytest.raises(ValueError, match="one has 8 items, but only 6 are neither in nor out"):
        subset_auc(uniform, [list(range(8))])


def test_other_baskets_compile_nothing(law):
    """As many of them, the largest within the same power of two, and another kernel."""
    rng = np.random.default_rng(2)

    def judge(dist, largest):
        sizes = np.append(rng.integers(1, largest, size=19), largest)
        sets = [np.sort(rng.choice(N, size=size, replace=False)) for size in sizes]
        mean_log_likelihood(dist, sets)
        subset_auc(dist, sets)
        mean_percentile_rank(dist, sets)

    judge(law, 8)
    other = NDPP(2 * law.V, law.B, law.D, sampler=Cholesky())
    other.log_normalizer  # noqa: B018 - the parameters were looked at
    with compilations() as found:
        judge(other, 6)
    assert found == []
