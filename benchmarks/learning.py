"""Kernels learned from real baskets, judged as the papers judge theirs, beside the published numbers.

    python benchmarks/learning.py FOLDER [--only uk_retail ...] [--models ndpp ...] [--choices 10] [--quick]
                                  [--output FILE.md] [--kernels FOLDER]

FOLDER holds baskets as npz files (:func:`numpyro_ndpp.datasets.load_baskets`). Of each file 2,000 baskets are held out
to judge by and 300 to stop by; the rest is learned from. No two choices judge by the same basket, so that ten of them
judge by every basket of UK Retail once (but 62). The log-likelihood is about proportional to the size of a basket, and
goes up and down by two units from one simple random choice of 2,000 to another; so baskets are dealt to the choices by
their sizes, as many large ones to each, which leaves the mean over all choices as it is, and 0.3 of the two units. All
kernels have 200 columns: 100 in V and in B as in the papers, other numbers where the name says so, and all in V if the
kernel is symmetric. Files in which some baskets have more than 200 items are refused.

MPR is the mean percentile rank (the papers' definition, and that of the authors' code), AUC in one ranking of all
sizes, averaged over three groups of sizes (the authors' code) and of equal sizes; the mean log-likelihood of the test
baskets, the expected number of proposals of the rejection sampler, and the seconds of a fit, compilation included.
Numbers are means over the choices (of proposals the geometric one); ± is the standard error of the mean, or half the
bootstrap interval if there is one choice. ``independent`` has every item bought as often as in the baskets learned
from, whatever the others.

Counted by hand for UK Retail (n = 3,941, d = 200), a step with 500 baskets of 19 items: the Gram matrix and its
derivative 2·2·n d² = 0.6 GFlop, d³ terms 0.1, minors with 19 of 200 features and their derivatives some 0.5: 1.2 GFlop,
and 30 MB of features, gradients and Adam's moments moved several times. Two cores that do 50 GFlop/s would need 25 ms,
one H200 is bound by the hand-over of some hundred small operations. Measured: 0.26 s on two cores, 0.15 of it
for the minors, whose groups pay for the largest basket in each; on one H200 2.5 ms before
gradients summed in a fixed order, and now 6 ms with evaluations and what is done on the host (12 s a fit).
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from tables import machine, write_table

from numpyro_ndpp import Rejection
from numpyro_ndpp.datasets import load_baskets
from numpyro_ndpp.learning import Fit, fit, item_counts
from numpyro_ndpp.metrics import mean_log_likelihood, mean_percentile_rank, subset_auc
from numpyro_ndpp.subsets import pad_subsets

NUM_VALIDATION, NUM_TEST = 300, 2000
MODELS = {
    "symmetric": {
        **{"model": "symmetric", "rank": (200, 0), "alpha": 10, "anchor": 0.02},
        **{"num_steps": 600, "patience": 8},
    },
    "ndpp": {"model": "ndpp", "rank": (100, 100), "alpha": 200, "beta": 60, "anchor": 0.5, "patience": 0},
    "ndpp-20-180": {"model": "ndpp", "rank": (20, 180), "alpha": 200, "beta": 60, "anchor": 0.5, "patience": 0},
    "ndpp-defaults": {"model": "ndpp", "rank": (100, 100)},
    "ondpp": {
        **{"model": "ondpp", "rank": (100, 100), "alpha": 50, "beta": 0.01, "gamma": 0.6, "anchor": 1},
        **{"max_proposals": 100, "evaluate_every": 20, "patience": 0},
    },
    # six pairs: 2⁶ proposals at most, whatever their σ, so that rejections need no price
    "ondpp-188-12": {
        **{"model": "ondpp", "rank": (188, 12), "alpha": 20, "beta": 0.01, "gamma": 0, "anchor": 1},
        **{"patience": 8},
    },
    "ndpp-papers-prior": {"model": "ndpp", "rank": (100, 100), "alpha": 0.01, "beta": 0.01, "anchor": 0, "patience": 8},
}
# MPR, AUC, log-likelihood of Han et al. (ICLR 2022), by the number of items, which tells the papers' own files: UK
# Retail, Recipe, Instacart, Million Song, Book
PUBLISHED = {
    3_941: ("76.42 / .74 / -104.89", "77.09 / .74 / -99.09", "77.12 / .72 / -103.83"),
    7_993: ("95.04 / .99 / -44.63", "95.17 / .99 / -44.72", "95.50 / .99 / -44.56"),
    49_677: ("93.06 / .86 / -73.22", "92.40 / .87 / -74.94", "92.99 / .83 / -72.72"),
    371_410: ("90.00 / .77 / -310.14", "89.00 / .80 / -314.12", "92.86 / .77 / -305.66"),
    1_059_437: ("72.54 / .70 / -149.76", "72.98 / .74 / -149.93", "75.73 / .64 / -140.67"),
}
COLUMNS = ("MPR", "MPR, reference", "AUC pooled", "AUC grouped", "AUC paired", "log-likelihood", "proposals", "seconds")


def split(lists: list[list[int]], choice: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Baskets to learn from, to stop by and to judge by; all choices judge by baskets of about the same sizes."""
    num_test = min(NUM_TEST, len(lists) // 4)
    num_validation = min(NUM_VALIDATION, len(lists) // 10)
    if num_test == 0:
        raise ValueError(f"four baskets at least are needed, got {len(lists)}")
    num_choices = len(lists) // num_test
    if choice >= num_choices:
        raise ValueError(f"{len(lists)} baskets allow for {num_choices} choices of {num_test} to judge by")
    rng = np.random.default_rng(0)
    order = rng.permutation(len(lists))
    dealt, left = np.split(order, [num_choices * num_test])
    by_size = dealt[np.argsort([len(lists[i]) for i in dealt], kind="stable")]
    # One basket of each row for each choice: the sizes in a row are equal, or neighbours.
    tests = rng.permuted(by_size.reshape(num_test, num_choices), axis=1)
    others = np.concatenate([np.delete(tests, choice, axis=1).ravel(), left])
    rest = np.random.default_rng((1, choice)).permutation(others)
    cuts = tests[:, choice], rest[:num_validation], rest[num_validation:]
    test, validation, train = ([lists[i] for i in part] for part in cuts)
    return train, validation, test


def judge(result: Fit, test: list[list[int]], num_bootstraps: int, seed: int) -> list[tuple[float, float]]:
    """Each number of a row but the seconds, with half its bootstrap interval; what is hidden depends on the seed."""
    law, settings = result.distribution(), {"num_bootstraps": num_bootstraps, "seed": seed}
    estimates = [mean_percentile_rank(law, test, definition=name, **settings) for name in ("paper", "reference")]
    estimates += [subset_auc(law, test, kind=kind, **settings) for kind in ("pooled", "grouped", "paired")]
    estimates.append(mean_log_likelihood(law, test, **settings))
    numbers = [(each.value, (each.high - each.low) / 2) for each in estimates]
    return [*numbers, (float(Rejection().expected_proposals(law)), np.nan)]


def judge_independent(
    counts: np.ndarray, num_baskets: int, test: list[list[int]], seed: int
) -> list[tuple[float, float]]:
    """The same numbers where items are bought independently: those of their popularity and the log-likelihood."""
    # Rare items have equal counts, and each would be ranked before all the others.
    untied = counts + np.random.default_rng(0).random(len(counts)) / 2
    ranks = [mean_percentile_rank(untied, test, definition=name, seed=seed) for name in ("paper", "reference")]
    odds = counts / np.maximum(num_baskets - counts, 0.5)  # an item of all baskets may be missing from the next
    values = np.array([np.log(odds[basket]).sum() for basket in test]) - np.log1p(odds).sum()
    numbers = [(each.value, (each.high - each.low) / 2) for each in ranks]
    likelihood = values.mean(), 1.96 * values.std() / len(values) ** 0.5
    return [*numbers, *[(np.nan, np.nan)] * 3, likelihood, (np.nan, np.nan), (np.nan, np.nan)]


def row(name: str, numbers: list[list[tuple[float, float]]], published: str) -> str:
    """One line of the table from the numbers of each choice."""
    cells = []
    for column, values in zip(COLUMNS, zip(*numbers, strict=True), strict=True):
        points = np.array([value for value, _ in values])
        half = points.std(ddof=1) / len(points) ** 0.5 if len(points) > 1 else values[0][1]
        digits = 3 if column.startswith("AUC") else 0 if column == "seconds" else 2
        if column == "proposals":
            cells.append(f"{np.exp(np.log(points).mean()):.3g}")
        else:
            cells.append(f"{points.mean():.{digits}f}" + (f" ± {half:.{digits}f}" if np.isfinite(half) else ""))
    return f"| {name} | {' | '.join(cells)} | {published} |"


def main(arguments: list[str] | None = None) -> list[str]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with npz files of baskets")
    parser.add_argument("--only", nargs="+", help="names of the files to use, without .npz")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--choices", type=int, default=1, help="how many choices of the held-out baskets")
    parser.add_argument("--steps", type=int, help="steps of a fit at most, instead of the model's own number")
    parser.add_argument("--quick", action="store_true", help="ten steps, to see that it runs")
    parser.add_argument("--output", type=Path, help="file for the table, as Markdown")
    parser.add_argument("--kernels", type=Path, help="folder for the kernels of the first choice")
    options = parser.parse_args(arguments)
    found = {path.stem: path for path in sorted(options.folder.glob("*.npz"))}
    missing = set(options.only or ()) - set(found)
    if missing or not found:
        parser.error(f"no {', '.join(sorted(missing)) or 'npz file'} in {options.folder}")
    files = {name: load_baskets(path, max_size=200) for name, path in found.items() if name in (options.only or found)}
    for data in files.values():
        split(data.baskets, options.choices - 1)  # an error before the first fit, not after hours

    lines: list[str] = []
    for file, (lists, items, _) in files.items():
        n = len(items)
        lines += ["", f"**{file}**: {len(lists):,} baskets, {n:,} items", ""]
        lines += [
            f"| | {' | '.join(COLUMNS)} | published: MPR / AUC / log-likelihood |",
            "|---" * (len(COLUMNS) + 2) + "|",
        ]
        print("\n".join(lines[-4:]), flush=True)
        for name in ("independent", *options.models):
            numbers = []
            for choice in range(options.choices):
                train, validation, test = split(lists, choice)
                if name == "independent":
                    numbers.append(judge_independent(item_counts(pad_subsets(train, n), n), len(train), test, choice))
                    continue
                settings = dict(MODELS[name])
                if options.steps:
                    settings["num_steps"] = options.steps
                if options.quick:
                    settings |= {"num_steps": 10, "patience": 0}
                start = time.perf_counter()
                # The papers' law allows for the empty basket.
                settings = {"min_size": 0, "validation": validation, "seed": choice} | settings
                result = fit(train, n, progress_bar=False, **settings)
                seconds = time.perf_counter() - start
                numbers.append([*judge(result, test, 0 if options.quick else 200, choice), (seconds, np.nan)])
                print(row(f"{name}, choice {choice}", numbers[-1:], ""), file=sys.stderr, flush=True)
                if options.kernels and choice == 0:
                    options.kernels.mkdir(parents=True, exist_ok=True)
                    result.save(options.kernels / f"{file}_{name}.npz")
            published = dict(zip(("symmetric", "ndpp", "ondpp"), PUBLISHED.get(n, ()), strict=False))
            line = row(name, numbers, published.get(name, ""))
            lines.append(line.replace(" nan ", "  ") if name == "independent" else line)
            print(lines[-1], flush=True)
            write_table(
                options.output, [*lines[1:], "", f"{machine()}; {options.choices} choice(s) of held-out baskets."]
            )
    return lines[1:]


if __name__ == "__main__":
    main()
