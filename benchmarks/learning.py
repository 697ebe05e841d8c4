"""Kernels learned from real baskets, judged by docs/explanation/learning_protocol.md, beside published numbers.

    python benchmarks/learning.py FOLDER --out RESULTS [--dataset uk_retail ...] [--model ndpp ...] [--seed 0 1 2]
                                  [--chosen FOLDER] [--minutes 9] [--kernels FOLDER] [--quick]
    python benchmarks/learning.py FOLDER --out RESULTS --table [--output FILE.md]

FOLDER holds baskets as npz files (:func:`numpyro_ndpp.datasets.load_baskets`). Each data set, model and split is a file
in RESULTS. What is there is passed over, so that the whole can be done in pieces: ``--minutes`` starts nothing that
would not end in time, going by the longest so far. ``--table`` makes the tables of what is there.

``--chosen`` has files of ``choosing.py``. Strengths and anchor of a model are then the means of those that were chosen
on the other data sets, of a strength the geometric one; without it they are those of ``fit``.

Counted by hand for UK Retail (n = 3,941, d = 200), a step with 500 baskets of 19 items: the Gram matrix and its
derivative 2·2·n d² = 0.6 GFlop, d³ terms 0.1, minors with 19 of 200 features and their derivatives some 0.5: 1.2 GFlop,
and 30 MB of features, gradients and Adam's moments moved several times. Two cores that do 50 GFlop/s would need 25 ms,
one H200 is bound by the hand-over of some hundred small operations. Measured: 0.26 s on two cores, 0.15 of it
for the minors, whose groups pay for the largest basket in each; on one H200 2.5 ms before
gradients summed in a fixed order, and now 6 ms with evaluations and what is done on the host (12 s a fit).
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from tables import machine, write_table

from numpyro_ndpp import NDPP, Rejection, pad_subsets
from numpyro_ndpp.checkpoints import write_whole
from numpyro_ndpp.datasets import Baskets, load_baskets
from numpyro_ndpp.learner import MODELS
from numpyro_ndpp.learning import fit, item_counts
from numpyro_ndpp.metrics import mean_percentile_rank, popularity, subset_auc

NUM_VALIDATION, NUM_TEST, RANK = 300, 2000, 200
BUDGET = {"rank": RANK, "num_steps": 2000, "batch_size": 500, "evaluate_every": 50, "patience": 0}
BASELINES = ("independent", "independent-sized")
REFERENCE = "ndpp"  # what the others are compared with
LARGEST_OF_CLASS = (1, 2, 4, 8, 16, 32, 64)
# MPR, AUC and log-likelihood of Han et al. (ICLR 2022): symmetric, ndpp, ondpp
PUBLISHED = {
    "uk_retail": ("76.42 / .74 / -104.89", "77.09 / .74 / -99.09", "77.12 / .72 / -103.83"),
    "foodcom_subset": ("95.04 / .99 / -44.63 *", "95.17 / .99 / -44.72 *", "95.50 / .99 / -44.56 *"),
    "instacart_train": ("93.06 / .86 / -73.22 *", "92.40 / .87 / -74.94 *", "92.99 / .83 / -72.72 *"),
}
NUMBERS = {  # of a result, with the digits that the table has
    "MPR": 2,
    "MPR, reference": 2,
    "AUC pooled": 3,
    "AUC grouped": 3,
    "AUC paired": 3,
    "log-likelihood": 2,
}
PAIRED = {"MPR": 2, "log-likelihood": 3}


def split(lists: list[list[int]], seed: int, num_validation: int) -> tuple[list[list[int]], ...]:
    """Baskets to learn from, to stop by and to judge by: a simple random choice."""
    num_test, num_validation = min(NUM_TEST, len(lists) // 4), min(num_validation, len(lists) // 10)
    if not num_validation:
        raise ValueError(f"ten baskets at least are needed, got {len(lists)}")
    order = np.random.default_rng(seed).permutation(len(lists))
    test, validation, train = np.split(order, [num_test, num_test + num_validation])
    return tuple([lists[i] for i in part] for part in (train, validation, test))


def settings_elsewhere(folder: Path, dataset: str, model: str) -> tuple[dict[str, float], list[str]]:
    """What was chosen for the model on other data sets, and which these are."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    others = [each for each in found if each["dataset"] != dataset and model in each["chosen"]]
    if not others:
        raise ValueError(f"{folder} has no settings of {model} that were chosen on another data set than {dataset}")
    chosen = [each["chosen"][model] for each in others]
    mean = {name: math.exp(np.mean([math.log(each[name]) for each in chosen])) for name in MODELS[model].strengths}
    anchor = float(np.mean([each["anchor"] for each in chosen]))
    return mean | {"anchor": anchor}, sorted({each["dataset"] for each in others})


def class_shares(shares: np.ndarray) -> list[float]:
    """The shares (s,) of the sizes 0, 1, ... as those of the classes; the last has all larger ones."""
    edges = [1, *(size + 1 for size in LARGEST_OF_CLASS)]
    ends = [*edges[1:], max(len(shares), edges[-1])]
    return [float(shares[low:high].sum()) for low, high in zip(edges, ends, strict=True)]


def class_names() -> list[str]:
    lows = [1, *(size + 1 for size in LARGEST_OF_CLASS[:-1])]
    names = [str(low) if low == high else f"{low}–{high}" for low, high in zip(lows, LARGEST_OF_CLASS, strict=True)]
    return [*names, f"{LARGEST_OF_CLASS[-1] + 1}+"]


def about_sizes(shares: np.ndarray) -> dict[str, Any]:
    sizes = np.arange(len(shares))
    mean = float(shares @ sizes)
    return {"classes": class_shares(shares), "mean": mean, "variance": float(shares @ (sizes - mean) ** 2)}


def judge(law: Any, test: list[list[int]], seed: int) -> dict[str, Any]:
    """The numbers of a result; what is hidden, and the random sets, depend on the seed."""
    settings: dict[str, Any] = {"num_bootstraps": 0, "seed": seed}
    ranks = [mean_percentile_rank(law, test, definition=name, **settings) for name in ("paper", "reference")]
    areas = [subset_auc(law, test, kind=kind, **settings) for kind in ("pooled", "grouped", "paired")]
    values = np.asarray(law.log_prob(pad_subsets(test, law.num_items)), np.float64)
    numbers = [each.value for each in (*ranks, *areas)] + [float(values.mean())]
    found = {"numbers": dict(zip(NUMBERS, numbers, strict=True)), "log_likelihoods": values.round(4).tolist()}
    found["sizes"] = about_sizes(np.exp(np.asarray(law.size_log_prob(), np.float64)))
    if type(law) is NDPP:
        found["numbers"]["proposals"] = float(Rejection().expected_proposals(law))
    return found


def log_polynomials(log_odds: np.ndarray, largest: int) -> np.ndarray:
    """log e_0 to log e_largest of the odds, by one item after the other: nothing cancels."""
    found = np.full(largest + 1, -np.inf)
    found[0] = 0.0
    for each in log_odds:
        found[1:] = np.logaddexp(found[1:], found[:-1] + each)
    return found


def judge_independent(train: list[list[int]], test: list[list[int]], num_items: int, is_sized: bool, seed: int) -> Any:
    """The same for items that are bought whatever the others, and not at all in no basket."""
    counts, ranked = item_counts(train, num_items), popularity(train, num_items)
    log_odds = np.log(counts / np.maximum(len(train) - counts, 0.5))  # an item of all may be missing from the next
    log_e = log_polynomials(log_odds, min(num_items, RANK))
    log_sizes = log_e - np.log1p(np.exp(log_odds)).sum()
    if is_sized:
        seen = np.bincount(list(map(len, train)), minlength=len(log_e))
        log_sizes = np.log((seen + 1) / (len(train) + len(log_e) - 1))
    log_sizes[0] = -np.inf
    log_sizes -= np.logaddexp.reduce(log_sizes)
    values = np.array([log_sizes[len(each)] - log_e[len(each)] + log_odds[each].sum() for each in test])
    settings: dict[str, Any] = {"num_bootstraps": 0, "seed": seed}
    numbers = {
        "MPR": mean_percentile_rank(ranked, test, **settings).value,
        "MPR, reference": mean_percentile_rank(ranked, test, definition="reference", **settings).value,
        "log-likelihood": float(values.mean()),
    }
    return {"numbers": numbers, "log_likelihoods": values.round(4).tolist(), "sizes": about_sizes(np.exp(log_sizes))}


def result_of(data: Baskets, dataset: str, model: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One data set, model and split: fitted, and judged by its test baskets."""
    train, validation, test = split(data.baskets, seed, NUM_VALIDATION)
    found: dict[str, Any] = {"dataset": dataset, "model": model, "seed": seed, "num_items": len(data.items)}
    found["baskets"] = {"train": len(train), "validation": len(validation), "test": len(test)}
    start = time.perf_counter()
    if model in BASELINES:
        found |= judge_independent(train, test, len(data.items), model == BASELINES[1], seed)
        found |= {"settings": {}, "settings_from": "none"}
    else:
        settings, source = dict(MODELS[model].strengths), "defaults"
        if options.chosen:
            settings, others = settings_elsewhere(options.chosen, dataset, model)
            source = f"chosen on {', '.join(others)}"
        budget = BUDGET | ({"num_steps": 10} if options.quick else {})
        settings |= budget | {"model": model, "seed": seed, "progress_bar": False}
        fitted = fit(train, len(data.items), validation=validation, **settings)
        seconds = time.perf_counter() - start
        found |= judge(fitted.distribution(), test, seed)
        scores = fitted.history["validation"] - fitted.history["price"]
        found |= {"settings": fitted.settings, "settings_from": source, "seconds": seconds}
        found |= {"validation": float(fitted.history["validation"][np.argmax(scores)])}
        found |= {"best_step": int(fitted.history["step"][np.argmax(scores)])}
        if options.kernels and seed == min(options.seed):
            options.kernels.mkdir(parents=True, exist_ok=True)
            fitted.save(options.kernels / f"{dataset}_{model}.npz")
    for name, part in (("train", train), ("test", test)):
        found[f"sizes_{name}"] = about_sizes(np.bincount(list(map(len, part))) / len(part))
    return found | {"machine": machine()}


def run(options: argparse.Namespace, files: dict[str, Path]) -> None:
    """Make the results that are not there, one after the other, while there is time."""
    options.out.mkdir(parents=True, exist_ok=True)
    start, longest = time.perf_counter(), 0.0
    for dataset in options.dataset or files:
        data = load_baskets(files[dataset], max_size=RANK)
        for model in options.model:
            for seed in options.seed:
                path = options.out / f"{dataset}_{model}_{seed}.json"
                if path.exists():
                    continue
                begun = time.perf_counter()
                if options.minutes and begun + longest > start + 60 * options.minutes:
                    print("out of time: the same command goes on", flush=True)
                    return
                found = result_of(data, dataset, model, seed, options)
                text = json.dumps(found)
                write_whole(path, lambda file, text=text: file.write(text.encode()))
                longest = max(longest, time.perf_counter() - begun)
                value = found["numbers"]["log-likelihood"]
                print(f"{path.name}: log-likelihood {value:.3f}, {time.perf_counter() - begun:.0f} s", flush=True)


def mean_and_error(values: list[float], digits: int, one: float = math.nan) -> str:
    """A cell: the mean over splits and its standard error, which is ``one`` if there is one split."""
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else one
    return f"{np.mean(values):.{digits}f}" + (f" ± {error:.{digits}f}" if np.isfinite(error) else "")


def error_of_one(results: list[dict[str, Any]], others: list[dict[str, Any]] | None = None) -> float:
    """The standard error over the test baskets of the first split, of the differences if there are others."""
    values = np.array(results[0]["log_likelihoods"])
    if others:
        values = values - np.array(others[0]["log_likelihoods"])
    return float(values.std(ddof=1) / len(values) ** 0.5)


def row(dataset: str, model: str, results: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """A line of the table of one data set, and of the differences to the same splits of the reference."""
    cells = []
    for name, digits in NUMBERS.items():
        values = [each["numbers"][name] for each in results if name in each["numbers"]]
        one = error_of_one(results) if name == "log-likelihood" else math.nan
        cells.append(mean_and_error(values, digits, one) if values else "")
    by_seed = {each["seed"]: each for each in others}
    pairs = [(each, by_seed[each["seed"]]) for each in results if each["seed"] in by_seed]
    for name, digits in PAIRED.items():
        differences = [mine["numbers"][name] - theirs["numbers"][name] for mine, theirs in pairs]
        one = error_of_one([pairs[0][0]], [pairs[0][1]]) if pairs and name == "log-likelihood" else math.nan
        cells.append(mean_and_error(differences, digits, one) if pairs and model != REFERENCE else "")
    proposals = [each["numbers"]["proposals"] for each in results if "proposals" in each["numbers"]]
    cells.append(f"{math.exp(np.mean(np.log(proposals))):.3g}" if proposals else "")
    seconds = [each["seconds"] for each in results if "seconds" in each]
    cells.append(", ".join(f"{each:.0f}" for each in seconds))
    published = dict(zip(("symmetric", "ndpp", "ondpp"), PUBLISHED.get(dataset, ()), strict=False)).get(model, "")
    return f"| {model} | {' | '.join(cells)} | {published} |"


def size_row(name: str, sizes: list[dict[str, Any]]) -> str:
    shares = 100 * np.mean([each["classes"] for each in sizes], axis=0)
    moments = [np.mean([each[moment] for each in sizes]) for moment in ("mean", "variance")]
    return f"| {name} | {' | '.join(f'{share:.2f}' for share in shares)} | {moments[0]:.2f} | {moments[1]:.1f} |"


def tables(out: Path, datasets: list[str], models: list[str]) -> list[str]:
    """Two tables for each data set: the numbers, and the sizes."""
    lines, machines = [], set()
    for dataset in datasets:
        found = {model: [json.loads(path.read_text()) for path in sorted(out.glob(f"{dataset}_{model}_[0-9]*.json"))]
                 for model in models}  # fmt: skip
        found = {model: results for model, results in found.items() if results}
        if not found:
            continue
        every = [each for results in found.values() for each in results]
        machines |= {each["machine"] for each in every}
        number = sum(every[0]["baskets"].values())
        splits = sorted({each["seed"] for each in every})
        lines += ["", f"**{dataset}**: {number:,} baskets, {every[0]['num_items']:,} items, splits {splits}", ""]
        for model, results in found.items():
            sources = sorted({each["settings_from"] for each in results} - {"none"})
            numbers = {name: results[0]["settings"].get(name) for name in ("alpha", "beta", "gamma", "anchor")}
            said = ", ".join(f"{name} {value:.3g}" for name, value in numbers.items() if value is not None)
            lines += [f"- {model}: {' and '.join(sources)} ({said})"] if sources else []
        heads = [*NUMBERS, *(f"{name}, less {REFERENCE}'s" for name in PAIRED), "proposals", "seconds"]
        heads.append("published: MPR / AUC / log-likelihood")
        lines += ["", f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        lines += [row(dataset, model, results, found.get(REFERENCE, [])) for model, results in found.items()]
        lines += ["", "Shares of sizes, in a hundred:", ""]
        lines += [f"| | {' | '.join(class_names())} | mean | variance |", "|---" * (len(class_names()) + 3) + "|"]
        first = next(iter(found.values()))
        lines += [size_row(f"data, {part}", [each[f"sizes_{part}"] for each in first]) for part in ("train", "test")]
        lines += [size_row(model, [each["sizes"] for each in results]) for model, results in found.items()]
    lines += ["", "± is the standard error over the splits; \\* of a larger file than this one.", *sorted(machines)]
    return lines[1:]


def main(arguments: list[str] | None = None) -> list[str]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with npz files of baskets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results, one file each")
    parser.add_argument("--dataset", nargs="+", help="names of the files to use, without .npz")
    every = [*BASELINES, *MODELS]
    parser.add_argument("--model", nargs="+", choices=every, default=every)
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2], help="the splits")
    parser.add_argument("--chosen", type=Path, help="folder with files of choosing.py: settings of other data sets")
    parser.add_argument("--minutes", type=float, help="start nothing that would not end in this time")
    parser.add_argument("--kernels", type=Path, help="folder for the kernels of the first split")
    parser.add_argument("--quick", action="store_true", help="ten steps, to see that it runs")
    parser.add_argument("--table", action="store_true", help="the tables of the results that are there")
    parser.add_argument("--output", type=Path, help="file for the tables, as Markdown")
    options = parser.parse_args(arguments)
    files = {path.stem: path for path in sorted(options.folder.glob("*.npz"))}
    missing = set(options.dataset or ()) - set(files)
    if missing or not files:
        parser.error(f"no {', '.join(sorted(missing)) or 'npz file'} in {options.folder}")
    if options.chosen:
        for dataset in options.dataset or files:  # an error before the first fit, not after hours
            for model in set(options.model) - set(BASELINES):
                settings_elsewhere(options.chosen, dataset, model)
    if not options.table:
        run(options, files)
        return []
    lines = tables(options.out, options.dataset or list(files), options.model)
    print("\n".join(lines), flush=True)
    write_table(options.output, lines)
    return lines


if __name__ == "__main__":
    main()
