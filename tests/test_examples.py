"""The examples run, in their quick setting, and write their figures; what they read is checked before any long work."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from real_data import GROCERIES

from numpyro_ndpp import NDPP
from numpyro_ndpp.datasets import load_baskets, save_baskets
from numpyro_ndpp.learning import Fit

EXAMPLES = Path(__file__).parents[1] / "examples"
BENCHMARKS = EXAMPLES.parent / "benchmarks"


def run(name, *arguments):
    """The example's namespace after its main(); NumPyro and JAX may warn there as they do for users."""
    module = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    return module["main"]([str(argument) for argument in arguments])


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "name",
    [
        "basket_completion",
        pytest.param("bayesian_kernel", marks=pytest.mark.slow),
        pytest.param("variable_selection", marks=pytest.mark.slow),
        pytest.param("subset_guide", marks=pytest.mark.slow),
    ],
)
def test_example_runs(name, tmp_path, capsys):
    figure = tmp_path / "figure.png"
    run(name, "--quick", "--figure", figure)
    assert figure.stat().st_size > 10_000
    assert str(figure) in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["basket_completion", "bayesian_kernel", "variable_selection", "subset_guide", "learn_kernel"]
)
def test_example_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as stop:
        run(name, "--help")
    assert stop.value.code == 0
    assert "--figure" in capsys.readouterr().out


@pytest.mark.filterwarnings("default")
def test_kernel_is_learned_and_saved(tmp_path, capsys):
    result = run("learn_kernel", "--quick", "--kernel", tmp_path / "kernel.npz", "--figure", tmp_path / "figure.png")
    assert (Fit.load(tmp_path / "kernel.npz").V == result.V).all()
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert "mean percentile rank of a hidden item" in capsys.readouterr().out


def test_no_basket_is_judged_by_twice(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    split = runpy.run_path(str(BENCHMARKS / "learning.py"))["split"]
    sizes = np.random.default_rng(0).geometric(0.05, 8203)
    lists = [[i] * size for i, size in enumerate(sizes)]
    parts = [split(lists, choice) for choice in range(4)]
    for train, validation, test in parts:
        assert sorted(train + validation + test) == lists
        assert (len(validation), len(test)) == (300, 2000)
    assert len({basket[0] for _, _, test in parts for basket in test}) == 8000
    # Each has one of every four neighbours in size, so that means differ by (max - min) / 2000 at most.
    means = [np.mean([len(basket) for basket in test]) for _, _, test in parts]
    assert max(means) - min(means) <= (sizes.max() - sizes.min()) / 2000
    with pytest.raises(ValueError, match="8203 baskets allow for 4 choices of 2000"):
        split(lists, 4)


def test_independent_items_have_the_likelihood_of_their_frequencies(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    judge = runpy.run_path(str(BENCHMARKS / "learning.py"))["judge_independent"]
    likelihood = judge(np.array([5, 2, 8]), 10, [[0, 1], [2, 1]], 0)[5][0]
    assert likelihood == pytest.approx(np.log([0.5 * 0.2 * 0.2, 0.5 * 0.2 * 0.8]).mean())


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_learning_benchmarks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    rng = np.random.default_rng(0)
    baskets = [rng.choice(260, size=rng.integers(1, 9), replace=False) for _ in range(400)]
    save_baskets(tmp_path / "some.npz", baskets, [str(item) for item in range(260)])
    learned = runpy.run_path(str(BENCHMARKS / "learning.py"))["main"](
        [str(tmp_path), "--quick", "--models", "ndpp", "--kernels", str(tmp_path / "kernels")]
    )
    assert any(line.startswith("| ndpp | ") for line in learned)
    sampled = runpy.run_path(str(BENCHMARKS / "paper_tables.py"))["main"](
        [str(tmp_path / "kernels" / "some_ndpp.npz"), "--quick"]
    )
    assert sum("| exact |" in line for line in sampled) == 3
    scaled = runpy.run_path(str(BENCHMARKS / "learning_scale.py"))["main"](["--quick"])
    assert sum(" GB | " in line for line in scaled) == 2


def test_pairs_are_told_apart_by_their_sign(tmp_path):
    example = runpy.run_path(str(EXAMPLES / "learn_kernel.py"))
    V, B, D = np.eye(2), np.eye(2), np.array([[0.0, 1.0], [0.0, 0.0]])
    for law, attract in ((NDPP(V, B, D), True), (NDPP(np.array([[1.0, 0.0], [0.8, 0.6]]), B, 0 * D), False)):
        complements, substitutes = example["strongest"](law, np.array([3, 5]), 10)
        assert (len(complements), len(substitutes)) == ((1, 0) if attract else (0, 1))
        history = {"step": np.array([1, 2]), "validation": np.array([-3.0, -2.0]), "price": np.zeros(2)}
        result = Fit(V, B, D, history, {})
        names = ["Coupon $5 50% off", "Card ^$10"]  # no formula, whatever stands between the two dollars
        example["draw_figure"](tmp_path / "pairs.png", (complements, substitutes), names, result)
        assert (tmp_path / "pairs.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_baskets_from_text(tmp_path, capsys):
    path, catalogue = tmp_path / "baskets.txt", tmp_path / "names.txt"
    catalogue.write_text("milk\nsugar\ntea\nbread\n")
    path.write_text("tea, milk\ntea, sugar\nbread\ntea, milk, bread\n" * 20)
    names = ("--catalogue", catalogue, "--rank", 2, 2)
    run("basket_completion", "--quick", "--data", path, *names, "--figure", tmp_path / "figure.png")
    assert "Mean percentile rank" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_real_baskets_beat_popularity(tmp_path, capsys):
    if not GROCERIES.exists():
        pytest.skip(f"no real baskets: {GROCERIES.name} is not there")
    run("basket_completion", "--data", GROCERIES, "--figure", tmp_path / "figure.png")
    lines = capsys.readouterr().out.splitlines()
    ours = float(next(line for line in lines if line.startswith("Mean percentile rank")).split()[-1])
    popular = float(next(line for line in lines if line.startswith("by popularity")).split()[-1])
    assert ours > popular > 50


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_repulsive_prior_finds_more_true_covariates(tmp_path):
    found = run("variable_selection", "--figure", tmp_path / "figure.png")
    difference = np.array(found["repulsive"]) - np.array(found["independent"])
    assert len(difference) == 20
    assert difference.mean() > 0
    assert (difference > 0).sum() >= 15  # a coin would do so in one case of fifty


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_guide_comes_near_the_evidence(tmp_path):
    assert 0 <= run("subset_guide", "--figure", tmp_path / "figure.png") < 0.05


# --- Files -----------------------------------------------------------------------------------------------------------


def test_npz_and_text_agree(tmp_path):
    np.savez(tmp_path / "b.npz", indptr=[0, 2, 3], indices=[2, 0, 1], items=["a", "b", "c"])
    (tmp_path / "b.txt").write_text("2 0\n\n1\n")
    (tmp_path / "named.txt").write_text("c, a\nb\n")
    npz, text = load_baskets(tmp_path / "b.npz"), load_baskets(tmp_path / "b.txt")
    named = load_baskets(tmp_path / "named.txt", catalogue=["a", "b", "c"])
    assert npz.baskets == text.baskets == named.baskets == [[0, 2], [1]]
    assert npz.items == named.items == ["a", "b", "c"]
    assert text.items == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "has no baskets"),
        ("\n \n", {}, "has no baskets"),
        ("1 2\n3 tea\n", {}, "line 2: 'tea' is no item number; names need a catalogue"),
        ("1 -2\n", {}, "line 1: '-2' is no item number"),
        ("1 2\n4006381333931 7\n", {}, "line 2: 4006381333931 is too large for an item number"),
        ("0 1\r2 3\r4\r", {}, "line 1: lines must end with a line feed"),
        ("tea\n", {"catalogue": ["tea", "milk", "tea"]}, "catalogue: 'tea' is there more than once"),
        ("tea\nmilk, rum\n", {"catalogue": ["tea", "milk"]}, "line 2: 'rum' is not in the catalogue"),
        ("1 2\n\n1 2 3 4\n", {"max_size": 3}, "line 3: 4 items, but at most 3 are allowed"),
    ],
)
def test_bad_text(text, settings, message, tmp_path):
    path = tmp_path / "baskets.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_baskets(path, **settings)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"indptr": [0, 1], "indices": [0]}, "has no array 'items'"),
        ({"indptr": [0, 2, 1], "indices": [0], "items": ["a"]}, "indptr must rise from 0 to the length of indices, 1"),
        (
            {"indptr": np.array([0, 3, 1, 4], np.uint64), "indices": [0, 1, 2, 3], "items": list("abcd")},
            "indptr must rise from 0 to the length of indices, 4",
        ),
        ({"indptr": [0, 1], "indices": [[0]], "items": ["a"]}, "must have one dimension, got 2 and 1"),
        ({"indptr": [0, 1, 2], "indices": [0, 5], "items": ["a"]}, "basket 1: item 5; items must be 0 to 0"),
        ({"indptr": [0], "indices": [], "items": ["a"]}, "has no baskets"),
    ],
)
def test_bad_npz(arrays, message, tmp_path):
    np.savez(tmp_path / "baskets.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_baskets(tmp_path / "baskets.npz")


def test_bad_data_stops_the_example_at_once(tmp_path):
    path = tmp_path / "baskets.txt"
    path.write_text(" ".join(str(item) for item in range(120)) + "\n")
    with pytest.raises(ValueError, match="line 1: 120 items, but at most 100 are allowed"):
        run("basket_completion", "--data", path)


# --- Chains and the paper's figures ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_chain_diagnostics(tmp_path):
    found = run("chain_diagnostics", "--quick", "--figures", tmp_path)
    assert any("The chains disagree" in sentence for sentence in found["stuck"])
    assert len(list(tmp_path.glob("*.png"))) == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_paper_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = runpy.run_path(str(BENCHMARKS / "paper_figures.py"))
    module["main"](["--quick", "--output", str(tmp_path), "--folder", str(tmp_path)])
    for number in (1, 2, 3):
        assert (tmp_path / f"paper_figure_{number}.png").stat().st_size > 10_000
        assert "Paper:" in (tmp_path / f"paper_figure_{number}.md").read_text()
