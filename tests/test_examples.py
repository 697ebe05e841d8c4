"""The examples run, in their quick setting, and write their figures; what they read is checked before any long work."""

import itertools
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from real_data import GROCERIES

from numpyro_ndpp import NDPP
from numpyro_ndpp.datasets import Baskets, load_baskets, save_baskets
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


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_kernel_is_learned_and_saved(tmp_path, capsys):
    result = run("learn_kernel", "--quick", "--kernel", tmp_path / "kernel.npz", "--figure", tmp_path / "figure.png")
    assert (Fit.load(tmp_path / "kernel.npz").V == result.V).all()
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert "mean percentile rank of a hidden item" in capsys.readouterr().out


@pytest.fixture
def protocol(monkeypatch):
    """The names of benchmarks/learning.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return runpy.run_path(str(BENCHMARKS / "learning.py"))


def test_splits_are_disjoint_and_differ(protocol):
    lists = [[i] for i in range(8203)]
    parts = [protocol["split"](lists, seed, 300) for seed in range(3)]
    for train, validation, test in parts:
        assert sorted(train + validation + test) == lists
        assert (len(validation), len(test)) == (300, 2000)
    assert all(protocol["split"](lists, 1, 300)[i] == parts[1][i] for i in range(3))
    # A quarter of two random choices of 2,000 of 8,203 is in both: 488 ± 17.
    tests = [{i for (i,) in test} for _, _, test in parts]
    shared = [len(one & other) for one, other in itertools.combinations(tests, 2)]
    assert all(400 < number < 570 for number in shared)
    with pytest.raises(ValueError, match="ten baskets at least are needed, got 9"):
        protocol["split"](lists[:9], 0, 300)


def test_independent_items_have_the_likelihood_of_their_frequencies(protocol):
    """Against enumeration of all subsets but the empty one."""
    train = [[0, 1], [0, 2], [2], [2], [1, 2], [0], [2], [0, 2], [0, 2], [2]]
    share = np.array([0.5, 0.2, 0.8])
    every = [[i for i in range(3) if code >> i & 1] for code in range(8)]
    prob = {tuple(each): np.prod(np.where(np.isin(range(3), each), share, 1 - share)) for each in every}
    test = [[0, 1], [2, 1], [2]]
    by_size = {size: sum(value for each, value in prob.items() if len(each) == size) for size in range(4)}
    found = protocol["judge_independent"](train, test, 3, False, 0)
    expected = [np.log(prob[tuple(sorted(each))] / (1 - prob[()])) for each in test]
    assert found["log_likelihoods"] == pytest.approx(expected, abs=1e-4)
    assert found["numbers"]["log-likelihood"] == pytest.approx(np.mean(expected))
    likely = np.array([by_size[size] for size in (1, 2, 3)]) / (1 - by_size[0])
    assert found["sizes"]["classes"][:3] == pytest.approx(likely)
    assert found["sizes"]["mean"] == pytest.approx(likely @ [1, 2, 3])
    # Sizes of the baskets, each once more than it occurs: 5, 5 and none of ten.
    found = protocol["judge_independent"](train, test, 3, True, 0)
    sizes = {1: 6 / 13, 2: 6 / 13, 3: 1 / 13}
    expected = [np.log(sizes[len(each)] * prob[tuple(sorted(each))] / by_size[len(each)]) for each in test]
    assert found["log_likelihoods"] == pytest.approx(expected, abs=1e-4)


def test_classes_of_sizes(protocol):
    shares = np.zeros(71)
    shares[[1, 2, 3, 4, 9, 64, 65, 70]] = 0.125
    assert protocol["class_shares"](shares) == [0.125, 0.125, 0.25, 0.0, 0.125, 0.0, 0.125, 0.25]
    assert protocol["class_shares"](shares[:3] * 4) == [0.5, 0.5, 0, 0, 0, 0, 0, 0]
    assert protocol["class_names"]() == ["1", "2", "3–4", "5–8", "9–16", "17–32", "33–64", "65+"]
    moments = protocol["about_sizes"](np.array([0, 0.5, 0, 0.5]))
    assert (moments["mean"], moments["variance"]) == (2.0, 1.0)


def test_settings_come_from_other_data_sets(protocol, tmp_path):
    for name, alpha in (("milk", 10.0), ("bread", 40.0), ("wine", 1000.0)):
        chosen = {"ndpp": {"alpha": alpha, "beta": 3.0, "anchor": alpha / 100}}
        (tmp_path / f"{name}.json").write_text(json.dumps({"dataset": name, "chosen": chosen}))
    settings, others = protocol["settings_elsewhere"](tmp_path, "wine", "ndpp")
    assert settings == pytest.approx({"alpha": 20.0, "beta": 3.0, "anchor": 0.25})
    assert others == ["bread", "milk"]
    for name in ("bread", "milk"):
        (tmp_path / f"{name}.json").unlink()
    with pytest.raises(ValueError, match="no settings of ndpp that were chosen on another data set than wine"):
        protocol["settings_elsewhere"](tmp_path, "wine", "ndpp")


def test_tables_of_results(protocol, tmp_path):
    """Means over splits, and differences that are paired by split."""
    sizes = {"classes": [0.5, 0.5, 0, 0, 0, 0, 0, 0], "mean": 1.5, "variance": 0.25}
    values = {"ndpp": [-10.0, -12.0, -14.0], "symmetric": [-11.0, -13.5, -14.5]}
    for model, each in values.items():
        for seed, value in enumerate(each):
            found = {"dataset": "uk_retail", "model": model, "seed": seed, "num_items": 9, "machine": "here"}
            found |= {"baskets": {"train": 1000, "test": 2}, "numbers": {"log-likelihood": value, "MPR": 80.0}}
            found |= {"log_likelihoods": [value - 1, value + 1], "settings": {"alpha": 50.0}, "seconds": 7.0}
            found |= {"settings_from": "defaults", "sizes": sizes, "sizes_train": sizes, "sizes_test": sizes}
            (tmp_path / f"uk_retail_{model}_{seed}.json").write_text(json.dumps(found))
    lines = protocol["tables"](tmp_path, ["uk_retail"], ["ndpp", "symmetric", "ondpp"])
    assert lines[0] == "**uk_retail**: 1,002 baskets, 9 items, splits [0, 1, 2]"
    (line,) = (line for line in lines if line.startswith("| symmetric | 80.00"))
    assert "| -13.00 ± 1.04 | 0.00 ± 0.00 | -1.000 ± 0.289 |" in line  # of -1, -1.5 and -0.5
    assert "76.42 / .74 / -104.89" in line
    assert "| data, test | 50.00 | 50.00 |" in "\n".join(lines)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_learning_benchmarks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    rng = np.random.default_rng(0)
    baskets = [rng.choice(260, size=rng.integers(1, 9), replace=False) for _ in range(400)]
    save_baskets(tmp_path / "some.npz", baskets, [str(item) for item in range(260)])
    learn = runpy.run_path(str(BENCHMARKS / "learning.py"))["main"]
    out = [str(tmp_path), "--out", str(tmp_path / "results")]
    one = ["--quick", "--model", "ndpp", "independent", "--seed", "0"]
    learn([*out, *one, "--kernels", str(tmp_path / "kernels")])
    result = tmp_path / "results" / "some_ndpp_0.json"
    written = result.read_bytes()
    learn([*out, *one])  # test baskets are looked at once
    assert result.read_bytes() == written
    assert sum(line.startswith("| ndpp | ") for line in learn([*out, "--table"])) == 2
    choose = runpy.run_path(str(BENCHMARKS / "choosing.py"))["main"]
    chosen = tmp_path / "chosen" / "some.json"
    chosen.parent.mkdir()
    options = ["--data", str(tmp_path), "--dataset", "some", "--out", str(chosen), "--quick", "--model", "ndpp"]
    report = choose(options)
    assert report["table"][0]["log_likelihood"] == max(line["log_likelihood"] for line in report["table"])
    assert json.loads(chosen.read_text())["chosen"]["ndpp"]["trial"] == report["chosen"]["ndpp"]["trial"]
    with pytest.raises(ValueError, match="chosen on another data set than some"):
        learn([*out, *one, "--chosen", str(chosen.parent)])
    sampled = runpy.run_path(str(BENCHMARKS / "paper_tables.py"))["main"](
        [str(tmp_path / "kernels" / "some_ndpp.npz"), "--quick"]
    )
    assert sum("| exact |" in line for line in sampled) == 3
    scaled = runpy.run_path(str(BENCHMARKS / "learning_scale.py"))["main"](["--quick"])
    assert sum(" GB | " in line for line in scaled) == 2


def test_held_out_pairs_are_counted(tmp_path):
    """Of two items that attract and two that repel, against counts by hand."""
    example = runpy.run_path(str(EXAMPLES / "learn_kernel.py"))
    V = np.eye(4)
    V[3] = [0.0, 0.0, 0.8, 0.6]
    B, D = np.eye(4)[:, :2], np.array([[0.0, 1.0], [0.0, 0.0]])
    law, names = NDPP(V, B, D), ["Coupon $5 50% off", "Card ^$10", "tea", "coffee"]  # dollars begin no formula
    test = Baskets([[0, 1], [0, 1, 2], [2, 3], [1, 3], [0, 2, 3]], names, {})
    shares = np.array([0.5, 0.5, 0.5, 0.4])
    # Chance gives 0.25 for pairs without item 3, 0.2 with it: 2,3 repels (0.2), 0,1 attracts (0.25), 1.35 in all.
    lifts = example["held_out_lifts"](law, shares, test, [0.2 / 1.35, 0.9 / 1.35, 0.25 / 1.35])
    pairs = [[(2, 3)], [(0, 2), (1, 2), (0, 3), (1, 3)], [(0, 1)]]
    chance = np.array([0.2, 0.9, 0.25]) / 1.35
    observed = np.array([sum({*pair} <= {*basket} for pair in group for basket in test.baskets) for group in pairs])
    np.testing.assert_allclose(lifts.observed, observed / observed.sum() / chance)
    marginal = np.exp(np.asarray(law.marginal_log_prob(np.array([pair for group in pairs for pair in group]))))
    both = np.array([marginal[0], marginal[1:5].sum(), marginal[5]])
    np.testing.assert_allclose(lifts.predicted, both / both.sum() / chance, rtol=1e-5)
    assert ((lifts.low <= lifts.observed) & (lifts.observed <= lifts.high)).all()
    example["draw_figure"](tmp_path / "pairs.svg", law, names, 3, 10**6, lifts)
    assert (tmp_path / "pairs.svg").stat().st_size > 10_000


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
@pytest.mark.long
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
@pytest.mark.long
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
    assert len(list(tmp_path.glob("*.svg"))) == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_paper_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = runpy.run_path(str(BENCHMARKS / "paper_figures.py"))
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- table: figure_{number} -->\n<!-- end -->\n" for number in (1, 2, 3)))
    module["main"](["--quick", "--output", str(page), "--folder", str(tmp_path)])
    for number in (1, 2, 3):
        assert (tmp_path / f"paper_figure_{number}.svg").stat().st_size > 10_000
    assert page.read_text().count("Paper:") == 3
