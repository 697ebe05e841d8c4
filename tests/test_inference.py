"""Whole inferences with NumPyro's own algorithms, on baskets simulated from a known kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, log_likelihood
from numpyro.infer.autoguide import AutoDelta, AutoLaplaceApproximation

from numpyro_ndpp import NDPP


def model(n, d1, d2, baskets=None, num_baskets=None):
    V = numpyro.sample("V", dist.Normal(0, 1).expand([n, d1]).to_event(2))
    B = numpyro.sample("B", dist.Normal(0, 1).expand([n, d2]).to_event(2))
    D = numpyro.sample("D", dist.Normal(0, 1).expand([d2, d2]).to_event(2))
    with numpyro.plate("baskets", num_baskets if baskets is None else len(baskets)):
        numpyro.sample("basket", NDPP(V, B, D), obs=baskets)


def simulate(n, d1, d2, num_baskets, seed=0):
    rng = np.random.default_rng(seed)
    law = NDPP(rng.normal(size=(n, d1)), rng.normal(size=(n, d2)), rng.normal(size=(d2, d2)))
    return law, law.sample(random.key(seed), (num_baskets,))


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
    law = NDPP(FEATURES[0], FEATURES[1], np.array([[0.0, 1.0], [0.0, 0.0]]))
    return law.sample(random.key(8), (num_baskets,))


def test_nuts_converges_on_a_small_model():
    baskets = quality_baskets(100)
    kernel = NUTS(quality_model)
    mcmc = MCMC(kernel, num_warmup=200, num_samples=300, num_chains=2, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(2), baskets)
    values = log_likelihood(quality_model, mcmc.get_samples(), baskets)["basket"].sum(-1)
    assert split_gelman_rubin(np.asarray(values).reshape(2, -1)) < 1.05


def test_laplace_approximation_has_a_finite_covariance():
    baskets = quality_baskets(50)
    guide = AutoLaplaceApproximation(quality_model)
    svi = SVI(quality_model, guide, numpyro.optim.Adam(0.03), Trace_ELBO())
    result = svi.run(random.key(3), 300, baskets, progress_bar=False)
    covariance = guide.get_posterior(result.params).covariance_matrix
    assert jnp.isfinite(covariance).all()
    assert (jnp.diagonal(covariance) > 0).all()


def test_predictive_draws_baskets_for_every_posterior_draw():
    rng = np.random.default_rng(3)
    samples = {"V": rng.normal(size=(5, 6, 2)), "B": rng.normal(size=(5, 6, 2)), "D": rng.normal(size=(5, 2, 2))}
    for parallel in (False, True):
        draws = Predictive(model, samples, parallel=parallel)(random.key(0), 6, 2, 2, num_baskets=3)["basket"]
        assert draws.shape == (5, 3, 4)
        assert NDPP(samples["V"][0], samples["B"][0], samples["D"][0]).support(draws).all()
    assert jax.tree.leaves(draws)[0].dtype == jnp.int32
