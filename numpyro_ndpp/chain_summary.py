"""A table that judges chains of subsets: R-hat, ESS, frequencies against exact ones, and in words what is wrong.

:mod:`numpyro_ndpp.diagnostics` makes the data and says which numbers a subset is judged by.
"""

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from numpyro_ndpp.checks import finite_float, static_int

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ConvergenceWarning", "summarize_chains"]

# An item has a z-score if the expected numbers of effective draws with it and without it are at least this.
_LEAST_COUNT = 10.0
# Pairs are taken from so many of the likeliest items that vary.
_ITEMS_OF_PAIRS = 60


class ConvergenceWarning(UserWarning):
    """The chains do not agree with one another, or with the exact distribution."""


def _is_constant(x: np.ndarray) -> np.ndarray:
    """Whether arrays (chain, draw, ...) are the same number throughout."""
    return (x == x[:1, :1]).all(axis=(0, 1))


def _judge(x: np.ndarray, seconds: float | None) -> dict[str, np.ndarray]:
    """Mean, deviation, R-hat, PSRF and ESS of quantities (chain, draw, m) of which none is constant."""
    import arviz as az
    from numpyro.diagnostics import gelman_rubin

    x = np.asarray(x, np.float64)
    if x.shape[-1] == 0:
        return {}
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        # Chains may be stuck at different values: the within-chain variance is then zero, and the factors are infinite.
        warnings.simplefilter("ignore")
        bulk = az.ess({"x": x}, method="bulk")["x"].values
        tail = az.ess({"x": x}, method="tail", prob=(0.05, 0.95))["x"].values
        r_hat = az.rhat({"x": x})["x"].values
        psrf = np.asarray(gelman_rubin(x))
    stuck = (x == x[:, :1]).all(axis=(0, 1))
    return {
        "mean": x.mean(axis=(0, 1)),
        "sd": x.std(axis=(0, 1), ddof=1),
        "ess_bulk": bulk,
        "ess_tail": tail,
        "ess_per_sec": bulk / seconds if seconds else np.full_like(bulk, np.nan),
        "r_hat": np.where(stuck, np.inf, r_hat),
        "psrf": np.where(stuck, np.inf, psrf),
    }


_LOW_IS_BAD, _HIGH_IS_BAD = ("ess_bulk", "ess_tail", "ess_per_sec"), ("r_hat", "psrf")


def _rows_of_many(name: str, judged: dict[str, np.ndarray], z: np.ndarray | None) -> list[dict[str, Any]]:
    """The worst, the worst tenth and the median of many like quantities, each column by itself."""
    if not judged:
        return []
    columns = {key: judged[key] for key in _LOW_IS_BAD + _HIGH_IS_BAD}
    rows = []
    for label, level in (("worst", 1.0), ("worst tenth", 0.9), ("median", 0.5)):
        row: dict[str, Any] = {"": f"{name}: {label}"}
        for key, values in columns.items():
            badness = level if key in _HIGH_IS_BAD else 1 - level
            # ArviZ leaves out the middle of an odd number of draws: an item that varies only there has no R-hat.
            known = values[~np.isnan(values)]
            row[key] = np.quantile(known, badness, method="nearest") if len(known) else np.nan
        if z is not None and len(z):
            row["z"] = np.quantile(np.abs(z), level, method="nearest")
        row["number"] = len(judged["mean"])
        rows.append(row)
    return rows


def _likeliest_pairs(included: np.ndarray, items: np.ndarray, num_pairs: int) -> tuple[np.ndarray, list[tuple]]:
    """The pairs of items that are most often together: indicators (chain, draw, m), and the items of each."""
    share = included.mean(axis=(0, 1))
    varying = np.flatnonzero((share > 0) & (share < 1))
    candidates = np.sort(varying[np.argsort(-share[varying], kind="stable")[:_ITEMS_OF_PAIRS]])
    x = included[..., candidates].reshape(included.shape[0] * included.shape[1], len(candidates)).astype(np.float32)
    together = x.T @ x
    pairs = sorted(itertools.combinations(range(len(candidates)), 2), key=lambda pair: -together[pair])[:num_pairs]
    first, second = candidates[np.array(pairs, int).reshape(-1, 2)].T
    both = included[..., first] & included[..., second]
    varies = ~_is_constant(both)
    return both[..., varies], list(zip(items[first[varies]].tolist(), items[second[varies]].tolist(), strict=True))


def _widest_split(included: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The direction (m,) in which the chains' means differ most, and the draws along it (chain, draw, 1).

    The direction comes from the first half of the draws and is judged on the second half. So chains that have mixed
    have an R-hat of one along it, however many items there are.
    """
    if included.shape[-1] == 0:
        return np.zeros(0), np.zeros((*included.shape[:2], 1))
    half = included.shape[1] // 2
    means = included[:, :half].mean(axis=1)
    direction = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)[2][0]
    return direction, included[:, half:] @ direction[:, None]


def _two_sides(direction: np.ndarray, items: np.ndarray) -> str:
    order, cut = np.argsort(direction), 0.3 * np.abs(direction).max()
    parts = ([i for i in order[::-1] if direction[i] > cut], [i for i in order if direction[i] < -cut])
    return " against ".join(", ".join(str(items[i]) for i in part[:5]) or "the others" for part in parts)


def _disagreement(about: str, r_hat: float, threshold: float) -> list[str]:
    return [f"The chains disagree {about}: R-hat is {r_hat:.2f}, above {threshold}."] if r_hat > threshold else []


def _disagreement_about_many(name: str, judged: dict[str, np.ndarray], labels: list, threshold: float) -> list[str]:
    if not judged or np.isnan(judged["r_hat"]).all():
        return []
    bad, worst = judged["r_hat"] > threshold, int(np.nanargmax(judged["r_hat"]))
    about = f"about {bad.sum()} of {len(bad)} {name}, most about {labels[worst]}"
    return _disagreement(about, judged["r_hat"][worst], threshold)


def summarize_chains(data: Any, *, num_pairs: int = 20, threshold: float = 1.05) -> "pd.DataFrame":
    """A table that judges chains of subsets, as ``az.summary`` does for numbers, and in words what is wrong.

    Rows: ``log_det``; ``size``; the items that vary (worst, worst tenth, median, each column by itself); a weighted sum
    of items; the pairs of items that are most often together; the items that never vary, which are only counted. The
    weighted sum is the one by which the first halves of the chains differ most. It is judged on the second halves: many
    items that differ a little make a sum that differs much.

    Columns: ``mean``, ``sd``; ``ess_bulk``, ``ess_tail``; ``ess_per_sec``, if the data know how long they took;
    ``r_hat``, ArviZ's rank-normalised one; ``psrf``, the classical one; ``z``, the gap between an item's frequency and
    its exact probability in standard errors, for items that are not too rare; ``number``, the quantities in a row.

    :param data: from :func:`run_chains` or :func:`chains_to_arviz`, at least two chains of at least four draws.
    :param num_pairs: how many pairs are judged.
    :param threshold: the R-hat above which chains disagree.
    :return: the table. ``table.attrs["problems"]`` says in sentences what is wrong; a :class:`ConvergenceWarning` too.
    :raises ValueError: for other data, a single chain, fewer than four draws.

    >>> from jax import random
    >>> from numpyro_ndpp import KNDPP, run_chains, summarize_chains
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(8, 3), (8, 4), (4, 4)]))
    >>> data = run_chains(KNDPP(V, B, D, k=3), random.key(3), num_chains=4, num_steps=1000)
    >>> table = summarize_chains(data)
    >>> bool(table.loc["log_det", "r_hat"] < 1.05), table.attrs["problems"]
    (True, [])
    """
    import pandas as pd
    from scipy import stats

    num_pairs, threshold = static_int("num_pairs", num_pairs, 0), finite_float("threshold", threshold, 0)
    try:
        posterior, exact = data["posterior"], np.asarray(data["constant_data"]["inclusion_probs"].values, np.float64)
        log_det, size, included = (posterior[name].values for name in ("log_det", "size", "included"))
        items, subsets = posterior["item"].values, posterior["subset"].values
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"data must come from run_chains or chains_to_arviz; something is missing: {error}") from None
    num_chains, num_draws = log_det.shape
    if num_chains < 2:
        raise ValueError("data has one chain: at least two are needed to see whether they agree")
    if num_draws < 4:
        raise ValueError(f"data has {num_draws} draws a chain: R-hat and ESS need at least four")
    seconds = posterior.attrs.get("sampling_time")

    rows = []
    for name, x in (("log_det", log_det), ("size", size)):
        finite = x[np.isfinite(x)] if np.isfinite(x).any() else np.full(2, np.nan)
        row: dict[str, Any] = {"": name, "mean": finite.mean(), "sd": finite.std(ddof=1), "number": 1}
        if not _is_constant(x) and np.isfinite(x).all():
            row |= {key: values[0] for key, values in _judge(x[..., None], seconds).items()}
        rows.append(row)

    varies = ~_is_constant(included)
    of_items = _judge(included[..., varies], seconds)
    ess = np.full(len(items), float(num_chains))
    if of_items:
        moving = np.isfinite(of_items["ess_bulk"]) & ~np.isinf(of_items["r_hat"])
        ess[varies] = np.where(moving, of_items["ess_bulk"], num_chains)
        ess[~varies] = np.median(ess[varies])  # like the others: for a constant ArviZ counts every draw
    variance = exact * (1 - exact)
    # How often a rare item is drawn is not normal: such items have no z-score.
    common = ess * variance >= _LEAST_COUNT
    z = np.where(common, (included.mean(axis=(0, 1)) - exact) / np.sqrt(np.where(common, variance / ess, 1.0)), 0.0)
    rows += _rows_of_many("items", of_items, z[varies & common])
    direction, along = _widest_split(included)
    split: dict[str, Any] = {"": "items: widest split", "mean": along.mean(), "sd": along.std(ddof=1), "number": 1}
    if not _is_constant(along).any() and num_draws >= 8:
        split |= {key: values[0] for key, values in _judge(along, seconds).items()}
        rows.append(split)
    pairs, pair_items = _likeliest_pairs(included, items, num_pairs)
    of_pairs = _judge(pairs, seconds)
    rows += _rows_of_many("pairs", of_pairs, None)
    if (~varies).any():
        gap = np.abs(z[~varies & common]).max(initial=0.0) if (~varies & common).any() else np.nan
        rows.append({"": "items that never vary", "z": gap, "number": int((~varies).sum())})

    problems, disagreements = [], []
    if not np.isfinite(log_det).all():
        problems.append(f"{np.sum(~np.isfinite(log_det))} of {log_det.size} draws have probability zero.")
    still = np.flatnonzero((subsets == subsets[:, :1]).all(axis=(1, 2)))
    if len(still) and not ((exact < 1e-12) | (exact > 1 - 1e-12)).all():
        which = f"chain {still[0]} is" if len(still) == 1 else f"{len(still)} of {num_chains} chains are"
        disagreements.append(f"{which} constant: the same subset in all {num_draws} draws.")
    for what, row in (("log det", rows[0]), ("the size", rows[1])):
        disagreements += _disagreement(f"about {what}", row.get("r_hat", 1.0), threshold)
    disagreements += _disagreement_about_many("items", of_items, [f"item {i}" for i in items[varies]], threshold)
    if split.get("r_hat", 1.0) > threshold:
        disagreements.append(
            f"The chains are in different parts of the catalogue, items {_two_sides(direction, items)}: R-hat is "
            f"{split['r_hat']:.2f} for the weighted sum of items that parts them most, above {threshold}."
        )
    disagreements += _disagreement_about_many("pairs", of_pairs, pair_items, threshold)
    if disagreements:
        problems += [*disagreements, "Chains that disagree have not run long enough, or cannot reach one another."]
    least = 10 * num_chains
    if rows[0].get("ess_bulk", least) < least:
        problems.append(
            f"The {log_det.size} draws are worth {rows[0]['ess_bulk']:.0f} independent ones for log det; ten a chain, "
            f"{least}, are the least that R-hat and ESS can be trusted with."
        )
    worst = int(np.argmax(np.abs(z))) if len(z) else 0
    # One false alarm in a thousand tables.
    if len(z) and abs(z[worst]) > stats.norm.isf(0.5e-3 / len(z)):
        problems.append(
            f"Frequencies differ from the exact probabilities: item {items[worst]} is drawn "
            f"{'more' if z[worst] > 0 else 'less'} often than it should be, by {abs(z[worst]):.1f} standard errors."
        )
    columns = ["mean", "sd", "ess_bulk", "ess_tail", "ess_per_sec", "r_hat", "psrf", "z", "number"]
    table = pd.DataFrame(rows).set_index("").rename_axis(None).reindex(columns=columns)
    table["number"] = table["number"].astype(int)
    if seconds is None:
        table = table.drop(columns="ess_per_sec")
    table.attrs["problems"] = problems
    if problems:
        warnings.warn("\n".join(problems), ConvergenceWarning, stacklevel=2)
    return table
