"""Which covariates enter a regression, when some are nearly copies of others: a latent subset with a repulsive prior.

Twelve covariates come in four groups of three that measure nearly the same thing. Three of them, from three groups,
make the response. The prior over which enter is an NDPP whose kernel is the covariates' own correlation matrix: subsets
of covariates that say the same are unlikely. It stands against independent coins of the same expected number. In both
models `SubsetGibbs` updates the subset and NUTS the noise and the scale of the weights; the weights are integrated out.

That matters. The same model with its weights sampled by NUTS is there, too: where copies are close and there is little
noise, its chains disagree, as R-hat says.
"""

import argparse
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS, Gibbs

from numpyro_ndpp import NDPP, SubsetGibbs, to_multihot
from numpyro_ndpp.figure_style import COLOURS, panels, style

NUM_GROUPS, GROUP_SIZE, NUM_ROWS, EXPECTED_SIZE = 4, 3, 40, 3.0
NUM_COVARIATES = NUM_GROUPS * GROUP_SIZE
PRIORS = ("repulsive", "independent")


def simulate(seed: int, spread: float = 0.45, noise: float = 1.2) -> tuple[jax.Array, jax.Array, list[int]]:
    """Covariates, response, and which covariates made it; those of a group are copies but for ``spread``."""
    keys = random.split(random.key(seed), 4)
    base = jnp.repeat(random.normal(keys[0], (NUM_ROWS, NUM_GROUPS)), GROUP_SIZE, axis=1)
    X = base + spread * random.normal(keys[1], (NUM_ROWS, NUM_COVARIATES))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    members = random.randint(keys[2], (3,), 0, GROUP_SIZE)
    true = [GROUP_SIZE * group + int(members[group]) for group in range(3)]
    y = X[:, jnp.array(true)] @ jnp.array([1.0, -1.0, 1.0]) + noise * random.normal(keys[3], (NUM_ROWS,))
    return X, y - y.mean(), true


def prior_of(name: str, X) -> NDPP:
    """L = q · correlation matrix, or q · identity: q such that three covariates are expected to enter."""
    nothing = jnp.zeros((NUM_COVARIATES, 1)), jnp.zeros((1, 1))
    V = jnp.linalg.cholesky(X.T @ X / len(X)) if name == "repulsive" else jnp.eye(NUM_COVARIATES)
    return NDPP(V, *nothing).with_expected_size(EXPECTED_SIZE)


def model(X, y, prior: NDPP) -> None:
    mask = to_multihot(numpyro.sample("chosen", prior), NUM_COVARIATES)
    noise = numpyro.sample("noise", dist.LogNormal(0, 0.5))
    scale = numpyro.sample("scale", dist.LogNormal(0, 0.5))
    # weights ~ Normal(0, scale²), integrated out
    chosen = scale * X * mask
    covariance = noise**2 * jnp.eye(len(y)) + chosen @ chosen.T
    numpyro.sample("y", dist.MultivariateNormal(0, covariance), obs=y)


def model_with_weights(X, y, prior: NDPP) -> None:
    """The same model with its weights sampled: do not do this where they can be integrated out.

    Weights of covariates that are out are drawn from their prior. They hardly ever fit when a move would let them in.
    """
    mask = to_multihot(numpyro.sample("chosen", prior), NUM_COVARIATES)
    noise = numpyro.sample("noise", dist.LogNormal(0, 0.5))
    scale = numpyro.sample("scale", dist.LogNormal(0, 0.5))
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([NUM_COVARIATES]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ (scale * weights * mask), noise).to_event(1), obs=y)


@partial(jax.jit, static_argnames=("num_samples", "model"))
def posterior_masks(X, y, prior: NDPP, num_samples: int, model=model, seed=0) -> jax.Array:
    """Which covariates enter, in every draw of the posterior: the subset by SubsetGibbs, the rest by NUTS.

    The whole run is one compiled function of data and prior, and serves all data sets: outside of `jit`, and
    without a progress bar, `MCMC.run` compiles again whenever it is called.
    """
    kernel = Gibbs([(SubsetGibbs(model, "chosen", num_moves=5), ["chosen"]), (NUTS(model, max_tree_depth=3), None)])
    mcmc = MCMC(kernel, num_warmup=num_samples // 2, num_samples=num_samples, progress_bar=False)
    mcmc.run(random.key(seed), X, y, prior)
    return to_multihot(mcmc.get_samples()["chosen"], NUM_COVARIATES) > 0


def largest_r_hat(model, X, y, prior: NDPP, num_samples: int) -> float:
    """Of whether each covariate enters, over four chains."""
    chains = [posterior_masks(X, y, prior, num_samples, model=model, seed=seed) for seed in range(4)]
    masks = np.asarray(jnp.stack(chains), float)
    varies = masks.std(axis=(0, 1)) > 0  # what enters always, or never, has no R-hat
    with np.errstate(divide="ignore"):
        return float(np.max(split_gelman_rubin(masks[..., varies])))


@style()
def draw_figure(path: Path, inclusion: dict[str, list[np.ndarray]], truths: list[list[int]], found: dict) -> None:
    """Of all data sets: how likely covariates of each kind are to enter, and how likely exactly the true ones are."""
    figure, [[entering, whole]] = panels(1, 2, figsize=(7.6, 3.2), width_ratios=[1.5, 1])
    covariates = np.arange(NUM_COVARIATES)
    kinds = ("true", "near-copy of\na true one", "of the group\nwithout a true one")
    for number, name in enumerate(PRIORS):
        values: list[list[float]] = [[], [], []]
        for probs, true in zip(inclusion[name], truths, strict=True):
            touched = np.isin(covariates // GROUP_SIZE, np.array(true) // GROUP_SIZE)
            kind = np.where(np.isin(covariates, true), 0, np.where(touched, 1, 2))
            for each in range(3):
                values[each] += probs[kind == each].tolist()
        for each, points in enumerate(values):
            place = each + 0.36 * number - 0.18
            spread = np.random.default_rng(0).uniform(-0.1, 0.1, len(points))
            colour = COLOURS[number]
            entering.scatter(place + spread, points, s=7, alpha=0.45, color=colour, linewidths=0)
            label = f"{name} prior" if each == 0 else None
            entering.plot([place - 0.15, place + 0.15], [np.mean(points)] * 2, color=colour, linewidth=2.5, label=label)
    entering.set_xticks(range(3), kinds)
    entering.set(ylabel="P(covariate enters | data)", ylim=(-0.02, 1.02))
    entering.set_title(f"{len(truths)} data sets; lines: means" if len(truths) > 1 else "one data set; lines: means")
    entering.legend(loc="upper right")
    top = 1.08 * max(map(max, found.values())) + 1e-3
    whole.plot([0, top], [0, top], color="0.7", zorder=0)
    whole.scatter(found["independent"], found["repulsive"], s=14, color=COLOURS[0])
    whole.set(xlim=(0, top), ylim=(0, top))
    whole.set(
        xlabel="P(all true, no other | data),\nindependent prior",
        ylabel="P(all true, no other | data),\nrepulsive prior",
    )
    whole.set_title("a point: a data set")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=20, help="how many simulated data sets")
    parser.add_argument("--figure", type=Path, default=Path("variable_selection.svg"), help="file for the figure")
    parser.add_argument("--quick", action="store_true", help="one data set and a few draws, to see that it runs")
    options = parser.parse_args(arguments)
    num_datasets, num_samples = (1, 50) if options.quick else (options.datasets, 4000)

    # Closer copies and less noise, where it matters most.
    X, y, _ = simulate(0, spread=0.2, noise=0.3)
    for words, one in (("integrated out", model), ("sampled", model_with_weights)):
        r_hat = largest_r_hat(one, X, y, prior_of("repulsive", X), min(num_samples, 500))
        print(f"weights {words}: the largest R-hat of four chains is {r_hat:.2f}", flush=True)

    found: dict[str, list[float]] = {name: [] for name in PRIORS}
    inclusion: dict[str, list[np.ndarray]] = {name: [] for name in PRIORS}
    truths: list[list[int]] = []
    for seed in range(num_datasets):
        X, y, true = simulate(seed)
        masks = {name: np.asarray(posterior_masks(X, y, prior_of(name, X), num_samples)) for name in PRIORS}
        truth = np.isin(np.arange(NUM_COVARIATES), true)
        for name in PRIORS:
            found[name].append(float(np.mean(np.all(masks[name] == truth, axis=1))))
            inclusion[name].append(masks[name].mean(axis=0))
        truths.append(true)
        line = ", ".join(f"{name} {found[name][-1]:.2f}" for name in PRIORS)
        print(f"data set {seed + 1}: true {true}; share of draws that are exactly these: {line}", flush=True)
    print("mean:", {name: round(float(np.mean(found[name])), 3) for name in PRIORS})
    better = np.array(found["repulsive"]) > np.array(found["independent"])
    print(f"the repulsive prior finds them more often in {better.sum()} of {num_datasets} data sets")
    draw_figure(options.figure, inclusion, truths, found)
    print(f"All data sets are drawn in {options.figure}")
    return found


if __name__ == "__main__":
    main()
