"""Learning: kernels that are learned, orthogonality, checkpoints that survive, bad input."""

import signal
import subprocess
import sys
import textwrap
import time

import jax
import numpy as np
import pytest

from numpyro_ndpp import NDPP, Rejection, learning, pad_subsets
from numpyro_ndpp.checkpoints import read_arrays
from numpyro_ndpp.datasets import simulate_baskets
from numpyro_ndpp.learning import Fit, fit, item_counts

# Fits of these settings, and of as many baskets, share what is compiled.
SMALL = {"rank": (4, 4), "num_steps": 40, "evaluate_every": 10, "batch_size": 50, "progress_bar": False}


@pytest.fixture(scope="module")
def many():
    return simulate_baskets(3000)


@pytest.fixture(scope="module")
def shop(many):
    return many._replace(baskets=many.baskets[:400])


@pytest.fixture(scope="module")
def small(shop):
    """A fit that tests only look at."""
    return fit(shop.baskets, 12, **SMALL)


def test_orthogonality_holds_at_every_step(shop, monkeypatch):
    kernels, judge = [], learning.Learner.judge

    def judge_and_keep(learner, state, data, held_out):
        kernels.append(learner.kernel(state, data))
        return judge(learner, state, data, held_out)

    monkeypatch.setattr(learning.Learner, "judge", judge_and_keep)
    fit(shop.baskets, 12, model="ondpp", **SMALL | {"evaluate_every": 1, "patience": 0})
    assert len(kernels) == 40
    for V, B, D in kernels:
        assert V.dtype == np.float32
        assert np.abs(B.T @ B - np.eye(4)).max() < 1e-5
        assert np.abs(V.T @ B).max() < 1e-5
        assert (D[[0, 2], [1, 3]] > 0).all()
        assert np.count_nonzero(D) == 2


@pytest.mark.slow
def test_fit_learns_complements_and_substitutes(many):
    settings = {"rank": (12, 6), "alpha": 1.0, "beta": 1.0, "num_steps": 200, "progress_bar": False}
    result = fit(many.baskets, 12, **settings)
    # In the type of the true law, so that both go through the same programs.
    law = NDPP(*(part.astype(float) for part in (result.V, result.B, result.D)), sampler=many.distribution.sampler)
    test = pad_subsets(simulate_baskets(3000, seed=5).baskets[:2000], 12)
    mean = jax.jit(lambda law: law.log_prob(test).mean())
    best, ours = mean(many.distribution), mean(law)
    share = item_counts(pad_subsets(many.baskets, 12), 12) / 3000
    held = np.zeros((len(test), 13))
    np.put_along_axis(held, np.asarray(test), 1.0, axis=1)
    held = held[:, :12]
    independent = np.sum(held * np.log(share) + (1 - held) * np.log1p(-share), axis=1).mean()
    assert best > ours > independent + 0.8 * (best - independent)
    pairs = np.array(many.complements + many.substitutes)
    log_pair, single = jax.jit(lambda law: (law.marginal_log_prob(pairs), law.inclusion_probs()))(law)
    lift = np.exp(log_pair) / np.asarray(single)[pairs].prod(axis=1)
    assert (lift[:3] > 1).all()
    assert (lift[3:] < 1).all()


def test_best_parameters_are_kept_and_the_run_stops_early(shop):
    width = max(map(len, shop.baskets))
    held_out = pad_subsets(shop.baskets[360:], 12, width)
    settings = SMALL | {"num_steps": 400, "learning_rate": 0.5, "patience": 3, "anchor": 0, "alpha": 0.01}
    # Forty baskets, over and over: few enough to learn by heart.
    result = fit(pad_subsets(9 * shop.baskets[:40], 12, width), 12, validation=held_out, **settings)
    history = result.history
    best = int(np.argmax(history["validation"]))
    assert history["step"][-1] < 400
    assert len(history["step"]) == best + 1 + 3
    again = jax.jit(lambda law: law.log_prob(held_out).mean())(result.distribution())
    assert again == pytest.approx(history["validation"][best], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("anchor", [0.3, 1.0])
def test_a_strong_prior_holds_features_at_the_anchor(shop, anchor):
    """Their lengths are ``anchor`` times those that they have if items are bought independently.

    Judged once, at the end, and after as many steps as it takes to come there from any start.
    """
    settings = SMALL | {"num_steps": 1000, "evaluate_every": 1000, "patience": 0}
    result = fit(shop.baskets, 12, anchor=anchor, alpha=1e7, **settings)
    counts = item_counts(pad_subsets(shop.baskets, 12), 12)
    lengths = np.linalg.norm(result.V, axis=1) / np.sqrt(counts / len(shop.baskets))
    assert lengths == pytest.approx(np.full(12, anchor), rel=0.1)


def test_saved_and_loaded(shop, tmp_path):
    result = fit(shop.baskets, np.int64(12), seed=np.int32(0), alpha=np.float32(50), **SMALL | {"rank": np.array(8)})
    result.save(tmp_path / "kernel.npz")
    loaded = Fit.load(tmp_path / "kernel.npz")
    assert loaded.settings == result.settings
    for name in ("V", "B", "D"):
        assert (getattr(loaded, name) == getattr(result, name)).all()
    np.testing.assert_equal(loaded.history, result.history)
    assert loaded.distribution().rank == 8
    (tmp_path / "other").write_text("no kernel")
    with pytest.raises(ValueError, match="other is not a file that numpyro_ndpp saved"):
        Fit.load(tmp_path / "other")


def test_interrupted_run_ends_where_an_uninterrupted_one_does(shop, small, tmp_path, monkeypatch):
    settings, whole = SMALL | {"checkpoint_every": 10}, small
    path = tmp_path / "run.npz"

    class Interrupted(Exception):
        pass

    write = learning._write_checkpoint

    def write_and_stop(*arguments):
        write(*arguments)
        raise Interrupted

    for _ in range(2):  # interrupted after one more checkpoint each time
        with monkeypatch.context() as patch:
            patch.setattr(learning, "_write_checkpoint", write_and_stop)
            with pytest.raises(Interrupted):
                fit(shop.baskets, 12, checkpoint=path, **settings)
    seconds = read_arrays(path, ())[0]["history_seconds"]
    resumed = fit(shop.baskets, 12, checkpoint=path, **settings)
    assert (resumed.history["seconds"][:2] == seconds).all()  # it did go on, and did not start again
    for name in ("V", "B", "D"):
        assert (getattr(resumed, name) == getattr(whole, name)).all()
    assert (resumed.history["validation"] == whole.history["validation"]).all()
    finished = fit(shop.baskets, 12, checkpoint=path, **settings)
    assert (finished.V == whole.V).all()


def test_patience_goes_on_where_it_was(shop, tmp_path, monkeypatch):
    falling = iter(range(0, -100, -1))
    monkeypatch.setattr(learning.Learner, "judge", lambda *_: (float(next(falling)), 0.0))
    settings = SMALL | {"checkpoint": tmp_path / "run.npz", "checkpoint_every": 10, "patience": 3}
    write = learning._write_checkpoint

    def write_and_stop(path, result, *others):
        write(path, result, *others)
        if result.history["step"][-1] == 20:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(learning, "_write_checkpoint", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            fit(shop.baskets, 12, **settings | {"num_steps": 90})
    resumed = fit(shop.baskets, 12, **settings | {"num_steps": 90})
    assert resumed.history["step"].tolist() == [10, 20, 30, 40]  # the first is the best, and three follow


def test_hopeless_fit_says_so():
    kernel = np.eye(3, 2), np.zeros((3, 0)), np.zeros((0, 0))  # the last item is impossible
    history = {"validation": np.array([-np.inf]), "loss": np.array([1.0]), "price": np.zeros(1)}
    with pytest.warns(UserWarning, match="1 of the 2 held-out baskets have probability zero"):
        learning._warn_of_failures(Fit(*kernel, history, {}), np.array([[2], [0]]))
    # likely baskets at too high a price, then baskets that are impossible
    history = {"validation": np.array([-9, -np.inf]), "loss": np.ones(2), "price": np.array([np.inf, 0])}
    with pytest.warns(UserWarning, match="with at most max_proposals=7.0 expected proposals was met that allows"):
        learning._warn_of_failures(Fit(*kernel, history, {"max_proposals": 7.0}), np.array([[2], [0]]))
    history = {"validation": np.array([-1.0]), "loss": np.array([np.inf]), "price": np.zeros(1)}
    with pytest.warns(UserWarning, match="some baskets to learn from had probability zero"):
        learning._warn_of_failures(Fit(*kernel, history, {}), np.array([[1], [0]]))


@pytest.mark.parametrize("model", ["ndpp", "ondpp", pytest.param("symmetric", marks=pytest.mark.slow)])
def test_diverging_fit_says_so(shop, model):
    baskets = [basket or [0] for basket in shop.baskets]  # an empty one alone would show it
    rank = 12 if model == "symmetric" else SMALL["rank"]
    with pytest.raises(FloatingPointError, match="not a number after 10 steps; a lower learning_rate than 1e\\+30"):
        fit(baskets, 12, model=model, **SMALL | {"rank": rank, "learning_rate": 1e30})


def test_strengths_are_those_of_the_model(shop):
    settings = [fit(shop.baskets, 12, model=model, **SMALL | {"num_steps": 1}).settings for model in ("ndpp", "ondpp")]
    assert [each["alpha"] for each in settings] == [50.0, 50.0]
    assert [each["beta"] for each in settings] == [30.0, 0.01]
    assert "gamma" not in settings[0]
    assert settings[1]["gamma"] == 0.5


def test_limit_on_proposals(shop):
    settings = SMALL | {"learning_rate": 0.1, "evaluate_every": 1, "num_steps": 20}
    result = fit(shop.baskets, 12, model="ondpp", gamma=2.0, max_proposals=2.0, **settings)
    assert np.isinf(result.history["price"]).any()  # some of the kernels that were met need more
    assert float(Rejection().expected_proposals(result.distribution())) <= 2.0
    with pytest.warns(UserWarning, match="no kernel with at most max_proposals=1.0") as warned:
        fit(shop.baskets, 12, model="ondpp", max_proposals=1.0, **SMALL | {"num_steps": 10})
    assert warned[0].filename == __file__


@pytest.mark.slow
def test_killed_run_ends_where_an_uninterrupted_one_does(tmp_path):
    program = """
        import sys
        from numpyro_ndpp.datasets import simulate_baskets
        from numpyro_ndpp.learning import fit
        result = fit(simulate_baskets(400).baskets, 12, rank=(4, 4), num_steps=3000, evaluate_every=10, patience=0,
                     batch_size=50, progress_bar=False, checkpoint=sys.argv[1], checkpoint_every=10)
        result.save(sys.argv[2])
    """

    def start(checkpoint, output):
        command = [sys.executable, "-c", textwrap.dedent(program), str(checkpoint), str(output)]
        return subprocess.Popen(command)

    assert start(tmp_path / "whole.npz", tmp_path / "whole").wait(600) == 0
    path = tmp_path / "killed.npz"
    for step in (10, 700, 2000):  # killed once each of these is behind, wherever it is then
        process = start(path, tmp_path / "killed")
        while not path.exists() or read_arrays(path, ())[1]["step"] < step:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "killed").exists()
    seconds = read_arrays(path, ())[0]["history_seconds"]
    assert start(path, tmp_path / "killed").wait(600) == 0
    whole, killed = Fit.load(tmp_path / "whole"), Fit.load(tmp_path / "killed")
    assert (killed.history["seconds"][: len(seconds)] == seconds).all()  # it did go on
    for name in ("V", "B", "D"):
        assert (getattr(killed, name) == getattr(whole, name)).all()


def test_checkpoint_of_another_run_is_refused(shop, tmp_path):
    path = tmp_path / "run.npz"
    fit(shop.baskets, 12, checkpoint=path, **SMALL | {"num_steps": 10})
    with pytest.raises(ValueError, match=r"checkpoint .*run.npz is of another run: its num_steps is 10, here it is 20"):
        fit(shop.baskets, 12, checkpoint=path, **SMALL | {"num_steps": 20})
    with pytest.raises(ValueError, match="its model is 'ndpp', here it is 'symmetric'"):
        fit(shop.baskets, 12, model="symmetric", checkpoint=path, **SMALL | {"num_steps": 10, "rank": 12})
    with pytest.raises(ValueError, match="its data is"):
        fit(shop.baskets[1:], 12, checkpoint=path, **SMALL | {"num_steps": 10})
    with jax.enable_x64(False), pytest.raises(ValueError, match="its default_type is 'float64'"):
        fit(shop.baskets, 12, checkpoint=path, **SMALL | {"num_steps": 10})
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"run.npz is not a file that numpyro_ndpp saved"):
        fit(shop.baskets, 12, checkpoint=path, **SMALL | {"num_steps": 10})


@pytest.mark.parametrize(
    ("baskets", "settings", "message"),
    [
        ([], {}, "two baskets at least are needed, got 0"),
        ([[0]], {}, "two baskets at least are needed, got 1"),
        ([[0], [7]], {}, "baskets: row 1 has item 7; items must be 0 to 4"),
        ([[0], [1, 1]], {}, "row 1 has item 1 more than once"),
        ([[0], [0, 1, 2]], {"rank": 1}, "1 baskets have more items than the rank of 1, .*first is basket 1 with 3"),
        ([[0], [1]], {"model": "dpp"}, "model must be one of .* got 'dpp'"),
        ([[0], [1]], {"rank": (0, 4)}, r"rank \(columns of V\) must be at least 1, got 0"),
        (
            [[0], [1]],
            {"model": "ondpp", "rank": (2, 6)},
            r"rank \(columns of B\) must be between 0 and num_items - 1 = 4, got 6",
        ),
        (
            [[0], [1]],
            {"model": "ondpp", "rank": (2, 5)},
            r"rank \(columns of B\) must be between 0 and num_items - 1 = 4, got 5",
        ),
        ([[0], [1]], {"num_steps": 1.5}, "num_steps must be a Python integer, got 1.5"),
        ([[0], [1]], {"checkpoint": "no/such/folder/run.npz"}, "is not a folder that can be written to"),
        ([[0], [1]], {"max_proposals": 5}, "max_proposals is no setting of model='ndpp'"),
        ([[0], [1]], {"beta": 1.0, "model": "symmetric"}, "beta is no setting of model='symmetric'"),
        (
            [[0], [1]],
            {"max_proposals": 0.5, "model": "ondpp"},
            "max_proposals must be a finite number at least 1, got 0.5",
        ),
        ([[0], [1]], {"rank": "two"}, "rank must be a Python integer, got 'two'"),
        (
            [[0], [1]],
            {"rank": (2, 3, 4)},
            r"rank must be one number or two, the columns of V and of B, got \(2, 3, 4\)",
        ),
        ([[0], [1]], {"patience": True}, "patience must be a Python integer, got True"),
        ([[0], [1]], {"model": "ondpp", "rank": (2, 3)}, "even number of columns in B, got 3"),
        (
            [[0], [1]],
            {"validation": 2},
            r"validation \(baskets, or how many\) must be between 1 and all baskets but one = 1, got 2",
        ),
        ([[0], [1]], {"validation": []}, "validation: one basket at least"),
        ([[0], [1]], {"validation": [[9]]}, "validation: row 0 has item 9; items must be 0 to 4"),
        ([[0], [0, 1, 2, 3]], {"rank": (1, 3)}, "1 baskets have more items than the rank of 3"),
        ([[0], [1]], {"num_steps": np.array(1.5)}, "num_steps must be a Python integer, got"),
        ([[0], [1]], {"alpha": "x"}, "alpha must be a finite number above 0, got 'x'"),
        ([[0], [1]], {"seed": -1}, "seed must be between 0 and .*, got -1"),
        (
            [[0], [1]],
            {"seed": 2**64},
            r"seed must be between 0 and 2\*\*63 - 1 = 9223372036854775807, got 18446744073709551616",
        ),
        ([[0], [], [7]], {}, "baskets: row 2 has item 7; items must be"),
        ([[0], [1]], {"alpha": 0.0}, "alpha must be a finite number above 0, got 0.0"),
        ([[0], [1]], {"learning_rate": -1.0}, "learning_rate must be a finite number above 0, got -1.0"),
        ([[0], [1]], {"gamma": -1.0, "model": "ondpp"}, "gamma must be a finite number at least 0, got -1.0"),
        ([[0], [1]], {"anchor": -0.5}, "anchor must be a finite number at least 0, got -0.5"),
        ([[0], [1]], {"anchor": np.inf}, "anchor must be a finite number at least 0, got inf"),
        ([[0], [1]], {"validation": 0.1}, r"validation \(baskets, or how many\) must be a Python integer, got 0.1"),
        ([0, 1], {}, "baskets: row 0 must be a list of items, got 0"),
        (np.zeros(3, int), {}, "must be lists of items or padded subsets"),
    ],
)
def test_bad_input(baskets, settings, message):
    with pytest.raises(ValueError, match=message):
        fit(baskets, 5, **{"rank": 2, "progress_bar": False} | settings)


def test_fits_without_64_bits_give_float32(shop, without_x64):
    result = fit(shop.baskets, 12, **SMALL)
    assert result.V.dtype == result.B.dtype == result.D.dtype == np.float32


@pytest.mark.slow
def test_no_array_of_all_items_is_copied_often(without_x64):
    """Bytes at once of a step: a few times those of the features, whatever the number of items."""
    n, rank = 20_000, (16, 16)
    settings = {"model": "ndpp", "rank": rank, "num_items": n, "alpha": 1.0, "beta": 1.0, "anchor": 1.0}
    settings |= {"batch_size": 50, "num_steps": 10, "learning_rate": 0.1, "seed": 0}
    baskets = np.full((100, 8), n, np.int32)
    baskets[:, 0] = np.arange(100)
    learner, data = learning.Learner(settings, len(baskets)), learning.training_data(settings, baskets)
    steps = learner.programs.advance.lower(learner.shapes(), data, learner.numbers, 2)
    memory = steps.compile().memory_analysis()
    features = 4 * n * sum(rank)
    assert memory.alias_size_in_bytes > 3 * features  # the features and Adam's two moments are written over
    # four: V and B side by side, the gradients of the normaliser and of the minors, a copy that XLA makes
    assert memory.temp_size_in_bytes < 4.5 * features


@pytest.mark.parametrize("model", ["ndpp", "ondpp", "symmetric"])
def test_no_key_is_used_twice(model):
    """Neither for two parts of the start nor for the start and the minibatches."""
    key = jax.random.key(0)
    kind = learning.MODELS[model]
    with jax.debug_key_reuse(True):
        start = jax.jit(lambda key: kind.start(key, jax.numpy.ones((6, 4)), 4))(key)
    assert set(start) <= set(kind.sites)


@pytest.mark.parametrize("model", ["ndpp", "ondpp", "symmetric"])
def test_features_start_at_the_centre_of_their_prior(model):
    settings = {"model": model, "rank": (4, 2), "num_items": 6, "anchor": 0.7, "batch_size": 2, "num_steps": 10}
    settings |= {"learning_rate": 0.1, "seed": 3} | learning.MODELS[model].strengths
    baskets = np.array([[0, 1], [0, 5]])
    learner, data = learning.Learner(settings, len(baskets)), learning.training_data(settings, baskets)
    V, B, _ = learner.kernel(learner.start(), data)
    centre = np.sqrt(np.asarray(data[1]) / len(baskets))[:, None] * np.asarray(data[2])
    if model == "ondpp":
        centre = centre - B @ (B.T @ centre)
    np.testing.assert_allclose(V, centre, atol=1e-6)
