"""Completing baskets: a kernel is learned from baskets, shows which items attract and repel, and names what is missing.

Without --data, baskets are simulated for a shop of twelve items, in which tea and coffee are substitutes (people buy
one of them), bread and butter are complements (people buy both), and so on; then what was learned is compared with that
truth. With --data, real baskets are read, some are held out, and the items that were taken out of them are looked for:
the mean percentile rank of the missing item (50 is chance) is compared with that of sheer popularity.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.infer import SVI, Trace_ELBO

from numpyro_ndpp import NDPP, Cholesky, pad_subsets, to_multihot
from numpyro_ndpp.datasets import load_baskets, simulate_baskets
from numpyro_ndpp.figure_style import short_name
from numpyro_ndpp.metrics import hold_out, mean_percentile_rank, popularity
from numpyro_ndpp.plots import panels, plot_pairs, strongest_pairs, style

NUM_HELD_OUT = 2000


def directions(n: int, d: int) -> np.ndarray:
    """A unit vector of d numbers for each item, as far from one another as a random rotation puts them."""
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(max(n, d), d)))
    return rotation[:n] / np.linalg.norm(rotation[:n], axis=1, keepdims=True)


def model(baskets, share: np.ndarray, d1: int, d2: int, spread: tuple[float, float], batch_size: int) -> None:
    """A prior around baskets whose items are bought independently, each as often as it is in the data.

    An item has a quality, which its share of the baskets suggests, and features around a direction of its own: were the
    directions orthogonal and the rest zero, L would be diagonal, with the odds of every item. Small spreads keep rare
    items there; what occurs often enough moves away.
    """
    n = len(share)
    log_quality = numpyro.sample("log_quality", dist.Normal(0.5 * np.log(share / (1 - share)), 0.5).to_event(1))
    V = numpyro.sample("V", dist.Normal(directions(n, d1), spread[0]).to_event(2))
    B = numpyro.sample("B", dist.Normal(0, spread[1]).expand([n, d2]).to_event(2))
    D = numpyro.sample("D", dist.Normal(0, d2**-0.5).expand([d2, d2]).to_event(2))
    quality = jnp.exp(log_quality)[:, None]
    with numpyro.plate("baskets", len(baskets), subsample_size=min(batch_size, len(baskets))):
        numpyro.sample("basket", NDPP(quality * V, quality * B, D), obs=numpyro.subsample(baskets, event_dim=1))


def fit(baskets, share: np.ndarray, d1: int, d2: int, spread: tuple[float, float], num_steps: int) -> NDPP:
    """The MAP estimate by SVI with a falling rate, and a progress bar."""
    n, rng = len(share), np.random.default_rng(1)
    start = {  # drawn from the prior
        "log_quality": 0.5 * np.log(share / (1 - share)) + 0.5 * rng.normal(size=n),
        "V": directions(n, d1) + spread[0] * rng.normal(size=(n, d1)),
        "B": spread[1] * rng.normal(size=(n, d2)),
        "D": d2**-0.5 * rng.normal(size=(d2, d2)),
    }

    def guide(*_) -> None:
        """A point for every site; AutoDelta is the same, and takes longer to begin."""
        for name, value in start.items():
            numpyro.sample(name, dist.Delta(numpyro.param(name + "_point", jnp.array(value)), event_dim=value.ndim))

    adam = numpyro.optim.Adam(lambda step: 0.03 * 0.5 * (1 + jnp.cos(jnp.pi * step / num_steps)))
    posterior = partial(model, share=share, d1=d1, d2=d2, spread=spread, batch_size=500)
    svi = SVI(posterior, guide, adam, Trace_ELBO())
    print("The model is compiled, which takes some seconds; then it is fitted:", flush=True)
    state = jax.jit(svi.init)(random.key(1), baskets)  # as a whole, which takes less time than piece by piece
    points = svi.run(random.key(1), num_steps, baskets, init_state=state).params
    quality = jnp.exp(points["log_quality_point"])[:, None]
    return NDPP(quality * points["V_point"], quality * points["B_point"], points["D_point"], sampler=Cholesky())


def report(title: str, pairs: list, names: list[str], known: list[tuple[str, str]] | None) -> None:
    print(f"\n{title}")
    for a, b, value in pairs:
        pair = (names[a], names[b])
        mark = "" if known is None else "  true" if pair in known or pair[::-1] in known else "  not in the truth"
        print(f"  {pair[0]:>24} + {pair[1]:<24} {value:+6.2f}{mark}")


def complete(law: NDPP, baskets: list[list[int]], names: list[str], number: int = 3) -> None:
    """Print what most likely joins each of some baskets."""
    log_probs = jax.jit(NDPP.next_item_log_prob)(law, pad_subsets(baskets, law.num_items))
    for basket, probs in zip(baskets, np.exp(log_probs), strict=True):
        best = ", ".join(f"{names[item]} ({probs[item]:.0%})" for item in np.argsort(-probs)[:number])
        print(f"  {', '.join(names[item] for item in basket)} -> {best}")


def judge(law: NDPP, held_out: list[list[int]], lists: list[list[int]]) -> None:
    """Hide one item of every held-out basket and look for it."""
    ours, popular = (mean_percentile_rank(each, held_out) for each in (law, popularity(lists, law.num_items)))
    number = sum(len(basket) > 1 for basket in held_out)
    print(f"\nMean percentile rank of a hidden item in {number} held-out baskets: {ours.value:.2f}")
    print(f"by popularity alone: {popular.value:.2f}")


@style()
def draw_figure(path: Path, law: NDPP, baskets, predicted, names: list[str], num_pairs: int) -> None:
    """Sizes and item frequencies of the data and of the model's own baskets, and the strongest pairs."""
    n = len(names)
    figure, [[by_size, by_item, by_pair]] = panels(1, 3, figsize=(10, 3.1), width_ratios=[1, 1, 1.1])
    sizes = [np.sum(np.asarray(values) < n, axis=1) for values in (baskets, predicted)]
    top = int(max(np.quantile(size, 0.995) for size in sizes)) + 1
    for number, (size, label) in enumerate(zip(sizes, ("data", "predicted"), strict=True)):
        shares = np.bincount(size, minlength=top + 1)[: top + 1] / len(size)
        by_size.bar(np.arange(top + 1) + 0.4 * number - 0.2, shares, 0.4, label=label)
    by_size.set(xlabel="items in a basket", ylabel="share of baskets")
    by_size.legend()

    shares = [np.asarray(to_multihot(values, n)).mean(axis=0) for values in (baskets, predicted)]
    most = 1.08 * max(map(np.max, shares))
    by_item.plot([0, most], [0, most], color="0.7", zorder=0)
    by_item.scatter(*shares, s=12)
    labelled: list[np.ndarray] = []
    for item in np.argsort(-shares[0])[:12]:
        place = np.array([shares[0][item], shares[1][item]])
        # Names are wide and low: beside each other they need more room than one above the other.
        if all((np.abs(place - other) > np.array([0.4, 0.07]) * most).any() for other in labelled):
            by_item.annotate(short_name(names[item], 16) + " ", tuple(place), fontsize=7, ha="right", va="bottom")
            labelled.append(place)
    by_item.set(xlabel="share of baskets with an item, data", ylabel="share of baskets with an item,\npredicted")
    plot_pairs(law, names, num_pairs, num_baskets=len(baskets), ax=by_pair)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="baskets: text with one basket per line, or npz (see load_baskets)")
    parser.add_argument("--catalogue", type=Path, help="names of the items, one per line, for text that names them")
    parser.add_argument("--rank", type=int, nargs=2, metavar=("D1", "D2"), help="columns of V and of B")
    parser.add_argument("--figure", type=Path, default=Path("basket_completion.svg"), help="file for the figure")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    options = parser.parse_args(arguments)
    start = time.perf_counter()

    if options.data is None:
        shop = simulate_baskets(200 if options.quick else 2000)
        lists, names, truth = shop.baskets, shop.items, shop.distribution
        known = [[(names[a], names[b]) for a, b in pairs] for pairs in (shop.complements, shop.substitutes)]
        (d1, d2), spread = options.rank or (12, 6), (1.0, 1.0)
        held_out: list[list[int]] = []
        print(f"{len(lists)} simulated baskets of {len(names)} items, for example:")
    else:
        (d1, d2), spread = options.rank or (60, 40), (0.1, 0.25)
        largest = d1 + d2 // 2 * 2  # columns of B count in pairs
        lists, names, _ = load_baskets(options.data, catalogue=options.catalogue, max_size=largest)
        known = None
        lists, held_out = hold_out(lists, min(NUM_HELD_OUT, len(lists) // 4))
        print(f"{len(lists)} baskets to learn from, {len(held_out)} held out, {len(names)} items, for example:")
    n = len(names)
    for basket in lists[:4]:
        print("  " + (", ".join(names[item] for item in basket) or "(nothing)"))

    width = min(n, d1 + d2)
    baskets = pad_subsets(lists, n, width)
    num_steps = 20 if options.quick else 600 if options.data is None else 1200
    counts = np.asarray(to_multihot(baskets, n)).sum(axis=0)
    share = (counts + 0.5) / (len(lists) + 1)
    law = fit(baskets, share, d1, d2, spread, num_steps)

    number = 3 if options.data is None else 6
    pairs = strongest_pairs(law, number, num_baskets=len(lists))
    report("Strongest attraction (bought together):", pairs[0], names, known and known[0])
    report("Strongest repulsion (one instead of the other):", pairs[1], names, known and known[1])

    print("\nWhat is missing in a basket:")
    examples = [[names.index("bread")], [names.index("pasta"), names.index("tea")]] if known else lists[4:7]
    complete(law, examples, names)
    if held_out:
        judge(law, held_out, lists)

    print("\nBaskets are drawn from the fitted model.", flush=True)
    predicted = law.sample(random.key(2), (min(len(lists), 2000),))
    draw_figure(options.figure, law, baskets, predicted, names, number)
    likelihood = jax.jit(lambda law: law.log_prob(baskets).mean())
    print(f"Mean log-likelihood: {likelihood(law):.3f}", end="")
    print(f" (truth {likelihood(truth):.3f})" if known else "")
    print(f"Sizes, item frequencies and pairs are drawn in {options.figure} ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
