"""What once stood still on two cores, one thing a run: python standing_still.py gradient|likelihood|nuts|gibbs."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.infer import MCMC, NUTS, HMCGibbs, log_likelihood

from numpyro_ndpp import NDPP, SubsetGibbs, pad_subsets

N, D, WIDTH = 60, 6, 12


def parameters(number: int) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {"V": (N, D), "B": (N, D), "D": (D, D)}
    return {name: jnp.asarray(rng.normal(size=(number, *shape)), jnp.float32) for name, shape in shapes.items()}


def some_baskets() -> jax.Array:
    rng = np.random.default_rng(1)
    return pad_subsets([rng.choice(N, int(rng.integers(1, D)), replace=False) for _ in range(100)], N, WIDTH)


def model(baskets: jax.Array) -> None:
    sites = {name: dist.Normal(0, 1).expand(x.shape[1:]).to_event(2) for name, x in parameters(1).items()}
    kernel = [numpyro.sample(name, prior) for name, prior in sites.items()]
    with numpyro.plate("baskets", len(baskets)):
        numpyro.sample("basket", NDPP(*kernel), obs=baskets)


def latent_model(y: float) -> None:
    V = numpyro.sample("V", dist.Normal(0, 1).expand([N, D]).to_event(2))
    items = numpyro.sample("items", NDPP(V, jnp.ones((N, 2)), jnp.eye(2)))
    numpyro.sample("y", dist.Normal(jnp.sum(items < N), 1.0), obs=y)


def main(what: str) -> None:
    if what == "gradient":
        baskets = some_baskets()

        def total(V: jax.Array, B: jax.Array, D: jax.Array) -> jax.Array:
            return NDPP(V, B, D).log_prob(baskets).sum()

        result = jax.jit(jax.vmap(jax.value_and_grad(total, argnums=(0, 1, 2))))(*parameters(64).values())[0]
    elif what == "likelihood":
        baskets = some_baskets()[:, : min(N, 2 * D)]
        result = log_likelihood(model, parameters(500), baskets, parallel=True)["basket"]
    elif what == "nuts":
        kernel = NUTS(model, max_tree_depth=3)
        chains = {"num_chains": 8, "chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(kernel, num_warmup=5, num_samples=5, **chains)
        mcmc.run(random.key(0), some_baskets()[:, : min(N, 2 * D)])
        result = mcmc.get_samples()["V"]
    else:
        gibbs = SubsetGibbs(latent_model, "items")
        kernel = HMCGibbs(NUTS(latent_model, max_tree_depth=3), gibbs.gibbs_fn(3.0), ["items"])
        mcmc = MCMC(kernel, num_warmup=5, num_samples=5, num_chains=8, chain_method=jax.vmap, progress_bar=False)
        mcmc.run(random.key(0), 3.0)
        result = mcmc.get_samples()["V"]
    assert np.isfinite(np.asarray(result)).all()


if __name__ == "__main__":
    main(sys.argv[1])
