"""A posterior over kernels: NUTS on a small catalogue, and the subsets that it predicts.

Eight items have known features, by which like items repel, and two known pairs of complements. Unknown are how good
each item is (its quality) and how strongly complements attract. NUTS gives their posterior from a hundred observed
subsets; every draw of it is a kernel of its own, and `Predictive` draws a subset from each.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.infer import MCMC, NUTS, Predictive

from numpyro_ndpp import NDPP, Exact, to_multihot
from numpyro_ndpp.figure_style import COLOURS, panels, style

NUM_ITEMS, COMPLEMENTS = 8, [(0, 5), (2, 7)]
FEATURES = np.asarray(random.normal(random.key(7), (NUM_ITEMS, 4))) / 2
TRUE_STRENGTH = 1.2


def law_of(quality, strength) -> NDPP:
    """Features times quality; every pair of complements has a skew pair of its own."""
    V = jnp.exp(quality)[:, None] * FEATURES
    B = jnp.zeros((NUM_ITEMS, 2 * len(COMPLEMENTS)))
    for j, (a, b) in enumerate(COMPLEMENTS):
        B = B.at[a, 2 * j].set(1.0).at[b, 2 * j + 1].set(1.0)
    D = jnp.diag(jnp.array([strength, 0.0] * len(COMPLEMENTS))[:-1], 1)
    return NDPP(V, B, D, sampler=Exact())


def model(num_subsets: int, subsets=None) -> None:
    quality = numpyro.sample("quality", dist.Normal(0, 0.7).expand([NUM_ITEMS]).to_event(1))
    strength = numpyro.sample("strength", dist.LogNormal(0, 0.7))
    law = law_of(quality, strength)
    numpyro.deterministic("inclusion", law.inclusion_probs())
    with numpyro.plate("subsets", num_subsets):
        numpyro.sample("subset", law, obs=subsets)


@style()
def draw_figure(path: Path, samples: dict, truth: NDPP, subsets, predicted) -> None:
    figure, [axes] = panels(1, 3, figsize=(9, 2.8))
    items = np.arange(NUM_ITEMS)
    inclusion = np.asarray(samples["inclusion"])
    low, middle, high = np.quantile(inclusion, [0.05, 0.5, 0.95], axis=0)
    axes[0].errorbar(
        items, middle, [middle - low, high - middle], fmt="o", capsize=3, label="posterior median and 90 %"
    )
    axes[0].plot(items, truth.inclusion_probs(), "x", color=COLOURS[1], label="truth")
    axes[0].set(xlabel="item", ylabel="probability of being in a subset", ylim=(0, 1))
    axes[0].set_xticks(items)
    axes[0].legend()
    axes[1].hist(np.asarray(samples["strength"]), bins=30, density=True, color=COLOURS[0], alpha=0.7)
    axes[1].axvline(TRUE_STRENGTH, color=COLOURS[1], label="truth")
    axes[1].set(xlabel="strength of attraction D", ylabel="posterior density")
    axes[1].legend()
    shares = [np.asarray(to_multihot(values, NUM_ITEMS)).sum(axis=-1).ravel() for values in (subsets, predicted)]
    for size, offset, label in zip(shares, (-0.2, 0.2), ("data", "predicted"), strict=True):
        counts = np.bincount(size, minlength=NUM_ITEMS + 1) / len(size)
        axes[2].bar(np.arange(NUM_ITEMS + 1) + offset, counts, 0.4, label=label)
    axes[2].set(xlabel="items in a subset", ylabel="share of subsets")
    axes[2].set_xticks(range(NUM_ITEMS + 1))
    axes[2].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, default=Path("bayesian_kernel.svg"), help="file for the figure")
    parser.add_argument("--quick", action="store_true", help="a few draws only, to see that it runs")
    options = parser.parse_args(arguments)

    truth = law_of(0.5 * random.normal(random.key(1), (NUM_ITEMS,)), TRUE_STRENGTH)
    subsets = truth.sample(random.key(2), (100,))
    number = 20 if options.quick else 500
    mcmc = MCMC(NUTS(model), num_warmup=number, num_samples=number, num_chains=2, chain_method="vectorized")
    mcmc.run(random.key(3), len(subsets), subsets)
    samples = mcmc.get_samples()
    mcmc.print_summary(exclude_deterministic=True)

    # One subset for each draw of the kernel, all in one vectorised call.
    posterior = {name: samples[name] for name in ("quality", "strength")}
    predicted = Predictive(model, posterior, return_sites=["subset"], parallel=True)(random.key(4), 1)["subset"]
    inclusion = np.asarray(to_multihot(predicted, NUM_ITEMS)).reshape(-1, NUM_ITEMS).mean(axis=0)
    print("P(item in a subset), predicted:", np.round(inclusion, 2))
    print("P(item in a subset), truth:    ", np.round(np.asarray(truth.inclusion_probs()), 2))
    draw_figure(options.figure, jax.device_get(samples), truth, subsets, predicted)
    print(f"The posterior is drawn in {options.figure}")


if __name__ == "__main__":
    main()
