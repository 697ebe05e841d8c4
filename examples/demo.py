"""The main job in under a minute: baskets with known complements and substitutes, a model, and what it learned.

A shop of twelve items sells tea and coffee (substitutes: people buy one of them), bread and butter (complements: people
buy both), and so on. Two thousand baskets are simulated from a kernel that says so; a NumPyro model is fitted to
them by SVI; the learned kernel is asked which items attract and which repel.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta

from numpyro_ndpp import NDPP, unpad_subsets

ITEMS = ["tea", "coffee", "bread", "butter", "pasta", "sauce", "cola", "juice", "soap", "candles", "rice", "beans"]
SUBSTITUTES = [("tea", "coffee"), ("cola", "juice"), ("rice", "beans")]
COMPLEMENTS = [("bread", "butter"), ("pasta", "sauce"), ("soap", "candles")]
NUM_BASKETS, NUM_STEPS = 2000, 800


def true_kernel() -> NDPP:
    """Substitutes share a direction of V; complements are tied by one skew pair of B and D."""
    n = len(ITEMS)
    number = {name: i for i, name in enumerate(ITEMS)}
    V, B, D = 0.6 * np.eye(n), np.zeros((n, 2 * len(COMPLEMENTS))), np.zeros((2 * len(COMPLEMENTS),) * 2)
    for first, second in SUBSTITUTES:
        V[number[second]] = 0.95 * V[number[first]] + 0.2 * V[number[second]]
    for j, (first, second) in enumerate(COMPLEMENTS):
        B[number[first], 2 * j] = B[number[second], 2 * j + 1] = 0.9
        D[2 * j, 2 * j + 1] = 1.0
    return NDPP(V, B, D).with_expected_size(3.0)


def model(baskets: jnp.ndarray, n: int, d1: int, d2: int) -> None:
    V = numpyro.sample("V", dist.Normal(0, 1).expand([n, d1]).to_event(2))
    B = numpyro.sample("B", dist.Normal(0, 1).expand([n, d2]).to_event(2))
    D = numpyro.sample("D", dist.Normal(0, 1).expand([d2, d2]).to_event(2))
    with numpyro.plate("baskets", len(baskets)):
        numpyro.sample("basket", NDPP(V, B, D), obs=baskets)


def attraction(law: NDPP) -> np.ndarray:
    """log [P(ab) P(∅) / (P(a) P(b))] for all pairs: above zero the two attract, below they repel."""
    n = law.num_items
    first, second = np.triu_indices(n, 1)
    none = law.log_prob(jnp.zeros(0, jnp.int32))
    single = np.asarray(law.log_prob(jnp.arange(n, dtype=jnp.int32)[:, None]))
    pair = np.asarray(law.log_prob(jnp.stack([jnp.asarray(first), jnp.asarray(second)], axis=1)))
    matrix = np.zeros((n, n))
    matrix[first, second] = matrix[second, first] = pair + none - single[first] - single[second]
    return matrix


def report(title: str, pairs: list[tuple[float, int, int]], known: list[tuple[str, str]]) -> None:
    print(f"\n{title}")
    for value, a, b in pairs:
        names = (ITEMS[a], ITEMS[b])
        mark = "true" if names in known or names[::-1] in known else "not in the truth"
        print(f"  {names[0]:>8} + {names[1]:<8} {value:+6.2f}   {mark}")


def main() -> None:
    truth = true_kernel()
    baskets = truth.sample(random.key(0), (NUM_BASKETS,))
    print(f"{NUM_BASKETS} simulated baskets of {len(ITEMS)} items, for example:")
    for basket in unpad_subsets(baskets[:4], len(ITEMS)):
        print("  " + (", ".join(ITEMS[item] for item in basket) or "(nothing)"))

    n, d1, d2 = len(ITEMS), 8, 6
    guide = AutoDelta(model)
    svi = SVI(model, guide, numpyro.optim.Adam(0.02), Trace_ELBO())
    result = svi.run(random.key(1), NUM_STEPS, baskets, n, d1, d2)
    estimate = guide.median(result.params)
    learned = NDPP(estimate["V"], estimate["B"], estimate["D"])

    print("\nHow often an item is bought:   in truth   learned   in the baskets")
    share = jnp.zeros(n + 1).at[baskets].add(1.0)[:n] / NUM_BASKETS
    for name, *numbers in zip(ITEMS, truth.inclusion_probs(), learned.inclusion_probs(), share, strict=True):
        print(f"  {name:>8}" + " " * 20 + "   ".join(f"{float(number):8.3f}" for number in numbers))

    matrix = attraction(learned)
    pairs = sorted((matrix[a, b], a, b) for a in range(n) for b in range(a))
    report("Strongest attraction (bought together):", pairs[::-1][: len(COMPLEMENTS)], COMPLEMENTS)
    report("Strongest repulsion (one instead of the other):", pairs[: len(SUBSTITUTES)], SUBSTITUTES)
    mean = float(learned.log_prob(baskets).mean())
    print(f"\nMean log-likelihood: learned {mean:.3f}, truth {float(truth.log_prob(baskets).mean()):.3f}")


if __name__ == "__main__":
    main()
