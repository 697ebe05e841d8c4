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


def test_nuts_converges_on_a_small_model():
    _, baskets = simulate(n=12, d1=2, d2=2, num_baskets=100, seed=1)
    mcmc = MCMC(
        NUTS(model), num_warmup=200, num_samples=200, num_chains=2, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(random.key(2), 12, 2, 2, baskets)
    values = log_likelihood(model, mcmc.get_samples(), 12, 2, 2, baskets)["basket"].sum(-1)
    assert split_gelman_rubin(np.asarray(values).reshape(2, -1)) < 1.05


def test_laplace_approximation_has_a_finite_covariance():
    _, baskets = simulate(n=6, d1=2, d2=2, num_baskets=50, seed=2)
    guide = AutoLaplaceApproximation(model)
    svi = SVI(model, guide, numpyro.optim.Adam(0.03), Trace_ELBO())
    result = svi.run(random.key(3), 50, 6, 2, 2, baskets, progress_bar=False)
    hessian = guide.get_posterior(result.params).precision_matrix
    assert jnp.isfinite(hessian).all()


def test_predictive_draws_baskets_for_every_posterior_draw():
    rng = np.random.default_rng(3)
    samples = {"V": rng.normal(size=(5, 6, 2)), "B": rng.normal(size=(5, 6, 2)), "D": rng.normal(size=(5, 2, 2))}
    for parallel in (False, True):
        draws = Predictive(model, samples, parallel=parallel)(random.key(0), 6, 2, 2, num_baskets=3)["basket"]
        assert draws.shape == (5, 3, 4)
        assert NDPP(samples["V"][0], samples["B"][0], samples["D"][0]).support(draws).all()
    assert jax.tree.leaves(draws)[0].dtype == jnp.int32
