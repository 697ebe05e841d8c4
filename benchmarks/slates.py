"""A recommender's slates: ten of 10⁵ items for one user after the other, some held, a thousand excluded.

    python benchmarks/slates.py [--output FILE.md]

The kernel is `from_quality` of random embeddings, n = 10⁵, d = 64, float32. A user holds two items and has seen 1,000
others: `KNDPP(V, k=12, sampler=Exact()).condition(include=held, exclude=seen)` draws the ten others, exactly.

Work for a new user, by formula: the features are copied with the rows of the seen items set to zero (26 MB read, 26 MB
written). Then come four products over all items of 2 n d² = 0.8 Gflop each, which read the 26 MB once: Gram matrices of
the features as they are and in the basis where that is the identity, the features in that basis (26 MB written), and
the sums of outer products over the tree's leaves (26 MB written). The circles are small beside that. At 30 Gflop/s a
user takes 0.1 s of products. A slate is ten descents of some 12 levels, each with d²/2 numbers read at a node: 0.1 MB
an item, and a circle's d × d matrices between them.

Wall-clock seconds depend on what else runs; CPU seconds are those of all threads of this process.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from tables import machine, write_table

from numpyro_ndpp import KNDPP, Exact
from numpyro_ndpp.recipes import from_quality

NUM_ITEMS, NUM_FEATURES, HELD, SEEN, SLATE = 100_000, 64, 2, 1_000, 10


def catalogue() -> KNDPP:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(NUM_ITEMS, NUM_FEATURES)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    quality = rng.uniform(0.5, 1.5, NUM_ITEMS).astype(np.float32)
    return KNDPP(*from_quality(quality, embeddings), k=SLATE + HELD, sampler=Exact())


def of_user(law: KNDPP, user: int) -> KNDPP:
    items = np.random.default_rng(user).choice(NUM_ITEMS, HELD + SEEN, replace=False)
    return law.condition(include=items[:HELD], exclude=items[HELD:])


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Of the clock, and of all cores together."""
    start, start_cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return time.perf_counter() - start, time.process_time() - start_cpu


def cells(*times: tuple[float, float]) -> str:
    return " | ".join(f"{np.median(column):.2g}" for column in zip(*times, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the table to this file")
    arguments = parser.parse_args()
    law, key = catalogue(), jax.random.key(0)
    first = seconds(lambda: of_user(law, 0).sample(key))
    further = [seconds(lambda user=user: of_user(law, user).sample(key)) for user in range(1, 8)]
    user = of_user(law, 8)
    user.sample(key)
    one = [seconds(lambda seed=seed: user.sample(jax.random.key(seed))) for seed in range(7)]
    first_of_many = seconds(lambda: user.sample(key, (20,)))
    many = [seconds(lambda seed=seed: user.sample(jax.random.key(seed), (20,))) for seed in range(7)]
    lines = [
        f"Machine: {machine()}. n = 10⁵, d = 64, float32; 2 items held, 1,000 excluded; exact slates of 10.",
        "",
        "| what | seconds | CPU seconds | asked for |",
        "|---|---|---|---|",
        f"| the first user's slate, compilation included | {cells(first)} | |",
        f"| a slate of each further user | {cells(*further)} | 1 |",
        f"| one more slate of the same user | {cells(*one)} | |",
        f"| the first 20 slates of a user, compilation included | {cells(first_of_many)} | |",
        f"| 20 more slates of the same user | {cells(*many)} | 0.3 |",
    ]
    print("\n".join(lines))
    write_table(arguments.output, lines)


if __name__ == "__main__":
    main()
