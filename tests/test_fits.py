"""A fit and its catalogue: names in files, recommendations, whole baskets; ranks; baskets that are not empty."""

import itertools
import json

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from numpyro_ndpp import NDPP, Rejection, pad_subsets
from numpyro_ndpp.checkpoints import read_arrays, write_arrays
from numpyro_ndpp.datasets import Baskets, simulate_baskets
from numpyro_ndpp.learning import Fit, fit
from numpyro_ndpp.training_baskets import columns_of

SMALL = {"rank": 9, "num_steps": 20, "evaluate_every": 10, "batch_size": 50, "progress_bar": False}
ITEMS = ["tea", "coffee", "white bread", "butter", "rum"]


@pytest.fixture(scope="module")
def shop():
    found = simulate_baskets(300)
    return Baskets([basket for basket in found.baskets if basket], found.items, {})


@pytest.fixture(scope="module")
def small(shop):
    return fit(shop, **SMALL)


@pytest.fixture
def kernel():
    """A kernel by hand, in 64 bits, whose subsets can be enumerated."""
    rng = np.random.default_rng(0)
    V, B, D = rng.normal(size=(5, 2)), rng.normal(size=(5, 2)), rng.normal(size=(2, 2))
    return Fit(V, B, D, {}, {"min_size": 1}, ITEMS)


def minors(kernel):
    """det L_S of all subsets."""
    L = kernel.V @ kernel.V.T + kernel.B @ (kernel.D - kernel.D.T) @ kernel.B.T
    subsets = itertools.chain.from_iterable(itertools.combinations(range(5), k) for k in range(6))
    return {frozenset(S): np.linalg.det(L[np.ix_(S, S)]) if S else 1.0 for S in subsets}


def test_recommendations_are_exact(kernel):
    weights = minors(kernel)
    for basket, exclude in (([], []), (["tea"], []), ([0, "butter"], []), (["tea"], ["rum", 3])):
        given = {ITEMS.index(item) if isinstance(item, str) else item for item in basket}
        out = {ITEMS.index(item) if isinstance(item, str) else item for item in exclude}
        exact = {ITEMS[a]: weights[frozenset(given | {a})] for a in range(5) if a not in given | out}
        total = sum(exact.values())
        found = kernel.recommend(basket, exclude=exclude)
        assert dict(found) == pytest.approx({name: weight / total for name, weight in exact.items()}, abs=1e-9)
        assert [p for _, p in found] == sorted((p for _, p in found), reverse=True)
        assert kernel.recommend(basket, 2, exclude=exclude) == found[:2]


@pytest.mark.parametrize(
    ("basket", "size"),
    [
        ([], None),
        *(pytest.param(["butter"], size, marks=pytest.mark.slow) for size in (3, None)),
        pytest.param([], 2, marks=pytest.mark.slow),
    ],
)
def test_whole_baskets_have_their_law(kernel, basket, size):
    weights, number = minors(kernel), 1000
    given = frozenset(ITEMS.index(item) for item in basket)
    exact = {S: w for S, w in weights.items() if given <= S and S and (size is None or len(S) == size)}
    total = sum(exact.values())
    drawn = kernel.complete(basket, size, num=number, seed=3)
    assert all(names[: len(basket)] == basket for names in drawn)
    counts = dict.fromkeys(exact, 0)
    for names in drawn:
        counts[frozenset(map(ITEMS.index, names))] += 1
    for S, weight in exact.items():
        p = max(weight / total, 0.0)
        assert abs(counts[S] / number - p) < 5 * np.sqrt(p * (1 - p) / number) + 1e-9
    assert kernel.complete(basket, size, num=number, seed=3) == drawn
    assert kernel.complete(basket, size, num=number, seed=4) != drawn


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda k: k.recommend(["bread"]), ValueError, "basket: no item is called 'bread'; there is 'white bread'"),
        (lambda k: k.recommend(["tea"], exclude=["x"]), ValueError, "exclude: no item is called 'x'"),
        (lambda k: k.recommend("tea"), TypeError, "basket must be a list of items, got one text"),
        (lambda k: k.recommend(["tea"], 0), ValueError, "num must be at least 1, got 0"),
        (
            lambda k: k.recommend([0, 1, 2, 3]),
            ValueError,
            "no item that is not excluded can join these 4; .* at most 4",
        ),
        (
            lambda k: k.complete(["tea", "rum"], 1),
            ValueError,
            "size must be between 2 and the most items .* = 4, got 1",
        ),
        (lambda k: k.complete([], 5), ValueError, "size must be between 0 and the most items .* = 4, got 5"),
        (lambda k: k.complete([], num=0), ValueError, "num must be at least 1, got 0"),
        (lambda k: k.complete([], seed=-1), ValueError, "seed must be between 0 and"),
        (lambda k: k.complete([7]), ValueError, "between 0 and the last item = 4, got 7"),
        (
            lambda k: k._replace(V=np.ones((5, 1)), B=np.zeros((5, 2))).complete([0, 1]),
            ValueError,
            "they have probability zero",
        ),
    ],
)
def test_bad_requests(kernel, call, error, message):
    with pytest.raises(error, match=message):
        call(kernel)


def test_names_go_into_the_file_and_come_back(small, shop, tmp_path):
    assert small.items == shop.items
    small.save(tmp_path / "kernel.npz")
    loaded = Fit.load(tmp_path / "kernel.npz")
    assert loaded.items == shop.items
    assert loaded.recommend(["bread"], 2) == small.recommend(["bread"], 2)
    assert str(loaded) == str(small)


def test_file_without_names_or_smallest_size_still_loads(small, tmp_path):
    """As earlier versions wrote it."""
    settings = {name: value for name, value in small.settings.items() if name != "min_size"}
    arrays = {name: array for name, array in small.arrays().items() if name != "items"}
    write_arrays(tmp_path / "old.npz", arrays, settings)
    old = Fit.load(tmp_path / "old.npz")
    assert old.items is None
    assert old.distribution().min_size == 0
    found = old.recommend([2], 2)
    assert [int(name) for name, _ in found] == [small.items.index(name) for name, _ in small.recommend(["bread"], 2)]


def test_file_as_the_reference_describes_it_loads(kernel, tmp_path):
    """Written here by NumPy alone, with an array that no version knows: docs/reference/stability.md promises it."""
    arrays = {
        "V": kernel.V,
        "B": kernel.B,
        "D": kernel.D,
        "items": np.array(ITEMS),
        "size_logits": np.log(np.full(5, 0.2)),
    }
    settings = np.array('{"model": "sized", "min_size": 1}')
    np.savez(tmp_path / "kernel.npz", **arrays, history_step=np.array([1, 2]), settings=settings, later=np.zeros(3))
    loaded = Fit.load(tmp_path / "kernel.npz")
    for found, written in zip(loaded[:3], kernel[:3], strict=True):
        np.testing.assert_array_equal(found, written)
    np.testing.assert_array_equal(loaded.size_logits, arrays["size_logits"])
    assert list(loaded.history["step"]) == [1, 2]
    assert (loaded.settings, loaded.items) == ({"model": "sized", "min_size": 1}, ITEMS)


def test_nothing_is_unpickled(small, tmp_path):
    arrays = small.arrays() | {"items": np.array(small.items, dtype=object)}
    np.savez(tmp_path / "bad.npz", settings=np.array(json.dumps(small.settings)), **arrays)
    with pytest.raises(ValueError, match=r"bad.npz is not a file that numpyro_ndpp saved: Object arrays"):
        Fit.load(tmp_path / "bad.npz")


def test_fit_is_one_line(small, kernel):
    assert "\n" not in repr(small)
    assert repr(small).startswith(
        "<Fit: ndpp of 12 items (tea, coffee, bread, ...), rank 9, baskets not empty, 20 steps"
    )
    assert "log-likelihood" in repr(small)
    assert len(repr(small)) < 200
    assert repr(kernel._replace(items=None)) == "<Fit: ndpp of 5 items, rank 4, baskets not empty>"


def test_names_from_anywhere(shop, monkeypatch):
    rows = np.zeros((len(shop.baskets), 12), int)
    for row, basket in zip(rows, shop.baskets, strict=True):
        row[basket] = 1
    settings = SMALL | {"num_steps": 10}
    for given in (
        fit(shop.baskets, items=shop.items, **settings),
        fit(shop.baskets, 12, items=np.array(shop.items), **settings),
        fit(pd.DataFrame(rows, columns=shop.items), **settings),
    ):
        assert given.items == shop.items
    assert fit(scipy.sparse.csr_array(rows), **settings).items is None
    assert len(fit(rows == 1, **settings).V) == 12


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (([[0], [1]],), {}, "num_items must be given for baskets without names: .* items= with the name of every item"),
        (([[0], [1]], 3), {"items": ["tea", "rum"]}, "num_items is 3, but there are the names of 2 items"),
        ((Baskets([[0], [1]], ["tea", "rum"], {}),), {"items": ["a", "b"]}, "items has other names than the baskets"),
        (
            ([[0], [], [1]], 2),
            {"min_size": 1},
            "baskets: 1 of 3 are empty, which min_size=1 has no room for; leave them",
        ),
        (([[0], [1]], 2), {"min_size": 1, "validation": [[]]}, "1 of 3 are empty"),
        (([[0], [1]], 2), {"min_size": 2}, "min_size must be between 0 and 1, got 2"),
        (([[0], [0, 1, 2]], 3), {"rank": 2}, "1 baskets have more items than the rank of 2, which gives them"),
        (([[0], [0, 1, 2, 3]], 4), {"rank": (1, 3)}, r"the rank of 3 \(a skew matrix of odd size is singular"),
        (([[0], [1]], 2), {"rank": 0}, "rank must be at least 1, got 0"),
    ],
)
def test_bad_fits(arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        fit(*arguments, **{"rank": 4, "progress_bar": False} | settings)


# --- Ranks -----------------------------------------------------------------------------------------------------------


def test_rank_is_that_of_the_distribution(small):
    assert small.distribution().rank == 9
    for model in ("ndpp", "symmetric", "ondpp"):
        for rank in range(1, 50):
            first, second = columns_of(model, rank, 1000)
            assert first + second == rank
            assert first >= 1
            assert second % 2 == 0
            assert (model == "symmetric" and second == 0) or abs(first - second) <= 2
    assert columns_of("ndpp", 200, 1000) == (100, 100)
    assert columns_of("ndpp", (20, 180), 1000) == (20, 180)
    assert columns_of("ondpp", 200, 12) == (190, 10)  # B has fewer columns than there are items


# --- Baskets that are not empty ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["ndpp", "ondpp"])
def test_what_is_learned_is_given_that_baskets_are_not_empty(shop, model):
    held_out = pad_subsets(shop.baskets[:40], 12)
    result = fit(shop, model=model, validation=held_out, **SMALL)
    assert result.settings["min_size"] == 1
    assert result.distribution().min_size == 1
    kernel = (part.astype(float) for part in (result.V, result.B, result.D))
    exact = NDPP(*kernel, min_size=1).log_prob(held_out).mean()
    best = np.argmax(result.history["validation"] - result.history["price"])
    assert result.history["validation"][best] == pytest.approx(float(exact), rel=1e-5)


def test_gradient_is_that_of_the_limited_distribution(small):
    """One logarithm more than the normaliser without limits, in place of determinants on a circle."""
    from numpyro_ndpp.learner import _log_allowed

    B, D = (part.astype(float) for part in (small.B, small.D))
    subsets = pad_subsets([[0], [2, 3], [1, 4, 5]], 12)

    def short(V):
        dist = NDPP(V, B, D)
        return (dist.log_prob(subsets) - _log_allowed(dist, 1)).sum()

    def limited(V):
        return NDPP(V, B, D, min_size=1).log_prob(subsets).sum()

    V = small.V.astype(float)
    np.testing.assert_allclose(jax.jit(jax.grad(short))(V), jax.jit(jax.grad(limited))(V), rtol=1e-7, atol=1e-9)


def test_smallest_size_by_default_is_that_of_the_data(shop):
    assert fit([*shop.baskets, []], 12, **SMALL | {"num_steps": 10}).settings["min_size"] == 0
    assert fit(shop, min_size=0, **SMALL | {"num_steps": 10}).distribution().min_size == 0


def test_limit_on_proposals_of_baskets_that_are_not_empty(shop):
    settings = SMALL | {"evaluate_every": 1, "learning_rate": 0.1}
    result = fit(shop, model="ondpp", gamma=2.0, max_proposals=2.0, **settings)
    assert np.isinf(result.history["price"]).any()
    assert float(Rejection().expected_proposals(result.distribution())) <= 2.0


def test_checkpoint_of_an_earlier_version_is_refused_in_words(shop, tmp_path):
    path, settings = tmp_path / "run.npz", SMALL | {"num_steps": 10}
    fit(shop, checkpoint=path, **settings)
    assert fit(shop, checkpoint=path, **settings).items == shop.items
    with pytest.raises(ValueError, match="is of another run: its min_size is 1, here it is 0"):
        fit(shop, checkpoint=path, min_size=0, **settings)
    arrays, written = read_arrays(path, ())
    del written["min_size"]
    write_arrays(path, arrays, written)
    with pytest.raises(ValueError, match=r"run.npz is of an earlier version, whose fits had no min_size: end the run"):
        fit(shop, checkpoint=path, **settings)
