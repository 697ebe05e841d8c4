"""Learning: the models' density against the papers' objective, orthogonality, checkpoints that survive, bad input."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer.util import log_density

from numpyro_ndpp import NDPP, Rejection, learning, pad_subsets
from numpyro_ndpp.checkpoints import read_arrays, write_arrays
from numpyro_ndpp.datasets import simulate_baskets
from numpyro_ndpp.learning import (
    Fit,
    basket_model,
    fit,
    item_counts,
    ndpp_prior,
    ondpp_prior,
    symmetric_prior,
    to_event_width,
)
from numpyro_ndpp.priors import directions, orthonormalize

N_ITEMS, RANK = 9, (4, 4)
STRENGTHS = {"alpha": 0.3, "beta": 0.7}


@pytest.fixture(scope="module")
def baskets():
    rng = np.random.default_rng(0)
    lists = [rng.choice(N_ITEMS - 1, size=rng.integers(1, 5), replace=False).tolist() for _ in range(40)]
    return pad_subsets(lists, N_ITEMS)  # the last item is in none


def objective(V, B, K, baskets, alpha, beta):
    """The papers' regularised mean log-likelihood, written out with dense matrices."""
    baskets = np.asarray(baskets)
    L = V @ V.T + B @ K @ B.T
    counts = np.zeros(N_ITEMS)
    total = 0.0
    for row in baskets:
        items = row[row < N_ITEMS]
        counts[items] += 1
        total += np.linalg.slogdet(L[np.ix_(items, items)])[1]
    mean = total / len(baskets) - np.linalg.slogdet(np.eye(N_ITEMS) + L)[1]
    counts = np.maximum(counts, 1)
    return mean - alpha * np.sum(np.sum(V**2, 1) / counts) - beta * np.sum(np.sum(B**2, 1) / counts)


def two_points(model, baskets, draw):
    """log density of the model and the objective at two points: differences leave no constant."""
    counts = jnp.asarray(item_counts(baskets, N_ITEMS), jnp.float64)
    return [
        (log_density(model, (baskets, counts), {}, values)[0], expected)
        for values, expected in (draw(random.key(seed)) for seed in (1, 2))
    ]


def assert_equal_up_to_a_constant(pairs, number):
    (first, one), (second, two) = pairs
    assert first - second == pytest.approx(number * (one - two), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("name", ["ndpp", "symmetric"])
def test_density_is_the_papers_objective(name, baskets):
    prior = ndpp_prior if name == "ndpp" else symmetric_prior
    strengths = STRENGTHS if name == "ndpp" else {"alpha": STRENGTHS["alpha"]}
    model = partial(basket_model, prior=partial(prior, rank=RANK, **strengths))

    def draw(key):
        keys = random.split(key, 3)
        V, B, D = (random.normal(k, s) for k, s in zip(keys, [(N_ITEMS, 4), (N_ITEMS, 4), (4, 4)], strict=True))
        values = {"V": V, "B": B, "D": D} if name == "ndpp" else {"V": V}
        B = np.asarray(B) * (name == "ndpp")
        return values, objective(np.asarray(V), B, np.asarray(D - D.T), baskets, **STRENGTHS)

    assert_equal_up_to_a_constant(two_points(model, baskets, draw), len(baskets))


def test_density_of_the_orthogonal_kernel_is_the_papers_objective(baskets):
    gamma = 0.4
    model = partial(basket_model, prior=partial(ondpp_prior, rank=RANK, gamma=gamma, **STRENGTHS))

    def draw(key):
        keys = random.split(key, 3)
        values = {
            "V_raw": random.normal(keys[0], (N_ITEMS, 4)),
            "B_raw": random.normal(keys[1], (N_ITEMS, 4)),
            "sigma": random.uniform(keys[2], (2,)) + 0.1,
        }
        # The same kernel by Householder's QR and a plain projection.
        scale = np.sqrt(item_counts(baskets, N_ITEMS) / len(baskets))[:, None]
        Q, R = np.linalg.qr(scale * np.asarray(values["B_raw"]))
        B = Q * np.sign(np.diag(R))
        V = scale * np.asarray(values["V_raw"])
        V = V - B @ (B.T @ V)
        sigma = np.asarray(values["sigma"])
        K = np.zeros((4, 4))
        K[[0, 2], [1, 3]] = sigma
        price = gamma * np.sum(np.log(1 + 2 * sigma / (sigma**2 + 1)))
        return values, objective(V, B, K - K.T, baskets, **STRENGTHS) - price

    assert_equal_up_to_a_constant(two_points(model, baskets, draw), len(baskets))


def test_anchored_prior_is_centred_on_the_items_own_directions(baskets):
    counts, number = item_counts(baskets, N_ITEMS), len(baskets)
    anchor = directions(random.key(0), N_ITEMS, 4)
    centre = np.sqrt(counts / number)[:, None] * np.asarray(anchor)
    seeded = handlers.seed(partial(symmetric_prior, counts, number, rank=RANK, alpha=2.0, anchor=anchor), 0)
    fn = handlers.trace(seeded).get_trace()["V"]["fn"]
    step = np.zeros((N_ITEMS, 4))
    step[3, 1] = 0.01
    fall = fn.log_prob(centre) - fn.log_prob(centre + step)
    assert fall == pytest.approx(2.0 * number / counts[3] * 0.01**2, rel=1e-3)  # α N ‖v - centre‖²/μ


def test_price_of_proposals_is_their_expected_number():
    counts = np.full(30, 5)
    seeded = handlers.seed(partial(ondpp_prior, counts, 50, rank=(4, 6), gamma=1.0), 0)
    values = {"V_raw": random.normal(random.key(0), (30, 4)), "B_raw": random.normal(random.key(1), (30, 6))}
    values["sigma"] = jnp.array([0.2, 1.0, 7.0])
    trace = handlers.trace(handlers.substitute(seeded, values)).get_trace()
    log_price = trace["proposals"]["fn"].log_factor / -50
    law = handlers.substitute(seeded, values)()
    assert jnp.exp(log_price) == pytest.approx(float(Rejection().expected_proposals(law)), rel=1e-5)


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
def test_basis_is_orthonormal_in_float32(condition):
    A = random.normal(random.key(0), (300, 12)) * jnp.geomspace(1, 1 / condition, 12)
    Q = orthonormalize(A.astype(jnp.float32))
    assert Q.dtype == jnp.float32
    assert jnp.abs(Q.T @ Q - jnp.eye(12)).max() < 1e-5


@pytest.fixture(scope="module")
def shop():
    return simulate_baskets(400)


SMALL = {"rank": (4, 4), "num_steps": 40, "evaluate_every": 10, "batch_size": 50, "progress_bar": False}


def test_orthogonality_holds_at_every_step(shop, monkeypatch):
    kernels, judge = [], learning._Learner.judge

    def judge_and_keep(learner, state, data, held_out):
        kernels.append(learner.kernel(state, data))
        return judge(learner, state, data, held_out)

    monkeypatch.setattr(learning._Learner, "judge", judge_and_keep)
    fit(shop.baskets, 12, model="ondpp", **SMALL | {"evaluate_every": 1, "patience": 0})
    assert len(kernels) == 40
    for V, B, D in kernels:
        assert V.dtype == np.float32
        assert np.abs(B.T @ B - np.eye(4)).max() < 1e-5
        assert np.abs(V.T @ B).max() < 1e-5
        assert (D[[0, 2], [1, 3]] > 0).all()
        assert np.count_nonzero(D) == 2


def test_orthogonality_holds_in_float32_at_the_papers_rank():
    counts = np.random.default_rng(0).geometric(0.01, 4000)
    values = {"V_raw": directions(random.key(0), 4000, 100), "B_raw": directions(random.key(1), 4000, 100)}
    values["sigma"] = jnp.ones(50, jnp.float32)
    law = handlers.substitute(handlers.seed(partial(ondpp_prior, counts, 20_000, rank=(100, 100)), 0), values)()
    assert law.B.dtype == jnp.float32
    assert jnp.abs(law.B.T @ law.B - jnp.eye(100)).max() < 1e-5
    assert jnp.abs(law.V.T @ law.B).max() < 1e-5


def test_fit_learns_complements_and_substitutes(shop):
    many = simulate_baskets(3000)
    settings = {"rank": (12, 6), "alpha": 1.0, "beta": 1.0, "num_steps": 400, "progress_bar": False}
    law = fit(many.baskets, 12, **settings).distribution()
    test = pad_subsets(simulate_baskets(2000, seed=5).baskets, 12)
    best, ours = many.law.log_prob(test).mean(), law.log_prob(test).mean()
    share = item_counts(pad_subsets(many.baskets, 12), 12) / 3000
    held = jnp.zeros((len(test), 13)).at[jnp.arange(len(test))[:, None], test].set(1.0)[:, :12]
    independent = jnp.sum(held * jnp.log(share) + (1 - held) * jnp.log1p(-share), axis=1).mean()
    assert best > ours > independent + 0.8 * (best - independent)
    pair = jnp.exp(law.marginal_log_prob(jnp.array(many.complements + many.substitutes)))
    single = law.inclusion_probs()
    lift = pair / jnp.array([single[a] * single[b] for a, b in many.complements + many.substitutes])
    assert (lift[:3] > 1).all()
    assert (lift[3:] < 1).all()


def test_best_parameters_are_kept_and_the_run_stops_early(shop):
    held_out = simulate_baskets(60, seed=3).baskets
    settings = SMALL | {"num_steps": 400, "learning_rate": 0.5, "patience": 3, "anchor": 0, "alpha": 0.01}
    result = fit(shop.baskets[:40], 12, validation=held_out, **settings)
    history = result.history
    best = int(np.argmax(history["validation"]))
    assert history["step"][-1] < 400
    assert len(history["step"]) == best + 1 + 3
    again = result.distribution().log_prob(pad_subsets(held_out, 12)).mean()
    assert again == pytest.approx(history["validation"][best], rel=1e-4)


@pytest.mark.parametrize("anchor", [0.3, 1.0])
def test_a_strong_prior_holds_features_at_the_anchor(shop, anchor):
    """Their lengths are ``anchor`` times those that they have if items are bought independently."""
    result = fit(shop.baskets, 12, anchor=anchor, alpha=1e7, **SMALL | {"num_steps": 200, "patience": 0})
    counts = item_counts(pad_subsets(shop.baskets, 12), 12)
    lengths = np.linalg.norm(result.V, axis=1) / np.sqrt(counts / len(shop.baskets))
    assert lengths == pytest.approx(np.full(12, anchor), rel=0.1)


def test_saved_and_loaded(shop, tmp_path):
    result = fit(shop.baskets, np.int64(12), seed=np.int32(0), alpha=np.float32(50), **SMALL | {"rank": np.array(4)})
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


def test_interrupted_run_ends_where_an_uninterrupted_one_does(shop, tmp_path, monkeypatch):
    settings = SMALL | {"checkpoint_every": 10}
    whole = fit(shop.baskets, 12, **settings)
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
    monkeypatch.setattr(learning._Learner, "judge", lambda *_: (float(next(falling)), 0.0))
    settings = SMALL | {"checkpoint": tmp_path / "run.npz", "checkpoint_every": 10, "patience": 3}
    write = learning._write_checkpoint

    def write_and_stop(path, settings, state, progress):
        write(path, settings, state, progress)
        if progress.step == 20:
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


@pytest.mark.parametrize("model", ["ndpp", "ondpp", "symmetric"])
def test_diverging_fit_says_so(shop, model):
    baskets = [basket for basket in shop.baskets if basket]  # an empty one alone would show it
    with pytest.raises(FloatingPointError, match="not a number after 10 steps; a lower learning_rate than 1e\\+30"):
        fit(baskets, 12, model=model, **SMALL | {"rank": (10, 4), "learning_rate": 1e30})


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


def test_prior_in_a_model_of_its_own(shop):
    """As the tutorial has it: baskets padded to their own width, a plate with subsampling, SVI; a random strength."""
    baskets = pad_subsets([basket for basket in shop.baskets if len(basket) <= 9], 12)
    counts = item_counts(baskets, 12)

    def model(baskets, counts):
        alpha = numpyro.sample("alpha", dist.LogNormal(0.0, 1.0))
        law = ndpp_prior(counts, len(baskets), rank=(5, 4), alpha=alpha)
        with numpyro.plate("baskets", len(baskets), subsample_size=20):
            batch = numpyro.subsample(baskets, event_dim=1)
            numpyro.sample("basket", law, obs=to_event_width(batch, law))

    start = {
        "V": random.normal(random.key(1), (12, 5)),
        "B": random.normal(random.key(2), (12, 4)),
        "D": np.eye(4, k=1),
    }
    guide = numpyro.infer.autoguide.AutoDelta(model, init_loc_fn=numpyro.infer.init_to_value(values=start))
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.01), numpyro.infer.Trace_ELBO())
    result = svi.run(random.key(0), 3, baskets, counts, progress_bar=False)
    assert jnp.isfinite(result.losses).all()


@pytest.mark.filterwarnings("ignore:Out-of-support values")
def test_baskets_too_large_for_the_event_are_impossible():
    law = NDPP(jnp.eye(4, 2), jnp.zeros((4, 0)), jnp.zeros((0, 0)))
    rows = to_event_width(jnp.array([[0, 1, 4, 4], [0, 1, 2, 4]]), law)
    assert rows.tolist() == [[0, 1], [-1, -1]]
    large = NDPP(jnp.ones((300, 3)), jnp.zeros((300, 0)), jnp.zeros((0, 0)))
    for dtype in (np.uint8, np.uint32, np.uint64):
        widened = to_event_width(np.array([[1, 44]], dtype), large)
        assert widened.tolist() == [[1, 44, 300]]
        assert jnp.issubdtype(widened.dtype, jnp.signedinteger)
    assert law.log_prob(rows)[1] == -jnp.inf


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


def test_full_disk_leaves_the_checkpoint_as_it_was(tmp_path):
    program = """
        import resource, sys
        import numpy as np
        from numpyro_ndpp.checkpoints import read_arrays, write_arrays
        path = sys.argv[1]
        write_arrays(path, {"a": np.arange(10)}, {"step": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            write_arrays(path, {"a": np.zeros(100_000)}, {"step": 2})
        except OSError as error:
            assert path in str(error), error
        else:
            raise AssertionError("no error")
        arrays, settings = read_arrays(path, ["a"])
        assert settings == {"step": 1} and (arrays["a"] == np.arange(10)).all()
    """
    path = tmp_path / "run.npz"
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)], check=True)
    assert os.listdir(tmp_path) == ["run.npz"]


def test_two_writers_do_no_damage(tmp_path):
    """Each writes a part of its own: whoever reads meanwhile finds a whole file, and nothing is left over."""
    path, size = tmp_path / "run.npz", 50_000
    write_arrays(path, {"a": np.zeros(size)}, {})

    def write(value):
        for _ in range(30):
            write_arrays(path, {"a": np.full(size, value)}, {})

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, value) for value in (1.0, 2.0)]
        while not all(writer.done() for writer in writers):
            values = read_arrays(path, ["a"])[0]["a"]
            assert (values == values[0]).all()
        for writer in writers:
            writer.result()
    assert os.listdir(tmp_path) == ["run.npz"]


def test_what_killed_writers_left_is_removed_after_a_while(tmp_path):
    names = ("00000000.part", "11111111.part", "2019-backup.part", "npz.00000000.part")
    old, young, backup, other = (tmp_path / f"run.npz.{name}" for name in names)
    for part in (old, young, backup, other):
        part.write_bytes(b"half")
    for part in (old, backup, other):
        os.utime(part, (0, 0))
    write_arrays(tmp_path / "run.npz", {"a": np.zeros(3)}, {})
    assert sorted(os.listdir(tmp_path)) == sorted(["run.npz", young.name, backup.name, other.name])


def test_link_to_a_checkpoint_stays_one(tmp_path):
    (tmp_path / "far").mkdir()
    link = tmp_path / "run.npz"
    link.symlink_to(tmp_path / "far" / "run.npz")
    write_arrays(link, {"a": np.zeros(3)}, {})
    assert link.is_symlink()
    assert (tmp_path / "far" / "run.npz").is_file()


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
        ([[0], [0, 1, 2]], {"rank": 1}, "1 baskets have more items than the rank of 1 .*first is basket 1 with 3"),
        ([[0], [1]], {"model": "dpp"}, "model must be one of .* got 'dpp'"),
        ([[0], [1]], {"rank": (0, 4)}, "rank must have one column of V at least"),
        ([[0], [1]], {"model": "ondpp", "rank": (2, 6)}, "fewer columns than there are items, .* got 6 for 5"),
        ([[0], [1]], {"model": "ondpp", "rank": (2, 5)}, "fewer columns than there are items, .* got 5 for 5"),
        ([[0], [1]], {"num_steps": 1.5}, "num_steps must be an integer, got 1.5"),
        ([[0], [1]], {"checkpoint": "no/such/folder/run.npz"}, "is not a folder that can be written to"),
        ([[0], [1]], {"max_proposals": 5}, "max_proposals is no setting of model='ndpp'"),
        ([[0], [1]], {"beta": 1.0, "model": "symmetric"}, "beta is no setting of model='symmetric'"),
        ([[0], [1]], {"max_proposals": 0.5, "model": "ondpp"}, "max_proposals must be one at least, got 0.5"),
        ([[0], [1]], {"rank": "two"}, "rank must be a number of columns or two"),
        ([[0], [1]], {"model": "ondpp", "rank": (2, 3)}, "even number of columns in B, got 3"),
        ([[0], [1]], {"validation": 2}, "validation must be 1 to 1 of the 2 baskets, got 2"),
        ([[0], [1]], {"validation": []}, "validation: one basket at least"),
        ([[0], [1]], {"validation": [[9]]}, "validation: row 0 has item 9; items must be 0 to 4"),
        ([[0], [0, 1, 2, 3]], {"rank": (1, 3)}, "1 baskets have more items than the rank of 3"),
        ([[0], [1]], {"num_steps": np.array(1.5)}, "num_steps must be an integer, got"),
        ([[0], [1]], {"alpha": "x"}, "alpha must be a number, got 'x'"),
        ([[0], [1]], {"seed": -1}, "seed must not be negative, got -1"),
        ([[0], [1]], {"seed": 2**64}, r"seed must be below 2\*\*63, got 18446744073709551616"),
        ([[0], [], [7]], {}, "baskets: row 2 has item 7; items must be"),
        ([[0], [1]], {"alpha": 0.0}, "alpha must be positive, got 0.0"),
        ([[0], [1]], {"learning_rate": -1.0}, "learning_rate must be positive"),
        ([[0], [1]], {"gamma": -1.0, "model": "ondpp"}, "gamma must not be negative, got -1.0"),
        ([[0], [1]], {"anchor": -0.5}, "anchor must not be negative, got -0.5"),
        ([[0], [1]], {"anchor": np.inf}, "anchor must be finite, got inf"),
        ([[0], [1]], {"validation": 0.1}, "validation must be baskets, or how many of them to hold out, got 0.1"),
        ([0, 1], {}, "baskets: row 0 must be a list of items, got 0"),
        (np.zeros(3, int), {}, "must be lists of items or padded subsets"),
    ],
)
def test_bad_input(baskets, settings, message):
    with pytest.raises(ValueError, match=message):
        fit(baskets, 5, **{"rank": 2, "progress_bar": False} | settings)


def test_counts_of_zero_are_refused():
    for prior in (ndpp_prior, ondpp_prior, symmetric_prior):
        with pytest.raises(ValueError, match="counts must be positive: item_counts has one"):
            handlers.seed(prior, 0)(np.array([2, 0, 1]), 3, rank=(2, 2))


def test_fits_without_64_bits_give_float32(shop, without_x64):
    result = fit(shop.baskets, 12, **SMALL)
    assert result.V.dtype == result.B.dtype == result.D.dtype == np.float32


@pytest.mark.parametrize(
    ("prior", "sites", "alpha"),
    [
        (ndpp_prior, "V B D", np.array([1.0, 100.0])),
        (symmetric_prior, "V", np.array([1.0, 100.0])),
        (ondpp_prior, "V_raw B_raw sigma", 3.0),
    ],
)
def test_priors_within_a_plate_are_those_of_each_kernel(prior, sites, alpha):
    counts, shapes = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), {"V": (5, 2), "B": (5, 2), "D": (2, 2), "sigma": (1,)}
    keys = random.split(random.key(0), 3)
    # As many kernels as V has columns: a strength that went along the wrong axis would fit too.
    values = {
        site: abs(random.normal(key, (2, *shapes[site.removesuffix("_raw")])))
        for site, key in zip(sites.split(), keys, strict=False)
    }

    def shops():
        with numpyro.plate("shops", 2):
            return prior(counts, 7, rank=(2, 2), alpha=alpha)

    one_by_one = [
        handlers.substitute(
            partial(prior, counts, 7, rank=(2, 2), alpha=float(strength)), {k: v[i] for k, v in values.items()}
        )
        for i, strength in enumerate(np.broadcast_to(alpha, 2))
    ]
    law = handlers.seed(handlers.substitute(shops, values), 0)()
    assert law.batch_shape == (2,)
    subset = to_event_width(np.array([0, 3]), law)
    for i, single in enumerate(one_by_one):
        np.testing.assert_allclose(law.log_prob(subset)[i], handlers.seed(single, 0)().log_prob(subset), rtol=1e-10)
    together = log_density(shops, (), {}, values)[0]
    np.testing.assert_allclose(together, sum(log_density(single, (), {}, {})[0] for single in one_by_one), rtol=1e-10)


def test_counts_of_items_out_of_range_are_refused():
    for baskets in ([[0, 9]], [[-1, 2]]):
        with pytest.raises(ValueError, match=r"baskets has item -?\d; items must be 0 to 2 \(3 is padding\)"):
            item_counts(np.array(baskets), 3)
    with pytest.raises(TypeError, match="baskets must hold integer item numbers, got float64"):
        item_counts(np.array([[0.5, 2.7]]), 3)
    assert item_counts(np.zeros((0, 2)), 3).tolist() == [1, 1, 1]


def test_priors_have_one_number_for_each_item():
    for prior in (ndpp_prior, ondpp_prior, symmetric_prior):
        with pytest.raises(ValueError, match=r"counts must be one number for each item.* got shapes \(2, 2\)"):
            handlers.seed(prior, 0)(np.ones((2, 2)), 3, rank=(2, 2))
    with pytest.raises(ValueError, match="alpha, beta and gamma must be one number each"):
        handlers.seed(ondpp_prior, 0)(np.ones(4), 3, rank=(2, 2), alpha=np.ones(2))


def test_no_array_of_all_items_is_copied_often(without_x64):
    """Bytes at once of a step: a few times those of the features, whatever the number of items."""
    n, rank = 20_000, (16, 16)
    settings = {"model": "ndpp", "rank": rank, "num_items": n, "alpha": 1.0, "beta": 1.0, "anchor": 1.0}
    settings |= {"batch_size": 50, "num_steps": 10, "learning_rate": 0.1, "seed": 0}
    baskets = np.full((100, 8), n, np.int32)
    baskets[:, 0] = np.arange(100)
    learner, data = learning._Learner(settings, len(baskets)), learning._training_data(settings, baskets)
    memory = learner._advance.lower(learner.start(data), data, 2).compile().memory_analysis()
    features = 4 * n * sum(rank)
    assert memory.alias_size_in_bytes > 3 * features  # the features and Adam's two moments are written over
    # four: V and B side by side, the gradients of the normaliser and of the minors, a copy that XLA makes
    assert memory.temp_size_in_bytes < 4.5 * features


@pytest.mark.slow
def test_models_run_under_nuts():
    baskets = pad_subsets(simulate_baskets(50).baskets, 12, 8)
    model = partial(basket_model, prior=partial(ndpp_prior, rank=(4, 4), alpha=1.0, beta=1.0))
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model, max_tree_depth=3), num_warmup=3, num_samples=3, progress_bar=False
    )
    mcmc.run(random.key(0), baskets, item_counts(baskets, 12))
    assert jnp.isfinite(mcmc.get_samples()["V"]).all()
