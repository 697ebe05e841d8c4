"""Whole inferences with NumPyro's own algorithms, on baskets simulated from a known kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceGraph_ELBO, log_likelihood
from numpyro.infer.autoguide import AutoDelta, AutoLaplaceApproximation
from scipy import stats

from numpyro_ndpp import NDPP, Cholesky, Exact, Rejection, UpDown, from_multihot, to_multihot


def model(n, d1, d2, baskets=None, num_baskets=None, sampler=UpDown()):
    V = numpyro.sample("V", dist.Normal(0, 1).expand([n, d1]).to_event(2))
    B = numpyro.sample("B", dist.Normal(0, 1).expand([n, d2]).to_event(2))
    D = numpyro.sample("D", dist.Normal(0, 1).expand([d2, d2]).to_event(2))
    with numpyro.plate("baskets", num_baskets if baskets is None else len(baskets)):
        numpyro.sample("basket", NDPP(V, B, D, sampler=sampler), obs=baskets)


def simulate(n, d1, d2, num_baskets, seed=0):
    rng = np.random.default_rng(seed)
    law = NDPP(rng.normal(size=(n, d1)), rng.normal(size=(n, d2)), rng.normal(size=(d2, d2)))
    return law, law.sample(random.key(seed), (num_baskets,))


@pytest.mark.slow
def test_svi_recovers_the_inclusion_probabilities():
    truth, baskets = simulate(n=20, d1=3, d2=2, num_baskets=2000)
    guide = AutoDelta(model)
    svi = SVI(model, guide, numpyro.optim.Adam(0.03), Trace_ELBO())
    result = svi.run(random.key(1), 400, 20, 3, 2, baskets, progress_bar=False)
    estimate = guide.median(result.params)
    learned = NDPP(estimate["V"], estimate["B"], estimate["D"]).inclusion_probs()
    assert np.corrcoef(learned, truth.inclusion_probs())[0, 1] > 0.95


FEATURES = np.random.default_rng(7).normal(size=(2, 12, 2))


def quality_model(baskets):
    """Known features, unknown qualities of the items and strength of attraction: n = 12, d = 4, one mode."""
    quality = jnp.exp(numpyro.sample("log_quality", dist.Normal(0, 0.5).expand([12]).to_event(1)))[:, None]
    strength = numpyro.sample("strength", dist.LogNormal(0, 0.5))
    law = NDPP(quality * FEATURES[0], quality * FEATURES[1], strength * jnp.array([[0.0, 1.0], [0.0, 0.0]]))
    with numpyro.plate("baskets", len(baskets)):
        numpyro.sample("basket", law, obs=baskets)


def quality_baskets(num_baskets):
    law = NDPP(FEATURES[0], FEATURES[1], np.array([[0.0, 1.0], [0.0, 0.0]]), sampler=Cholesky())
    return law.sample(random.key(8), (num_baskets,))


@pytest.mark.slow
def test_nuts_converges_on_a_small_model():
    baskets = quality_baskets(100)
    kernel = NUTS(quality_model)
    mcmc = MCMC(kernel, num_warmup=100, num_samples=200, num_chains=2, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(2), baskets)
    values = log_likelihood(quality_model, mcmc.get_samples(), baskets)["basket"].sum(-1)
    assert split_gelman_rubin(np.asarray(values).reshape(2, -1)) < 1.05


@pytest.mark.slow
def test_laplace_approximation_has_a_finite_covariance():
    baskets = quality_baskets(50)
    guide = AutoLaplaceApproximation(quality_model)
    svi = SVI(quality_model, guide, numpyro.optim.Adam(0.03), Trace_ELBO())
    result = svi.run(random.key(3), 300, baskets, progress_bar=False)
    covariance = guide.get_posterior(result.params).covariance_matrix
    assert jnp.isfinite(covariance).all()
    assert (jnp.diagonal(covariance) > 0).all()


@pytest.mark.parametrize(
    "sampler", [Cholesky(), pytest.param(UpDown(), marks=pytest.mark.slow)], ids=lambda s: type(s).__name__
)
def test_predictive_draws_baskets_for_every_posterior_draw(sampler):
    rng = np.random.default_rng(3)
    samples = {"V": rng.normal(size=(5, 6, 2)), "B": rng.normal(size=(5, 6, 2)), "D": rng.normal(size=(5, 2, 2))}
    for parallel in (False, True):
        predictive = Predictive(model, samples, parallel=parallel)
        draws = predictive(random.key(0), 6, 2, 2, num_baskets=3, sampler=sampler)["basket"]
        assert draws.shape == (5, 3, 4)
        assert NDPP(samples["V"][0], samples["B"][0], samples["D"][0]).support(draws).all()
    assert jax.tree.leaves(draws)[0].dtype == jnp.int32


def mild_model(sampler):
    """A prior over kernels that attract a little, so that no sampler has to try for long."""
    V = numpyro.sample("V", dist.Normal(0, 0.7).expand([6, 3]).to_event(2))
    B = numpyro.sample("B", dist.Normal(0, 0.3).expand([6, 2]).to_event(2))
    law = NDPP(V, B, jnp.array([[0.0, 1.0], [0.0, 0.0]]), sampler=sampler)
    numpyro.deterministic("inclusion", law.inclusion_probs())
    numpyro.sample("subset", law)


SAMPLERS = [UpDown(), Exact(), Cholesky(), Rejection()]


def assert_frequencies_are_exact(draws):
    """Frequencies are the mean of the exact inclusion probabilities, to five standard errors."""
    masks, probs = np.asarray(to_multihot(draws["subset"], 6)), np.asarray(draws["inclusion"])
    assert draws["subset"].shape == (400, 5)
    z = (masks - probs).sum(axis=0) / np.sqrt((probs * (1 - probs)).sum(axis=0))
    assert np.abs(z).max() < 5


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_prior_predictive_with_every_sampler(sampler, parallel):
    draws = Predictive(mild_model, num_samples=400, parallel=parallel)(random.key(0), sampler)
    assert_frequencies_are_exact(draws)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_posterior_predictive_with_every_sampler(sampler, parallel):
    rng = np.random.default_rng(0)
    kernels = {"V": 0.7 * rng.normal(size=(400, 6, 3)), "B": 0.3 * rng.normal(size=(400, 6, 2))}
    draws = Predictive(mild_model, kernels, parallel=parallel)(random.key(1), sampler)
    assert_frequencies_are_exact(draws)
    assert (draws["subset"] >= 0).all()


@pytest.mark.slow
def test_posterior_predictive_of_many_kernels_in_one_call():
    """500 kernels (n = 200, d = 10), a subset from each; z-scores of the items follow a normal law (KS p > 1e-4)."""
    rng = np.random.default_rng(0)
    n, d = 200, 5
    posterior = {
        "V": 0.3 * rng.normal(size=(n, d)) + 0.05 * rng.normal(size=(500, n, d)),
        "B": 0.3 * rng.normal(size=(n, d)) + 0.05 * rng.normal(size=(500, n, d)),
        "D": rng.normal(size=(d, d)) + 0.05 * rng.normal(size=(500, d, d)),
    }

    def predicted():
        V, B, D = (numpyro.sample(name, dist.Normal(0, 1).expand(s).to_event(2)) for name, s in shapes.items())
        numpyro.sample("subset", NDPP(V, B, D, sampler=Exact()))

    shapes = {name: values.shape[1:] for name, values in posterior.items()}
    subsets = Predictive(predicted, posterior, parallel=True, return_sites=["subset"])(random.key(0))["subset"]
    law = NDPP(posterior["V"], posterior["B"], posterior["D"])
    probs = np.asarray(law.inclusion_probs())
    z = (np.asarray(to_multihot(subsets, n)) - probs).sum(axis=0) / np.sqrt((probs * (1 - probs)).sum(axis=0))
    assert stats.kstest(z, "norm").pvalue > 1e-4


@pytest.mark.slow
def test_guide_with_a_subset_comes_near_the_best_of_its_family():
    """TraceGraph_ELBO with an NDPP in the guide, against a grid over the family: within 0.05 nats."""
    n = 4
    masks = jnp.asarray((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    table = 1.5 * random.normal(random.key(5), (2,) * n)  # log p(S, data), any table
    subsets = from_multihot(masks, n)

    def law_of(quality, strength):
        B = jnp.zeros((n, 2)).at[0, 0].set(1.0).at[1, 1].set(1.0)
        D = jnp.zeros((2, 2)).at[0, 1].set(strength)
        return NDPP(jnp.exp(quality) * jnp.eye(n), B, D, max_size=n, sampler=Cholesky())

    def elbo(quality, strength):
        log_q = law_of(quality, strength).log_prob(subsets)
        return jnp.sum(jnp.exp(log_q) * (table[tuple(masks.T)] - log_q))

    grid = jnp.linspace(-3, 3, 61)
    best = float(jnp.max(jax.vmap(lambda q: jax.lax.map(lambda s: elbo(q, s), grid))(grid)))

    def joint():
        flat = NDPP(jnp.eye(n), jnp.zeros((n, 1)), jnp.zeros((1, 1)))  # all subsets alike
        mask = to_multihot(numpyro.sample("S", flat), n)
        numpyro.factor("data", table[tuple(mask)] + n * jnp.log(2.0))

    def guide():
        numpyro.sample("S", law_of(numpyro.param("quality", 0.0), numpyro.param("strength", 0.5)))

    svi = SVI(joint, guide, numpyro.optim.Adam(0.03), TraceGraph_ELBO(num_particles=50))
    params = svi.run(random.key(0), 600, progress_bar=False).params
    assert best - float(elbo(params["quality"], params["strength"])) < 0.05
