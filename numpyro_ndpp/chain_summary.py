"""A table that judges chains of subsets: R-hat, ESS, frequencies against exact ones, and in words what is wrong.

:mod:`numpyro_ndpp.diagnostics` makes the data and says which numbers a subset is judged by.
"""

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ConvergenceWarning", "summarize_chains"]

# The expected number of effective draws with an item, and without it, from which a z-score is one.
_LEAST_COUNT = 10.0
# Pairs are sought among so many of the likeliest items that vary.
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
        # Chains that are stuck at different values: the within-chain variance is zero, and the factors are infinite.
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
            # ArviZ leaves out the middle one of an odd number of draws: an item that varies nowhere else has no R-hat.
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
    chosen = [(int(candidates[a]), int(candidates[b])) for a, b in pairs]
    both = [included[..., a] & included[..., b] for a, b in chosen]
    names = [(int(items[a]), int(items[b])) for a, b in chosen]
    if not both:
        return np.zeros((*included.shape[:2], 0)), []
    stacked = np.stack(both, axis=-1)
    varies = ~_is_constant(stacked)
    return stacked[..., varies], [name for name, keep in zip(names, varies, strict=True) if keep]


def _widest_split(included: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The direction (m,) in which the chains' means differ most, and the draws along it (chain, draw, 1).

    The direction comes from the first half of the draws and is judged on the second: chains that have mixed have an
    R-hat of one along it, however many items there are to choose from.
    """
    if included.shape[-1] == 0:
        return np.zeros(0), np.zeros((*included.shape[:2], 1))
    half = included.shape[1] // 2
    means = included[:, :half].mean(axis=1)
    direction = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)[2][0]
    return direction, included[:, half:] @ direction[:, None]


def summarize_chains(data: Any, *, num_pairs: int = 20, threshold: float = 1.05) -> "pd.DataFrame":
    """A table that judges chains of subsets, as ``az.summary`` does for numbers, and in words what is wrong.

    Rows: ``log_det``; ``size``; the items that vary (worst, worst tenth, median, each column by itself); a weighted sum
    of items, the one by which the first halves of the chains differ most, in the second halves (many items that differ
    a little make a sum that differs much); the pairs of items that are most often together; the items that never vary,
    which are counted and not averaged in. Columns:
    ``mean``, ``sd``; ``ess_bulk``, ``ess_tail``; ``ess_per_sec``, where the data know how long they took; ``r_hat``,
    ArviZ's rank-normalised one; ``psrf``, the classical one; ``z``, the gap between an item's frequency and its exact
    probability in standard errors, for items that are not too rare; ``number``, of how many quantities a row tells.

    :param data: from :func:`run_chains` or :func:`chains_to_arviz`: two chains at least, of four draws at least.
    :param num_pairs: how many pairs.
    :param threshold: the R-hat above which chains are said to disagree.
    :return: the table. What is wrong is in ``table.attrs["problems"]``, a list of sentences, and given out as a
        :class:`ConvergenceWarning`.
    :raises ValueError: for data without the variables above, a single chain, fewer than four draws.

    >>> from jax import random
    >>> from numpyro_ndpp import KNDPP, run_chains, summarize_chains
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(8, 3), (8, 4), (4, 4)]))
    >>> data = run_chains(KNDPP(V, B, D, k=3), random.key(3), num_chains=4, num_steps=1000)
    >>> table = summarize_chains(data)
    >>> bool(table.loc["log_det", "r_hat"] < 1.05), table.attrs["problems"]
    (True, [])
    """
    import pandas as pd

    try:
        posterior, exact = data["posterior"], np.asarray(data["constant_data"]["inclusion_probs"].values, np.float64)
        log_det, size, included = (posterior[name].values for name in ("log_det", "size", "included"))
        items, subsets = posterior["item"].values, posterior["subset"].values
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"data must come from run_chains or chains_to_arviz; something is missing: {error}") from None
    num_chains, num_draws = log_det.shape
    if num_chains < 2:
        raise ValueError("data has one chain: whether chains agree takes two at least")
    if num_draws < 4:
        raise ValueError(f"data has {num_draws} draws a chain: R-hat and ESS take four at least")
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
        ess[~varies] = np.median(ess[varies])  # as much as the others say: ArviZ counts every draw there
    variance = exact * (1 - exact)
    # The number of draws with a rare item is no normal one; such items have no z-score.
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
        worst = np.abs(z[~varies & common]).max(initial=0.0) if (~varies & common).any() else np.nan
        rows.append({"": "items that never vary", "z": worst, "number": int((~varies).sum())})

    problems = []
    if not np.isfinite(log_det).all():
        problems.append(f"{np.sum(~np.isfinite(log_det))} of {log_det.size} draws have probability zero.")
    problems += _problems(
        subsets,
        rows[0],
        rows[1],
        items,
        varies,
        of_items,
        z,
        split,
        direction,
        pair_items,
        of_pairs,
        threshold,
        certain=bool(((exact < 1e-12) | (exact > 1 - 1e-12)).all()),
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


def _problems(
    subsets: np.ndarray,
    log_det: dict[str, Any],
    size: dict[str, Any],
    items: np.ndarray,
    varies: np.ndarray,
    of_items: dict[str, np.ndarray],
    z: np.ndarray,
    split: dict[str, Any],
    direction: np.ndarray,
    pair_items: list[tuple],
    of_pairs: dict[str, np.ndarray],
    threshold: float,
    certain: bool,
) -> list[str]:
    """What is wrong, in sentences."""
    problems = []
    num_chains, num_draws = subsets.shape[:2]
    still = np.flatnonzero((subsets == subsets[:, :1]).all(axis=(1, 2)))
    if len(still) and not certain:
        which = f"chain {still[0]} is" if len(still) == 1 else f"{len(still)} of {num_chains} chains are"
        problems.append(f"{which} constant: the same subset in all {num_draws} draws.")

    for what, row in (("log det", log_det), ("the size", size)):
        r_hat = row.get("r_hat", 1.0)
        if r_hat > threshold:
            problems.append(f"The chains disagree about {what}: R-hat is {r_hat:.2f}, above {threshold}.")
    if of_items and (of_items["r_hat"] > threshold).any():
        bad, numbers = of_items["r_hat"] > threshold, items[varies]
        worst = int(np.nanargmax(of_items["r_hat"]))
        problems.append(
            f"The chains disagree about {bad.sum()} of {len(bad)} items, most about item {numbers[worst]}: R-hat is "
            f"{of_items['r_hat'][worst]:.2f}, above {threshold}."
        )
    if split.get("r_hat", 1.0) > threshold:
        order, cut = np.argsort(direction), 0.3 * np.abs(direction).max()
        parts = ([i for i in order[::-1] if direction[i] > cut], [i for i in order if direction[i] < -cut])
        one, other = (", ".join(str(items[i]) for i in part[:5]) or "the others" for part in parts)
        problems.append(
            f"The chains are in different parts of the catalogue, items {one} against {other}: R-hat is "
            f"{split['r_hat']:.2f} for the weighted sum of items that parts them most, above {threshold}."
        )
    if of_pairs and (of_pairs["r_hat"] > threshold).any():
        bad, worst = of_pairs["r_hat"] > threshold, int(np.nanargmax(of_pairs["r_hat"]))
        problems.append(
            f"The chains disagree about {bad.sum()} of {len(bad)} pairs, most about {pair_items[worst]}: R-hat is "
            f"{of_pairs['r_hat'][worst]:.2f}, above {threshold}."
        )
    if problems:
        problems.append("Chains that disagree have not run long enough, or cannot reach one another.")

    least = 10 * num_chains
    if "ess_bulk" in log_det and log_det["ess_bulk"] < least:
        problems.append(
            f"The {num_chains * num_draws} draws are worth {log_det['ess_bulk']:.0f} independent ones for log det; ten "
            f"a chain, {least}, are the least that R-hat and ESS can be trusted with."
        )
    from scipy import stats

    # one false alarm in a thousand tables
    limit = float(stats.norm.isf(0.5e-3 / max(len(z), 1)))
    if np.abs(z).max(initial=0.0) > limit:
        worst = int(np.argmax(np.abs(z)))
        way = "more" if z[worst] > 0 else "less"
        problems.append(
            f"Frequencies differ from the exact probabilities: item {items[worst]} is drawn {way} often than it should "
            f"be, by {abs(z[worst]):.1f} standard errors."
        )
    return problems
