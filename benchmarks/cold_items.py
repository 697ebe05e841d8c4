"""Items that no training basket has: where they stand among what may join a basket, by their features.

    python benchmarks/cold_items.py --data FOLDER --out FILE.json [--table docs/guides/cold_items.md#cold_items]
                                    [--only uk_retail] [--splits 3] [--rank 100 100] [--steps 2000] [--max-size 100]
                                    [--baskets N] [--quick]

FOLDER holds ``uk_retail.npz`` and ``whats_cooking.npz`` (:func:`numpyro_ndpp.datasets.load_baskets`); nothing else is
needed. The protocol, for each file and each split:

1. Baskets larger than ``--max-size`` are left out. The others are put in random order: 2,000 are test baskets, 300
   validation baskets, and the rest is learned from (a quarter and a tenth of all, if there are few).
2. A tenth of the items that occur in any basket are hidden, at random. They are taken out of the baskets learned from
   and of the validation baskets; baskets that are empty then are left out. So no model has seen them bought.
3. Features are the words of the item's name, without the stock code of UK Retail: letters only, in lower case, without
   a plural s, each hashed by CRC-32 to one of 1,024 columns, and rows brought to length one.
4. Of each test basket with a hidden item and another one that is not hidden, one hidden item at random is the target.
   The items of the basket that are not hidden are given. Every item outside the basket gets its probability to join
   them (``next_item_log_prob``), and so does the target.
5. The percentile rank of the target is the share, in percent, of the others that are less likely; equal ones count one
   half. ``among hidden``: the others are the hidden items outside the basket, so that 50 is chance. ``among all``: the
   others are all items outside the basket.

Numbers are means over the test baskets of a split, then over splits; ± is the standard error over splits, or over test
baskets if there is one split. Nothing is chosen by the test baskets. The rows:

- ``popularity``: the counts in what is learned from. Those of hidden items are zero: 50 among hidden, by definition.
- ``residual only``: ``fit`` without features.
- ``features``: ``fit(features=...)``.
- ``features, any basket``: the same fit, by the probability of each item to be bought at all (``inclusion_probs``):
  what the features say of popularity, whatever is in the basket.
- ``words alone``: the words that the target has in common with the items given, as a scalar product: no model.
- ``popularity, had it been known``: the counts in baskets learned from before items were hidden.
"""

import argparse
import json
import re
import time
import zlib
from pathlib import Path

import numpy as np
from tables import machine, write_table

from numpyro_ndpp.datasets import load_baskets
from numpyro_ndpp.learning import fit
from numpyro_ndpp.subsets import pad_subsets

FILES = ("uk_retail", "whats_cooking")
NUM_TEST, NUM_VALIDATION, SHARE_HIDDEN, COLUMNS = 2000, 300, 0.1, 1024
ROWS = (
    "popularity",
    "residual only",
    "features",
    "features, any basket",
    "words alone",
    "popularity, had it been known",
)
_CHUNK = 64


def words_of(name: str, has_code: bool) -> list[str]:
    """The words of an item's name; the first word of UK Retail's is a stock code."""
    text = name.partition(" ")[2] if has_code else name
    return [word.removesuffix("s") if len(word) > 3 else word for word in re.findall(r"[a-z]+", text.lower())]


def hashed_words(items: list[str], has_code: bool, columns: int = COLUMNS) -> np.ndarray:
    """A row of length one for each item, or of zeros where the name has no word."""
    F = np.zeros((len(items), columns), np.float32)
    for i, name in enumerate(items):
        for word in words_of(name, has_code):
            F[i, zlib.crc32(word.encode()) % columns] += 1
    return F / np.maximum(np.linalg.norm(F, axis=1, keepdims=True), 1)


def split(lists: list[list[int]], num_items: int, seed: int) -> tuple[np.ndarray, list, list, list, list]:
    """Which items are hidden, and baskets: to judge by, to learn from as they were, and without the hidden items."""
    rng = np.random.default_rng(seed)
    lists = [lists[i] for i in rng.permutation(len(lists))]
    num_test, num_validation = min(NUM_TEST, len(lists) // 4), min(NUM_VALIDATION, len(lists) // 10)
    occurring = np.unique(np.concatenate(lists))
    hidden = np.sort(rng.choice(occurring, max(2, int(SHARE_HIDDEN * len(occurring))), replace=False))
    test, validation, whole = np.split(np.arange(len(lists)), [num_test, num_test + num_validation])
    is_hidden = np.isin(np.arange(num_items), hidden)

    def without(places: np.ndarray) -> list[list[int]]:
        left = ([item for item in lists[i] if not is_hidden[item]] for i in places)
        return [basket for basket in left if basket]

    return hidden, [lists[i] for i in test], [lists[i] for i in whole], without(whole), without(validation)


def targets(test: list[list[int]], hidden: np.ndarray, seed: int) -> list[tuple[int, list[int], list[int]]]:
    """For each test basket with both: a hidden item, the items that are given, and the whole basket."""
    rng, found = np.random.default_rng((1, seed)), []
    for basket in test:
        out = np.isin(basket, hidden)
        if out.any() and not out.all():
            given = [item for item, is_out in zip(basket, out, strict=True) if not is_out]
            found.append((int(rng.choice(np.array(basket)[out])), given, basket))
    return found


def percentile_ranks(scores: np.ndarray, target: int, basket: list[int], hidden: np.ndarray) -> tuple[float, float]:
    """Of the target, among hidden items outside the basket and among all items outside it."""
    free = np.ones(len(scores), bool)
    free[basket] = False
    ranks = []
    for others in (np.intersect1d(np.flatnonzero(free), hidden), np.flatnonzero(free)):
        below, equal = np.sum(scores[others] < scores[target]), np.sum(scores[others] == scores[target])
        ranks.append(100 * (below + equal / 2) / len(others))
    return ranks[0], ranks[1]


def ranks_of_law(law, found: list, hidden: np.ndarray) -> np.ndarray:
    """Both percentile ranks of every target by a distribution, (t, 2)."""
    n, rows = law.num_items, []
    width = max(len(given) for _, given, _ in found)
    for start in range(0, len(found), _CHUNK):
        part = found[start : start + _CHUNK]
        padded = pad_subsets([given for _, given, _ in part] + [[]] * (_CHUNK - len(part)), n, width)
        scores = np.asarray(law.next_item_log_prob(padded))
        rows += [
            percentile_ranks(row, target, basket, hidden)
            for row, (target, _, basket) in zip(scores, part, strict=False)
        ]
    return np.array(rows)


def judge(lists: list[list[int]], F: np.ndarray, seed: int, strength: float, settings: dict) -> dict[str, np.ndarray]:
    """Both percentile ranks of every target of a split, by every row of the table."""
    n = len(F)
    hidden, test, whole, train, validation = split(lists, n, seed)
    found = targets(test, hidden, seed)
    counts, known = (np.bincount(np.concatenate(part), minlength=n) for part in (train, whole))

    def of_scores(scores_of) -> np.ndarray:
        return np.array([percentile_ranks(scores_of(given), target, basket, hidden) for target, given, basket in found])

    rows = {
        "popularity": of_scores(lambda given: counts),
        "words alone": of_scores(lambda given: F @ F[given].sum(axis=0)),
        "popularity, had it been known": of_scores(lambda given: known),
    }
    known_of_items = {"features": F, "feature_strength": strength}
    for name, more in (("residual only", {}), ("features", known_of_items)):
        start = time.perf_counter()
        law = fit(train, n, validation=validation, seed=seed, progress_bar=False, **settings, **more).distribution()
        print(f"  {name}: {time.perf_counter() - start:.0f} s", flush=True)
        rows[name] = ranks_of_law(law, found, hidden)
    bought = np.asarray(law.inclusion_probs())
    rows["features, any basket"] = of_scores(lambda given: bought)
    return rows


def summary(rows: list[dict[str, np.ndarray]]) -> dict[str, dict[str, float]]:
    """Means over splits with their standard errors, by row."""
    table = {}
    for name in rows[0]:
        means = np.array([each[name].mean(axis=0) for each in rows])
        single = rows[0][name]
        error = single.std(axis=0, ddof=1) / len(single) ** 0.5
        if len(rows) > 1:
            error = means.std(axis=0, ddof=1) / len(rows) ** 0.5
        columns = zip(("among hidden", "among all"), means.mean(axis=0), error, strict=True)
        table[name] = {key: value for c, m, e in columns for key, value in ((c, float(m)), (f"{c} ±", float(e)))}
    return table


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the npz files")
    parser.add_argument("--out", type=Path, help="file for the numbers, as JSON")
    parser.add_argument("--table", type=Path, help="file for the table, as Markdown")
    parser.add_argument("--only", nargs="+", choices=FILES, default=FILES)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--rank", type=int, nargs=2, default=(100, 100), help="columns of V and of B")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--strength", type=float, default=1.0, help="feature_strength of the fit")
    parser.add_argument("--max-size", type=int, help="leave larger baskets out; by default those above the rank")
    parser.add_argument("--baskets", type=int, help="use so many baskets of a file only")
    parser.add_argument("--quick", action="store_true", help="ten steps, to see that it runs")
    options = parser.parse_args(arguments)
    settings = {"rank": tuple(options.rank), "num_steps": 10 if options.quick else options.steps, "patience": 0}
    most = min(options.max_size or sum(options.rank), sum(options.rank))
    results: dict = {
        "settings": settings | {"max_size": most, "columns": COLUMNS, "feature_strength": options.strength},
        "machine": machine(),
    }
    lines: list[str] = []
    for file in options.only:
        lists, items, _ = load_baskets(options.data / f"{file}.npz")
        lists = [basket for basket in lists if len(basket) <= most]
        if options.baskets:
            order = np.random.default_rng(0).permutation(len(lists))[: options.baskets]
            lists = [lists[i] for i in order]
        F = hashed_words(items, has_code=file == "uk_retail")
        print(f"{file}: {len(lists):,} baskets, {len(items):,} items", flush=True)
        rows = [judge(lists, F, seed, options.strength, settings) for seed in range(options.splits)]
        table = summary(rows)
        results[file] = {"targets": [len(each["popularity"]) for each in rows], "table": table}
        lines += ["", f"**{file}**: {len(lists):,} baskets, {len(items):,} items", ""]
        lines += ["| | percentile rank among hidden | among all |", "|---|---|---|"]
        for name in ROWS:
            cells = (f"{table[name][c]:.1f} ± {table[name][c + ' ±']:.1f}" for c in ("among hidden", "among all"))
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
        what = (
            f"Rank {' + '.join(map(str, options.rank))}, {settings['num_steps']} steps, baskets of at most {most} items"
        )
        write_table(options.table, [*lines[1:], "", f"{what}; {options.splits} split(s); {results['machine']}."])
        if options.out:
            options.out.write_text(json.dumps(results, indent=1))
    return results


if __name__ == "__main__":
    main()
