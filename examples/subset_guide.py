"""A subset posterior approximated by an NDPP: variational inference with a distribution of subsets in the guide.

Six sensors are on or off; which are on is a latent subset with an independent prior, seen through a noisy sum of their
signals. Sensors 0 and 1 have the same signal, so that either explains the data but not both: the posterior repels.
Sensors 2 and 3 cancel each other, so that they come together or not at all: it attracts. A guide with an NDPP can say
both. Its gradient is the score function's, which `TraceGraph_ELBO` takes care of (`Trace_ELBO` would be biased).
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.infer import SVI, TraceGraph_ELBO

from numpyro_ndpp import NDPP, Cholesky, pad_subsets, to_multihot
from numpyro_ndpp.figure_style import COLOURS, panels, style

SIGNALS = jnp.array(
    [[1.0, 0.0, 0.5], [1.0, 0.0, 0.5], [0.0, 1.5, 0.0], [0.0, -1.5, 0.3], [0.4, 0.3, 0.0], [0.0, 0.2, 0.9]]
)
NUM_ITEMS, NOISE = len(SIGNALS), 0.7
SEEN = jnp.array([1.1, 0.1, 0.7])


def log_joint(mask) -> jax.Array:
    """log p(S, seen) of 0/1 vectors (..., n)."""
    log_prior = dist.Bernoulli(0.4).log_prob(mask).sum(axis=-1)
    return log_prior + dist.Normal(mask @ SIGNALS, NOISE).log_prob(SEEN).sum(axis=-1)


def model() -> None:
    coins = NDPP(jnp.sqrt(0.4 / 0.6) * jnp.eye(NUM_ITEMS), jnp.zeros((NUM_ITEMS, 1)), jnp.zeros((1, 1)))
    mask = to_multihot(numpyro.sample("S", coins), NUM_ITEMS)
    numpyro.sample("seen", dist.Normal(mask @ SIGNALS, NOISE).to_event(1), obs=SEEN)


def guide() -> None:
    V = numpyro.param("V", lambda key: 0.5 * jnp.eye(NUM_ITEMS) + 0.1 * random.normal(key, (NUM_ITEMS, NUM_ITEMS)))
    B = numpyro.param("B", lambda key: 0.3 * random.normal(key, (NUM_ITEMS, NUM_ITEMS)))
    D = numpyro.param("D", lambda key: random.normal(key, (NUM_ITEMS, NUM_ITEMS)))
    numpyro.sample("S", NDPP(V, B, D, sampler=Cholesky()))


def exact_posterior() -> tuple[list[tuple[int, ...]], np.ndarray, float]:
    """All subsets, their posterior probabilities, and the log evidence."""
    masks = (np.arange(2**NUM_ITEMS)[:, None] >> np.arange(NUM_ITEMS)) & 1
    log_joints = log_joint(jnp.asarray(masks))
    subsets = [tuple(np.flatnonzero(mask).tolist()) for mask in masks]
    return subsets, np.asarray(jax.nn.softmax(log_joints)), float(jax.nn.logsumexp(log_joints))


def elbo_of(law: NDPP, subsets: list[tuple[int, ...]]) -> float:
    """The exact ELBO of a guide, by enumeration."""
    padded = pad_subsets(subsets, NUM_ITEMS)
    log_q = law.log_prob(padded)
    terms = jnp.exp(log_q) * (log_joint(to_multihot(padded, NUM_ITEMS)) - jnp.where(log_q > -jnp.inf, log_q, 0.0))
    return float(jnp.sum(terms))


@style()
def draw_figure(path: Path, subsets: list, exact: np.ndarray, law: NDPP, coins: NDPP, losses) -> None:
    figure, [axes] = panels(1, 2, figsize=(8.4, 3.1), width_ratios=[2, 1])
    best = np.argsort(-exact)[:14]
    padded = pad_subsets([subsets[i] for i in best], NUM_ITEMS)
    places = np.arange(len(best))
    axes[0].bar(places - 0.27, exact[best], 0.27, color="0.4", label="exact posterior")
    axes[0].bar(places, np.exp(law.log_prob(padded)), 0.27, color=COLOURS[0], label="NDPP guide")
    axes[0].bar(places + 0.27, np.exp(coins.log_prob(padded)), 0.27, color=COLOURS[4], label="independent coins")
    labels = ["{" + ",".join(map(str, subsets[i])) + "}" for i in best]
    axes[0].set_xticks(places, labels, rotation=60, fontsize=8)
    axes[0].set(ylabel="posterior probability", xlabel="the likeliest subsets of sensors")
    axes[0].legend()
    window = max(1, len(losses) // 50)
    smooth = np.convolve(-np.asarray(losses), np.ones(window) / window, mode="valid")
    axes[1].plot(np.arange(len(smooth)) + window, smooth, label=f"guide, mean of {window} steps")
    axes[1].axhline(exact_posterior()[2], color="0.4", linestyle="--", label="log evidence")
    axes[1].set(xlabel="steps of SVI", ylabel="ELBO (nats)")
    axes[1].legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, default=Path("subset_guide.svg"), help="file for the figure")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    options = parser.parse_args(arguments)
    num_steps = 20 if options.quick else 3000

    adam = numpyro.optim.Adam(lambda step: 0.03 * 0.5 * (1 + jnp.cos(jnp.pi * step / num_steps)))
    svi = SVI(model, guide, adam, TraceGraph_ELBO(num_particles=32))
    result = svi.run(random.key(0), num_steps)
    law = NDPP(result.params["V"], result.params["B"], result.params["D"])

    subsets, exact, log_evidence = exact_posterior()
    masks = np.array([[item in subset for item in range(NUM_ITEMS)] for subset in subsets])
    inclusion = jnp.asarray(exact @ masks)
    # The best independent coins have the exact posterior's own marginals or come near: a line to compare with.
    coins = NDPP(jnp.diag(jnp.sqrt(inclusion / (1 - inclusion))), jnp.zeros((NUM_ITEMS, 1)), jnp.zeros((1, 1)))
    elbo = elbo_of(law, subsets)
    print(f"log evidence {log_evidence:.3f}; ELBO of the NDPP guide {elbo:.3f}", end="")
    print(f", of coins with the posterior's marginals {elbo_of(coins, subsets):.3f}")
    draw_figure(options.figure, subsets, exact, law, coins, result.losses)
    print(f"The posterior and both approximations are drawn in {options.figure}")
    return log_evidence - elbo


if __name__ == "__main__":
    main()
