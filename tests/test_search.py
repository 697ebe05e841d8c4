"""Search: the best of all runs comes back, killed searches go on, other baskets than those given are never seen."""

import itertools

import numpy as np
import pytest

from numpyro_ndpp import learner, learning, trials
from numpyro_ndpp import search as search_module
from numpyro_ndpp.learning import Fit, fit
from numpyro_ndpp.search import search

N = 8
SETTINGS = {
    **{"models": ["ndpp", "symmetric"], "ranks": [8], "num_trials": 7, "num_rounds": 2, "num_steps": 60},
    **{"batch_size": 50, "learning_rate": 0.1, "evaluate_every": 10, "progress_bar": False, "seconds": None},
}
SUBSETS = [list(each) for size in range(N + 1) for each in itertools.combinations(range(N), size)]


def dense_log_probs(V, B, D):
    """log P of all subsets, from the whole matrix and by enumeration, in double precision."""
    V, B, D = (np.asarray(part, np.float64) for part in (V, B, D))
    L = V @ V.T + B @ (D - D.T) @ B.T
    minors = np.array([np.linalg.det(L[np.ix_(each, each)]) for each in SUBSETS])
    return np.log(np.maximum(minors, 1e-300) / minors.sum())


@pytest.fixture(scope="module")
def shop():
    """Baskets of a symmetric kernel, in which items only repel; drawn by enumeration, those to judge by too."""
    rng = np.random.default_rng(0)
    V = rng.normal(size=(N, 3)) @ rng.normal(size=(3, 6)) + 0.5 * rng.normal(size=(N, 6))  # items are alike
    log_probs = dense_log_probs(0.6 * V, np.zeros((N, 0)), np.zeros((0, 0)))
    drawn = rng.choice(len(SUBSETS), size=1000, p=np.exp(log_probs))
    return [SUBSETS[i] for i in drawn[:700]], [SUBSETS[i] for i in drawn[700:]], log_probs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("whole") / "runs"


@pytest.fixture(scope="module")
def whole(shop, folder):
    """A search that tests only look at."""
    return search(shop[0], N, validation=shop[1], folder=folder, **SETTINGS)


def same(one, other):
    """Whether two searches found the same, but for the time it took."""
    assert one.table.drop(columns="seconds").equals(other.table.drop(columns="seconds"))
    assert one.best.settings == other.best.settings
    for name in ("V", "B", "D"):
        assert (getattr(one.best, name) == getattr(other.best, name)).all()


def calls_of_fit(monkeypatch, act=lambda number, settings: None):
    """The settings of all fits from now on; ``act`` is called before each."""
    calls = []

    def fit_and_note(baskets, num_items, **settings):
        calls.append({"baskets": baskets} | settings)
        act(len(calls) - 1, settings)
        return fit(baskets, num_items, **settings)

    monkeypatch.setattr(trials, "fit", fit_and_note)
    return calls


def test_first_line_is_the_fit_that_comes_back(shop, whole):
    table, line = whole.table, whole.table.iloc[0]
    assert line["log_likelihood"] == table["log_likelihood"].max()
    settings = whole.best.settings
    assert line["rank"] == " + ".join(map(str, settings["rank"]))
    for name in ("model", "alpha", "anchor", "num_steps"):
        assert line[name] == settings[name]
    assert line["steps"] == whole.best.history["step"][-1]
    # The log-likelihoods of its baskets, by enumeration.
    log_probs = dict(zip(map(tuple, SUBSETS), dense_log_probs(whole.best.V, whole.best.B, whole.best.D), strict=True))
    values = np.array([log_probs[tuple(basket)] for basket in shop[1]])
    assert whole.best.settings["min_size"] == 0  # some baskets are empty
    assert line["log_likelihood"] == pytest.approx(values.mean(), abs=2e-5)
    assert line["standard_error"] == pytest.approx(values.std(ddof=1) / len(values) ** 0.5, rel=1e-4)
    assert line["behind"] == line["behind_error"] == 0


def test_what_is_found_is_near_the_truth(shop, whole):
    """On repelling items it is far better than independent ones, and about as good as the kernel they come from."""
    train, held_out, log_probs = shop
    truth = dict(zip(map(tuple, SUBSETS), log_probs, strict=True))
    best = np.mean([truth[tuple(basket)] for basket in held_out])
    share = np.array([np.mean([item in basket for basket in train]) for item in range(N)])
    held = np.array([[item in basket for item in range(N)] for basket in held_out])
    independent = np.where(held, np.log(share), np.log1p(-share)).sum(axis=1).mean()
    found = whole.table["log_likelihood"].max()
    assert found > independent + 0.7 * (best - independent)
    assert found < best + 0.05


def test_a_line_can_be_had_again_by_one_fit(shop, whole):
    line = whole.table[whole.table["model"] == "symmetric"].iloc[-1]
    common = {name: SETTINGS[name] for name in ("batch_size", "learning_rate", "evaluate_every", "progress_bar")}
    names = ("model", "alpha", "anchor", "num_steps")
    settings = {name: line[name] for name in names} | {"num_steps": int(line["num_steps"]), "rank": 8}
    result = fit(shop[0], N, validation=shop[1], **settings, **common)
    assert result.history["validation"].max() == pytest.approx(line["log_likelihood"], abs=2e-5)


def test_the_best_third_and_the_first_trial_go_on(whole):
    first, second = (whole.table[whole.table["num_steps"] == steps] for steps in (20, 60))
    assert sorted(first["trial"]) == list(range(7))
    assert set(second["trial"]) == {*first["trial"][:2], 0}  # the table has the best first
    assert len(second) == len(set(second["trial"]))


def test_differences_are_of_the_same_baskets(whole, folder):
    """As the files of the runs have them."""
    with np.load(folder / f"trial_{whole.table['trial'][0]:03d}_{whole.table['num_steps'][0]}.npz") as file:
        best = file["log_likelihoods"]
    for _, line in whole.table.iterrows():
        path = folder / f"trial_{line['trial']:03d}_{line['num_steps']}.npz"
        with np.load(path) as file:
            below = best - file["log_likelihoods"]
        assert line["behind"] == pytest.approx(below.mean())
        assert line["behind_error"] == pytest.approx(below.std(ddof=1) / len(below) ** 0.5)
        assert Fit.load(path).settings["alpha"] == line["alpha"]


def test_first_trials_have_the_strengths_of_fit(whole):
    firsts = whole.table[whole.table["trial"].isin([0, 1])]
    for _, line in firsts.iterrows():
        assert line["alpha"] == learner.MODELS[line["model"]].strengths["alpha"]
        assert line["anchor"] == 1.0
    others = whole.table[~whole.table["trial"].isin([0, 1])]
    for _, line in others.iterrows():
        assert 0.1 <= line["alpha"] / learner.MODELS[line["model"]].strengths["alpha"] <= 10
    assert others["alpha"].nunique() == 5


def test_one_seed_gives_one_result(shop, whole, monkeypatch):
    calls = calls_of_fit(monkeypatch)
    before = learner._programs.cache_info().misses
    same(search(shop[0], N, validation=shop[1], **SETTINGS), whole)
    assert learner._programs.cache_info().misses == before
    for call in calls:
        assert [row[row < N].tolist() for row in call["baskets"]] == shop[0]
        assert [row[row < N].tolist() for row in call["validation"]] == shop[1]
    # The first of each model, then those that share programs one after the other.
    assert [call["model"] for call in calls[:7]] == ["ndpp", "symmetric"] + 3 * ["ndpp"] + 2 * ["symmetric"]


def test_another_seed_tries_other_strengths(shop, whole):
    tried = [
        search_module._settings("ndpp", (4, 4), place, [1.0, 0.5], 10.0, (seed, 0))
        for seed in range(2)
        for place in range(1, 5)
    ]
    assert len({each["beta"] for each in tried}) == 8
    assert {each["anchor"] for each in tried[:4]} == {1.0, 0.5}


@pytest.mark.parametrize("number", [0, 4, 8])
def test_interrupted_search_ends_where_an_uninterrupted_one_does(shop, whole, tmp_path, monkeypatch, number):
    def interrupt(i, settings):
        if i == number:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        calls_of_fit(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            search(shop[0], N, validation=shop[1], folder=tmp_path / "runs", **SETTINGS)
    calls = calls_of_fit(monkeypatch)
    same(search(shop[0], N, validation=shop[1], folder=tmp_path / "runs", **SETTINGS), whole)
    assert len(calls) == len(whole.table) - number


def test_run_goes_on_from_its_checkpoint(shop, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "_CHECKPOINT_EVERY", 10)
    write, written = learning._write_checkpoint, []

    def write_and_stop(path, *others):
        write(path, *others)
        written.append(path)
        if len(written) == 3:  # in the second of two evaluations of trial 2
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(learning, "_write_checkpoint", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            search(shop[0], N, validation=shop[1], folder=tmp_path / "runs", **SETTINGS)
    assert written[-1].exists()
    same(search(shop[0], N, validation=shop[1], folder=tmp_path / "runs", **SETTINGS), whole)
    assert not list((tmp_path / "runs").glob("running*"))


def test_lost_files_are_made_again(shop, whole, folder, monkeypatch):
    files = sorted(folder.glob("trial_*_60.npz"))
    kept = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    calls = calls_of_fit(monkeypatch)
    same(search(shop[0], N, validation=shop[1], folder=folder, **SETTINGS), whole)
    assert len(calls) == len(files)
    for file, content in zip(files, kept, strict=True):
        file.write_bytes(content)


def test_only_the_given_baskets_are_seen(shop, monkeypatch):
    """What is held out is not learned from, and nothing is lost or added."""

    def stop(number, settings):
        raise KeyboardInterrupt

    calls = calls_of_fit(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        search(shop[0], N, validation=90, seed=3, **SETTINGS)
    parts = [[row[row < N].tolist() for row in calls[0][name]] for name in ("baskets", "validation")]
    assert [len(part) for part in parts] == [610, 90]
    assert sorted(parts[0] + parts[1]) == sorted(shop[0])


def test_time_as_the_budget(shop):
    """With no time at all, what is never passed over is left: a run of each model and rank, and one in each round."""
    result = search(shop[0], N, validation=shop[1], **SETTINGS | {"seconds": 1e-9})
    assert sorted(result.table["trial"][result.table["num_steps"] == 20]) == [0, 1]
    assert sum(result.table["num_steps"] == 60) == 1
    assert result.table["log_likelihood"][0] == result.table["log_likelihood"].max()


def test_runs_that_would_not_end_in_time_are_passed_over():
    def run(number, model, num_steps, seconds):
        trial = trials.Trial(number, {"model": model, "rank": (4, 4)})
        return trials.Run(trial, num_steps, None, num_steps, np.zeros(1), seconds)

    runs = [run(0, "ndpp", 10, 5.0), run(1, "ndpp", 10, 2.0), run(2, "symmetric", 10, 1.0)]  # the first one compiles
    assert search_module._time_with(runs, runs[0].trial, 30) == 8.0 + 30 * 0.2
    assert search_module._time_with(runs, runs[2].trial, 30) == 8.0 + 30 * 0.1
    assert search_module._time_with(runs[:2], runs[2].trial, 30) == 7.0  # nothing is known of it


def test_diverging_runs_are_lines_too(shop, monkeypatch):
    def diverge(number, settings):
        if settings["model"] == "ndpp":
            raise FloatingPointError

    calls_of_fit(monkeypatch, diverge)
    result = search(shop[0], N, validation=shop[1], **SETTINGS)
    lost = result.table[result.table["model"] == "ndpp"]
    assert (lost["log_likelihood"] == -np.inf).all()
    assert (lost["steps"] == 0).all()
    assert result.best.settings["model"] == "symmetric"
    assert "-inf" in str(result)
    with pytest.raises(FloatingPointError, match="became NaN in all 5 runs; a lower learning_rate may help"):
        search(shop[0], N, validation=shop[1], **SETTINGS | {"models": ["ndpp"], "num_trials": 4})


def test_it_prints_a_line_for_each_run(whole):
    lines = str(whole).splitlines()
    assert len(lines) == 1 + len(whole.table)
    assert lines[0].split()[:3] == ["trial", "model", "rank"]
    assert "4 + 4" in "".join(lines)
    assert "nan" not in "".join(lines)


def test_columns_of_a_model_without_B_are_in_V():
    pairs = search_module._models_and_ranks(["symmetric", "ndpp"], [8, (2, 6), (3, 5)], N, np.zeros((2, 3)))
    assert pairs == [("symmetric", (8, 0)), ("ndpp", (4, 4)), ("ndpp", (2, 6)), ("ndpp", (3, 5))]


def test_models_and_ranks_by_default():
    pairs = search_module._models_and_ranks(None, None, 5000, np.zeros((2, 30)))
    assert {model for model, _ in pairs} == set(learner.MODELS) - {"ondpp"}
    assert [columns for model, columns in pairs if model == "ndpp"] == [(100, 100), (20, 180)]
    largest = search_module._models_and_ranks(None, None, 5000, np.zeros((2, 301)))
    assert {sum(columns) for _, columns in largest} == {301}


def test_folder_of_another_search_is_refused(shop, whole, folder, tmp_path):
    def again(baskets=shop[0], **other):
        search(baskets, N, validation=shop[1], folder=folder, **SETTINGS | other)

    with pytest.raises(ValueError, match="runs is of another search: its number of trials is 7, here it is 8"):
        again(num_trials=8)
    with pytest.raises(ValueError, match=r"its data is .*, here it is"):
        again(baskets=shop[0][1:])
    with pytest.raises(ValueError, match="its seed is 0, here it is 1"):
        again(seed=1)
    with pytest.raises(ValueError, match=r"its settings of all trials is .*'batch_size': 50.*'batch_size': 51"):
        again(batch_size=51)
    with pytest.raises(ValueError, match="its steps of the rounds is 20, here it is 30"):
        again(num_steps=90)
    with pytest.raises(ValueError, match=r"its settings is .*'rank': \[4, 4\].*'rank': \[5, 4\]"):
        again(ranks=[9])
    (tmp_path / "letters.txt").write_text("no search")
    with pytest.raises(ValueError, match=r"is not empty, and not that of a search: it has letters.txt, but no search"):
        search(shop[0], N, folder=tmp_path, **SETTINGS)
    with pytest.raises(ValueError, match=r"letters.txt is a file"):
        search(shop[0], N, folder=tmp_path / "letters.txt", **SETTINGS)
    with pytest.raises(ValueError, match=r"cannot be made: .*no/such cannot be written to"):
        search(shop[0], N, folder=tmp_path / "no" / "such" / "folder", **SETTINGS)


def test_folder_in_which_nothing_was_run_is_free(shop, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        search(shop[0], N, folder=tmp_path, **SETTINGS | {"batch_size": 0})
    short = {"models": ["ndpp"], "num_trials": 1, "num_rounds": 1, "num_steps": 10}
    assert len(search(shop[0], N, validation=shop[1], folder=tmp_path, **SETTINGS | short).table) == 1


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"models": ["dpp"]}, ValueError, r"models must be a list of some of \['ndpp', .*\], got \['dpp'\]"),
        ({"models": "ndpp"}, ValueError, "models must be a list of some of .*, got 'ndpp'"),
        ({"models": []}, ValueError, r"models must be a list of some of .*, got \[\]"),
        ({"ranks": []}, ValueError, r"ranks must be a list of ranks, got \[\]"),
        ({"ranks": 8}, ValueError, "ranks must be a list of ranks, got 8"),
        ({"ranks": [0]}, ValueError, "rank must be at least 1, got 0"),
        ({"ranks": [8, 2]}, ValueError, r"baskets: \d+ baskets have more items than the rank of 2"),
        ({"anchors": []}, ValueError, "anchors: one at least is needed, got none"),
        ({"anchors": [1.0, -1.0]}, ValueError, r"anchors\[1\] must be a finite number at least 0, got -1.0"),
        ({"spread": 0.5}, ValueError, "spread must be a finite number at least 1, got 0.5"),
        ({"num_trials": 1}, ValueError, "num_trials must be at least 2, one for each model and rank, got 1"),
        ({"num_trials": 2.5}, ValueError, "num_trials must be a Python integer, got 2.5"),
        ({"num_rounds": 0}, ValueError, "num_rounds must be at least 1, got 0"),
        ({"num_steps": 0}, ValueError, "num_steps must be at least 1, got 0"),
        ({"seconds": 0}, ValueError, "seconds must be a finite number above 0, got 0"),
        ({"seed": -1}, ValueError, "seed must be between 0 and .*, got -1"),
        ({"validation": 700}, ValueError, r"validation \(baskets, or how many\) must be between 1 and"),
        ({"validation": [[9]]}, ValueError, "validation: row 0 has item 9; items must be 0 to 7"),
        ({"alpha": 1.0}, TypeError, "alpha is no setting of a search; those of all fits may be min_size, batch_size"),
    ],
)
def test_bad_input(shop, settings, error, message):
    with pytest.raises(error, match=message):
        search(shop[0], N, **SETTINGS | settings)


def test_no_baskets():
    with pytest.raises(ValueError, match="baskets: two baskets at least are needed, got 0"):
        search([], N, **SETTINGS)
    with pytest.raises(ValueError, match="num_items must be given for baskets without names"):
        search([[0], [1]], **SETTINGS)
