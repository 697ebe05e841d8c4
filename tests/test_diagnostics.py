"""Chains as ArviZ data and the table that judges them: against ArviZ's own numbers, and with faults planted."""

import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax import random
from kernels import PARTS, N, enumerated_law
from numpyro.diagnostics import gelman_rubin
from numpyro.infer import HMC, MCMC, HMCGibbs, Predictive

from numpyro_ndpp import (
    KNDPP,
    NDPP,
    Cholesky,
    ConvergenceWarning,
    SubsetGibbs,
    chains_to_arviz,
    mixing_time,
    plot_chains,
    plot_inclusion,
    plot_kernel,
    plot_psrf,
    run_chains,
    summarize_chains,
    to_multihot,
)
from numpyro_ndpp.chains import _run_block
from numpyro_ndpp.diagnostics import running_psrf
from numpyro_ndpp.plots import pair_correlations

NOTHING = np.zeros((N, 4)), np.zeros((4, 4))
LAW = KNDPP(np.eye(N), *NOTHING, k=2)  # all pairs are equally likely


def chains(*pairs, num_draws=400, seed=0):
    """Chains of pairs of items, each drawn uniformly from its own list: ArviZ data of the law of all pairs."""
    rng = np.random.default_rng(seed)
    subsets = np.stack([np.asarray(each)[rng.integers(len(each), size=num_draws)] for each in pairs])
    return chains_to_arviz(np.sort(subsets, axis=-1), LAW)


def every_pair(items):
    return [(a, b) for i, a in enumerate(items) for b in items[i + 1 :]]


def judged(data, **settings):
    """The table, and what is wrong, in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        table = summarize_chains(data, **settings)
    return table, " ".join(table.attrs["problems"])


@pytest.fixture(scope="module")
def healthy():
    return run_chains(KNDPP(*PARTS["ordinary"], k=4), random.key(0), num_chains=8, num_steps=2000, thin=2)


# --- Chains ----------------------------------------------------------------------------------------------------------


def test_chains_have_named_dimensions(healthy):
    posterior = healthy["posterior"]
    assert dict(posterior.sizes) == {"chain": 8, "draw": 1000, "slot": 4, "item": N}
    subsets, included = posterior["subset"].values, posterior["included"].values
    assert (np.diff(subsets, axis=-1) > 0).all()
    assert (np.asarray(to_multihot(subsets, N)) == included).all()
    assert (posterior["size"].values == 4).all()
    stats = healthy["sample_stats"]
    assert (stats["num_rejections"].values == 0).all()
    moved = (subsets[:, 1:] != subsets[:, :-1]).any(axis=-1)
    assert (stats["changed"].values[:, 1:] == moved).all()
    assert posterior.attrs["sampling_time"] > 0
    V, B, D = PARTS["ordinary"]
    L = V @ V.T + B @ (D - D.T) @ B.T
    minor = np.linalg.det(L[np.ix_(subsets[3, 7], subsets[3, 7])])
    np.testing.assert_allclose(posterior["log_det"].values[3, 7], np.log(minor), rtol=1e-8)


@pytest.mark.parametrize(
    ("law", "num_chains", "max_items"),
    [
        (lambda: KNDPP(*PARTS["ordinary"], k=4), 8, 5),
        pytest.param(
            lambda: KNDPP(random.normal(random.key(0), (500, 4)), np.zeros((500, 1)), np.zeros((1, 1)), k=3),
            2,
            10,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["10 items", "500 items"],
)
def test_only_items_that_occur_have_indicators(law, num_chains, max_items):
    law = law()
    posterior = run_chains(law, random.key(1), num_chains, 6, max_items=max_items)["posterior"]
    items, counts = np.unique(posterior["subset"].values, return_counts=True)
    kept = posterior["item"].values
    assert len(kept) == min(max_items, len(items))
    assert set(kept) <= set(items)
    shown, probs = counts[np.isin(items, kept)], np.asarray(law.inclusion_probs())
    assert probs[kept].min() >= probs[np.setdiff1d(items, kept)].max(initial=0)
    np.testing.assert_allclose(posterior["included"].values.sum(axis=(0, 1)), shown)


# --- The table -------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_arviz_and_numpyro(healthy):
    table, problems = judged(healthy)
    assert problems == ""
    log_det, included = (healthy["posterior"][name].values for name in ("log_det", "included"))
    assert table.loc["log_det", "r_hat"] == az.rhat({"x": log_det})["x"].values
    assert table.loc["log_det", "ess_bulk"] == az.ess({"x": log_det})["x"].values
    assert table.loc["log_det", "ess_tail"] == az.ess({"x": log_det}, method="tail", prob=(0.05, 0.95))["x"].values
    assert table.loc["log_det", "psrf"] == gelman_rubin(log_det)
    seconds = healthy["posterior"].attrs["sampling_time"]
    assert table.loc["log_det", "ess_per_sec"] == table.loc["log_det", "ess_bulk"] / seconds
    x = included.astype(float)
    assert table.loc["items: worst", "r_hat"] == az.rhat({"x": x})["x"].values.max()
    assert table.loc["items: worst", "psrf"] == gelman_rubin(x).max()
    assert table.loc["items: worst", "ess_bulk"] == az.ess({"x": x})["x"].values.min()
    assert table.loc["items: worst", "number"] == N
    first, second = np.triu_indices(N, 1)
    both = x[..., first] * x[..., second]
    likeliest = np.argsort(-both.sum(axis=(0, 1)), kind="stable")[:20]
    assert table.loc["pairs: worst", "r_hat"] == az.rhat({"x": both[..., likeliest]})["x"].values.max()
    assert table.loc["pairs: worst", "number"] == 20
    exact = np.asarray(KNDPP(*PARTS["ordinary"], k=4).inclusion_probs())
    ess = az.ess({"x": x})["x"].values
    z = (x.mean(axis=(0, 1)) - exact) / np.sqrt(exact * (1 - exact) / ess)
    np.testing.assert_allclose(table.loc["items: worst", "z"], np.abs(z).max(), rtol=1e-9)


def test_numbers_do_not_depend_on_the_major_of_arviz():
    """Written down with ArviZ 0.23; ArviZ 1.x must give the same."""
    table, _ = judged(chains(*4 * [every_pair(range(N))], num_draws=100))
    np.testing.assert_allclose(table.loc["items: worst", "r_hat"], REFERENCE["r_hat"], rtol=1e-9)
    np.testing.assert_allclose(table.loc["items: worst", "psrf"], REFERENCE["psrf"], rtol=1e-9)
    np.testing.assert_allclose(table.loc["items: worst", "ess_bulk"], REFERENCE["ess_bulk"], rtol=1e-9)
    np.testing.assert_allclose(table.loc["items: worst", "ess_tail"], REFERENCE["ess_tail"], rtol=1e-9)


REFERENCE = {
    "r_hat": 1.0017456028720881,
    "psrf": 1.0029141868590523,
    "ess_bulk": 305.0221809767557,
    "ess_tail": 305.0221809767563,
}


@pytest.mark.slow
def test_z_scores_of_a_right_law_are_normal():
    data = run_chains(NDPP(*PARTS["ordinary"]), random.key(5), num_chains=20, num_steps=4000, thin=4)
    table, problems = judged(data)
    assert problems == ""
    assert 0.1 < table.loc["items: median", "z"] < 2.5


# --- Planted faults --------------------------------------------------------------------------------------------------


def test_chains_stuck_in_two_halves_of_a_block_kernel():
    # Two copies of one direction for each half: a pair within a half is possible, and so is no other.
    V = np.zeros((N, N))
    B = np.zeros((N, 4))
    B[: N // 2, :2] = np.random.default_rng(0).normal(size=(N // 2, 2))
    B[N // 2 :, 2:] = np.random.default_rng(1).normal(size=(N // 2, 2))
    D = np.zeros((4, 4))
    D[0, 1] = D[2, 3] = 1.0
    law = KNDPP(V, B, D, k=2)
    halves = [every_pair(range(N // 2)), every_pair(range(N // 2, N))]
    rng = np.random.default_rng(0)
    subsets = np.stack([np.array(half)[rng.integers(len(half), size=300)] for half in (*halves, *halves)])
    table, problems = judged(chains_to_arviz(subsets, law))
    assert table.loc["items: widest split", "r_hat"] > 1.5
    assert "The chains disagree about 10 of 10 items" in problems
    assert "The chains are in different parts of the catalogue, items" in problems
    assert "have not run long enough, or cannot reach one another" in problems
    with pytest.warns(ConvergenceWarning, match="The chains disagree about"):
        summarize_chains(chains_to_arviz(subsets, law))


def test_opposite_pair_correlations_with_equal_marginals():
    first, second = [(0, 1), (2, 3)], [(0, 2), (1, 3)]
    table, problems = judged(chains(first, first, second, second))
    assert table.loc["items: worst", "r_hat"] < 1.02
    assert table.loc["pairs: worst", "r_hat"] > 1.2
    assert "of 4 pairs" in problems


def test_one_constant_chain_is_named():
    whole = every_pair(range(N))
    table, problems = judged(chains(whole, whole, [(2, 5)], whole))
    assert "chain 2 is constant: the same subset in all 400 draws" in problems
    assert np.isfinite(table.loc[["log_det", "size"], "mean"]).all()
    assert np.isfinite(table.loc["items: worst", "r_hat"])


def test_all_chains_constant_at_one_place():
    table, problems = judged(chains(*3 * [[(2, 5)]]))
    assert "3 of 3 chains are constant" in problems
    assert table.loc["log_det", "mean"] == 0
    assert table.loc["items that never vary", "number"] == N
    assert "items: worst" not in table.index


def test_chains_stuck_at_different_places():
    table, problems = judged(chains([(0, 1)], [(2, 3)], [(4, 5)]))
    assert table.loc["items: worst", "r_hat"] == np.inf
    assert "3 of 3 chains are constant" in problems
    assert "The chains disagree about 6 of 6 items" in problems


def test_a_wrong_law_is_found_where_all_chains_agree():
    most = every_pair(range(N - 2))
    table, problems = judged(chains(*4 * [most]))
    assert table.loc["log_det"].isna()["r_hat"]  # all determinants are one
    assert "Frequencies differ from the exact probabilities: item" in problems


@pytest.mark.parametrize("max_items", [100, pytest.param(4000, marks=pytest.mark.slow)])
def test_rare_items_raise_no_alarm(max_items):
    """Independent draws of a flat law over many items: the count of each is a Poisson number of mean 0.8."""
    n, rng = 4000, np.random.default_rng(0)
    law = KNDPP(np.eye(n, 2) + 1.0, np.zeros((n, 1)), np.zeros((1, 1)), k=1)
    probs = np.asarray(law.inclusion_probs())
    draws = rng.choice(n, p=probs / probs.sum(), size=(4, 800, 1)).astype(np.int32)
    _, problems = judged(chains_to_arviz(draws, law, max_items=max_items))
    assert "Frequencies differ" not in problems


def test_draws_of_probability_zero_are_named():
    subsets = np.sort(np.random.default_rng(0).permuted(np.tile(np.arange(N), (2, 50, 1)), axis=-1)[..., :2], axis=-1)
    law = KNDPP(np.diag(np.arange(N) < 8).astype(float), *NOTHING, k=2)  # the last two items are impossible
    expected = (subsets >= 8).any(axis=-1).sum()
    table, problems = judged(chains_to_arviz(subsets, law))
    assert f"{expected} of 100 draws have probability zero" in problems
    assert table.loc["log_det", "mean"] == 0


def test_bad_data():
    with pytest.raises(ValueError, match="data has one chain"):
        summarize_chains(chains([(0, 1)]))
    with pytest.raises(ValueError, match="data has 3 draws a chain"):
        summarize_chains(chains([(0, 1)], [(0, 1)], num_draws=3))
    with pytest.raises(ValueError, match="data must come from run_chains"):
        summarize_chains({"posterior": {}})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_chains": 0}, "num_chains must be"),
        ({"num_steps": 0}, "num_steps must be"),
        ({"thin": 50}, "thin must be"),
        ({"init": "exact"}, "init must be one of 'uniform', 'greedy'"),
        ({"init": jnp.arange(3)}, r"init must have shape \(2,\) or \(2, 2\)"),
        ({"init": jnp.array([4, 4])}, "init: chain 0 cannot start at"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        run_chains(LAW, random.key(0), **{"num_chains": 2, "num_steps": 20, **settings})


def test_not_one_law():
    with pytest.raises(TypeError, match="dist must be an NDPP or KNDPP"):
        run_chains(numpyro.distributions.Normal(), random.key(0), 2, 10)
    with pytest.raises(ValueError, match=r"a batch of shape \(2,\)"):
        run_chains(KNDPP(np.zeros((2, N, 2)), *NOTHING, k=2), random.key(0), 2, 10)
    with pytest.raises(ValueError, match="no subset of 4 items has a positive probability"):
        run_chains(KNDPP(np.ones((N, 4)), *NOTHING, k=4), random.key(0), 8, 10)
    with pytest.raises(ValueError, match=r"subsets must be integers of shape"):
        chains_to_arviz(np.zeros((3, 4)), LAW)
    with pytest.raises(ValueError, match="subsets: items must be 0 to 9"):
        chains_to_arviz(np.full((2, 3, 2), 11), LAW)


# --- The mixing time -------------------------------------------------------------------------------------------------


def test_running_psrf_is_the_classical_one():
    x = np.random.default_rng(0).normal(size=(6, 40)).cumsum(axis=1)
    psrf = running_psrf(x)
    assert np.isnan(psrf[0])
    np.testing.assert_allclose(psrf[1:], [gelman_rubin(x[:, :t]) for t in range(2, 41)], rtol=1e-9)
    assert (running_psrf(np.ones((3, 5)))[1:] == 1).all()
    assert (running_psrf(np.arange(3)[:, None] * np.ones(5))[1:] == np.inf).all()


def test_a_mixing_time_that_is_not_reached():
    result = mixing_time(KNDPP(*PARTS["ordinary"], k=4), random.key(0), 8, max_steps=4)
    assert result.num_steps is None
    assert len(result.psrf) == 4
    with pytest.raises(ValueError, match="threshold must be a finite number above 1, got 1"):
        mixing_time(LAW, random.key(0), threshold=1)
    with pytest.raises(ValueError, match="num_chains must be"):
        mixing_time(LAW, random.key(0), 1)


# --- Pictures --------------------------------------------------------------------------------------------------------


def test_pictures(healthy, tmp_path):
    law = KNDPP(*PARTS["ordinary"], k=4)
    many = chains(*20 * [every_pair(range(N))])
    figures = [
        plot_chains(healthy),
        plot_chains(many),
        plot_inclusion(healthy),
        plot_psrf(healthy),
        plot_psrf(mixing_time(law, random.key(0), 8)),
        plot_kernel(law, names=[f"item {i}" for i in range(N)]),
        plot_kernel(law, items=[4, 2]),
    ]
    for number, figure in enumerate(figures):
        figure.savefig(tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000
    assert len(plot_chains(healthy).axes) == 2  # the size of a KNDPP does not vary


def test_correlations_of_pairs_equal_enumeration():
    for law, exact in (
        (NDPP(*PARTS["skew pairs and V"]), enumerated_law("skew pairs and V")),
        (KNDPP(*PARTS["ordinary"], k=3), enumerated_law("ordinary", 3, 3)),
    ):
        masks = np.array([[item in subset for item in range(N)] for subset in exact], float)
        weights = np.array(list(exact.values()))
        covariance = (masks * weights[:, None]).T @ masks - np.outer(weights @ masks, weights @ masks)
        deviation = np.sqrt(np.diag(covariance))
        varies = deviation > 1e-9
        scale = np.where(varies, deviation, 1.0)
        expected = np.where(np.outer(varies, varies), covariance / np.outer(scale, scale), 0.0)
        np.fill_diagonal(expected, 0.0)
        np.testing.assert_allclose(pair_correlations(law, np.arange(N)), expected, atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"items": [1]}, "items must be two or more"),
        ({"items": [1, 1]}, "each once"),
        ({"items": [1, N]}, f"items must be 0 to {N - 1}"),
        ({"names": ["a"]}, f"one name for each of {N} items"),
    ],
)
def test_bad_pictures(settings, message):
    with pytest.raises(ValueError, match=message):
        plot_kernel(LAW, **settings)


def test_pictures_of_other_data():
    with pytest.raises(ValueError, match="it has no 'log_det'"):
        plot_chains({"posterior": {}})


# --- Ordinary runs of NumPyro ----------------------------------------------------------------------------------------


def subset_model(y=None):
    chosen = numpyro.sample("chosen", NDPP(np.eye(4), np.zeros((4, 1)), np.zeros((1, 1)), sampler=Cholesky()))
    included = numpyro.deterministic("included", to_multihot(chosen, 4))
    mean = numpyro.sample("mean", numpyro.distributions.Normal(included.sum(), 1.0))
    numpyro.sample("y", numpyro.distributions.Normal(mean, 1.0), obs=y)


@pytest.mark.filterwarnings("default")
def test_runs_of_numpyro_go_through_arviz():
    block = SubsetGibbs(subset_model, "chosen")
    mcmc = MCMC(
        HMCGibbs(HMC(subset_model, num_steps=3, trajectory_length=None), block.gibbs_fn(2.0), ["chosen"]),
        num_warmup=20,
        num_samples=30,
        num_chains=2,
        chain_method=jax.vmap,
        progress_bar=False,
    )
    mcmc.run(random.key(0), 2.0)
    data = az.from_numpyro(mcmc, dims={"chosen": ["slot"], "included": ["item"]})
    assert data["posterior"]["chosen"].dims == ("chain", "draw", "slot")
    assert data["posterior"]["included"].dims == ("chain", "draw", "item")
    assert data["posterior"]["chosen"].shape == (2, 30, 4)
    samples = mcmc.get_samples(group_by_chain=True)["chosen"]
    table, _ = judged(chains_to_arviz(samples, NDPP(np.eye(4), np.zeros((4, 1)), np.zeros((1, 1)))))
    assert "ess_per_sec" not in table.columns

    prior = Predictive(subset_model, num_samples=10)(random.key(0))
    data = az.from_numpyro(mcmc, prior=prior, dims={"chosen": ["slot"], "included": ["item"]})
    assert data["prior"]["chosen"].dims == ("chain", "draw", "slot")


def test_nothing_is_compiled_again_for_another_key():
    law = KNDPP(*PARTS["ordinary"], k=4)
    run_chains(law, random.key(0), 8, 20)
    compiled = _run_block._cache_size()
    run_chains(law, random.key(1), 8, 20)
    run_chains(law, random.key(1), 8, 130, thin=3)
    run_chains(KNDPP(*PARTS["near skew"], k=4), random.key(1), 8, 20)
    assert _run_block._cache_size() == compiled
