"""Settings chosen by search against the defaults of fit, on test baskets that neither has seen.

    python benchmarks/choosing.py --data FOLDER --dataset groceries --out groceries.json [--budget MINUTES] [--seed 0]
                                  [--model ndpp ...] [--folder FOLDER] [--quick]

FOLDER holds baskets as npz files (:func:`numpyro_ndpp.datasets.load_baskets`). The protocol:

1. Of all baskets 2,000 are for the test, as in docs/explanation/learning_protocol.md for the same seed; a tenth of
   all, at most 2,000, are for validation; the rest is for training. A simple random choice.
2. ``search`` with its defaults, on training and validation baskets. ``--budget`` gives it other minutes than its 25.
3. ``fit`` with its defaults, on the same training and validation baskets.
4. The test baskets are looked at once, for both kernels: log-likelihoods of the same baskets, whose differences have a
   mean and a standard error; and the percentile rank of the same hidden items.

The file has all of it, the table of the search, and for each model the settings of its best line, which
``learning.py --chosen`` takes for *other* data sets. A file that is there is not made again. With ``--folder`` a search
that was stopped goes on; a time limit from outside does no harm then.

Counted by hand: 27 runs of 222 steps, 10 of 666 and 4 of 2,000 are 21,000 steps, 10 fits' worth. On one H200 a step
takes 6 ms (UK Retail), and the five programs some 20 s each to compile: four minutes.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from learning import split
from tables import machine

from numpyro_ndpp.checkpoints import write_whole
from numpyro_ndpp.datasets import load_baskets
from numpyro_ndpp.learner import MODELS
from numpyro_ndpp.learning import Fit, fit
from numpyro_ndpp.metrics import mean_percentile_rank
from numpyro_ndpp.search import search
from numpyro_ndpp.subsets import pad_subsets

NUM_VALIDATION = 2000
QUICK = {"ranks": [40], "num_trials": 6, "num_steps": 90, "evaluate_every": 10}


def judge(result: Fit, test: list[list[int]], seed: int) -> tuple[np.ndarray, float]:
    """The log-likelihood of every test basket, and the mean percentile rank of items hidden in them."""
    law = result.distribution()
    values = np.asarray(law.log_prob(pad_subsets(test, law.num_items)), np.float64)
    return values, mean_percentile_rank(law, test, num_bootstraps=0, seed=seed).value


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with npz files of baskets")
    parser.add_argument("--dataset", required=True, help="the name of a file, without .npz")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--budget", type=float, default=25.0, metavar="MINUTES", help="of the search (25)")
    parser.add_argument("--seed", type=int, default=0, help="of the split and of all fits")
    parser.add_argument("--model", nargs="+", choices=list(MODELS), help="models to try")
    parser.add_argument("--folder", type=Path, help="where the search keeps its runs, to go on from")
    parser.add_argument("--quick", action="store_true", help="a few short runs, to see that it runs")
    options = parser.parse_args(arguments)
    if options.out.exists():
        parser.error(f"{options.out} is there: its test baskets have been looked at")
    data = load_baskets(options.data / f"{options.dataset}.npz", max_size=200)
    train, validation, test = split(data.baskets, options.seed, NUM_VALIDATION)
    common: dict[str, Any] = {"validation": validation, "seed": options.seed}

    start = time.perf_counter()
    found = search(
        train,
        len(data.items),
        models=options.model,
        seconds=60 * options.budget,
        folder=options.folder,
        **common,
        **(QUICK if options.quick else {}),
    )
    minutes = (time.perf_counter() - start) / 60
    print(found, f"{minutes:.1f} minutes", sep="\n", flush=True)
    short = {"num_steps": 90, "evaluate_every": 10, "rank": 40} if options.quick else {}
    usual = fit(train, len(data.items), **common, **short)

    (values, rank), (usual_values, usual_rank) = (judge(each, test, options.seed) for each in (found.best, usual))
    difference = values - usual_values
    error = float(difference.std(ddof=1) / len(difference) ** 0.5)
    lines = json.loads(found.table.to_json(orient="records"))  # missing strengths are null
    best = {model: next((line for line in lines if line["model"] == model), None) for model in MODELS}
    report = {
        "dataset": options.dataset,
        "seed": options.seed,
        "baskets": {"train": len(train), "validation": len(validation), "test": len(test)},
        "minutes": minutes,
        "minutes of all runs": found.table["seconds"].sum() / 60,
        "best": found.best.settings,
        "chosen": {model: line for model, line in best.items() if line is not None},
        "search": {"log-likelihood": values.mean(), "MPR": rank},
        "defaults": {"log-likelihood": usual_values.mean(), "MPR": usual_rank},
        "difference": {"log-likelihood": difference.mean(), "standard error": error, "MPR": rank - usual_rank},
        "table": lines,
        "machine": machine(),
    }
    write_whole(options.out, lambda file: file.write(json.dumps(report, indent=1).encode()))
    print(
        f"log-likelihood of test baskets: {values.mean():.3f}, by the defaults {usual_values.mean():.3f}, "
        f"difference {difference.mean():.3f} ± {error:.3f}; MPR {rank:.2f} and {usual_rank:.2f}"
    )
    return report


if __name__ == "__main__":
    main()
