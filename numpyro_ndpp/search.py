r"""Settings of :func:`~numpyro_ndpp.learning.fit` chosen by held-out baskets alone, under a stated budget.

Every trial is a fit, with all that is random in it the same: start, minibatches, held-out baskets. So trials are
compared in pairs, basket by basket, and a line of the table can be had again by one call of ``fit``.

The budget goes by successive halving (by thirds here). All trials make short runs; the best third of them run again,
three times as long, and so on. With t trials and r rounds that costs about r t s steps, where s is the length of the
first runs, in place of t s 3^(r-1). A run starts anew in each round, for its rate falls to zero over its own length: a
short run is a whole one, and says more of a setting than the first part of a long one.

The first trial of every model and rank has the strengths that ``fit`` has. The others are points of a Richtmyer
sequence, which fill the space evenly: place j of a coordinate is the fraction of c + j √p for a prime p of its own.

References: Jamieson and Talwalkar (2016), *Non-stochastic best arm identification and hyperparameter optimization*,
AISTATS; Richtmyer (1951), *The evaluation of definite integrals, and a quasi-Monte-Carlo method based on the properties
of algebraic numbers*, LA-1342.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from numpyro_ndpp.baskets import Subsets, with_names
from numpyro_ndpp.catalogue import catalogue_of
from numpyro_ndpp.checks import finite_float, static_int
from numpyro_ndpp.fits import Fit
from numpyro_ndpp.learner import MODELS
from numpyro_ndpp.subsets import as_padded
from numpyro_ndpp.training_baskets import columns_of, split_baskets
from numpyro_ndpp.trials import Run, Trial, claimed_folder, run_trial, table_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SearchResult", "search"]

_SHARE = 3  # one in so many goes on, so many times as long
_MOST_VALIDATION = 2000
_RANK = 200
_PRIMES = (2, 3, 5, 7, 11)
_COMMON = ("min_size", "batch_size", "learning_rate", "evaluate_every", "patience")


class SearchResult(NamedTuple):
    """The best fit of a search, and what was tried. It prints as the table."""

    best: Fit
    table: "pd.DataFrame"
    """One line for each run, the best first.

    - ``trial``: its number; a trial that went on has a line for each of its runs.
    - ``model``, ``rank`` (columns of V and of B), ``anchor`` and the strengths: arguments of ``fit``.
    - ``num_steps``: the steps it might make, an argument too; ``steps``: those it made until it stopped.
    - ``log_likelihood``, ``standard_error``: the mean over the held-out baskets, and the error of that mean.
    - ``behind``, ``behind_error``: how far it is below the first line, in the mean of the differences on the same
      baskets, and the error of that mean. This is the smaller one: large baskets are unlikely under all kernels.
    - ``seconds``: the time it took, compilation included where it was the first of its model and rank.
    """

    def __repr__(self) -> str:
        decimals = {"log_likelihood": 3, "standard_error": 3, "behind": 3, "behind_error": 3, "seconds": 0}
        formats = {name: f"{{:.{digits}f}}".format for name, digits in decimals.items()}
        return self.table.to_string(index=False, na_rep="", formatters=formats, float_format="{:.4g}".format)


def search(
    baskets: Subsets,
    num_items: int | None = None,
    *,
    items: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    ranks: Sequence[int | tuple[int, int]] | None = None,
    anchors: Sequence[float] = (1.0, 0.75, 0.5),
    spread: float = 10.0,
    num_trials: int = 27,
    num_rounds: int = 3,
    num_steps: int = 2000,
    seconds: float | None = 1500.0,
    validation: int | Subsets | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress_bar: bool = True,
    **common: Any,
) -> SearchResult:
    r"""Try models, ranks, strengths and anchors of :func:`~numpyro_ndpp.learning.fit`, and keep the best kernel.

    The best one has the largest mean log-likelihood of the held-out baskets. It was learned from the other ones, and
    stopped by the held-out ones. Their log-likelihood is no estimate for new baskets any more, as they were chosen by:
    keep baskets away from the search, with :func:`~numpyro_ndpp.metrics.hold_out`, to judge its result by.

    ``num_trials`` settings make short runs; a third of them go on, in each further round, for three times as many
    steps. The first trial, which has the settings of ``fit`` if ``models``, ``ranks`` and ``anchors`` begin with its,
    goes on in any case. With the defaults that is 27 runs of 222 steps, 9 or 10 of 666 and 3 or 4 of 2,000: about as
    much as ten fits, and the compilation of one program for each model and rank, unless ``seconds`` are used up before.

    :param baskets, num_items, items: as in ``fit``.
    :param models: models of ``fit``. None: all but ``"ondpp"``, which pays in likelihood for what is not judged here.
    :param ranks: as in ``fit``, one or two numbers each. A model without B has all columns in V. None: a rank of 200,
        or fewer if there are fewer items, once divided evenly and once with nine tenths of it in B.
    :param anchors: anchors to try.
    :param spread: strengths are tried from the model's own divided by this up to the model's own times this.
    :param num_trials: how many settings to try, one at least for each model and rank.
    :param num_rounds: 1 makes every run a whole one.
    :param num_steps: the most steps of the runs of the last round.
    :param seconds: the time of all runs together. Each round has an equal part of it. In the first round every model
        and rank makes one run, and what is left of the part is divided evenly among them. Runs that would end too late,
        going by the fastest of their model and rank so far, are passed over; but never the first of a model and rank,
        and of a round, so that it may take longer. None: no limit. Where time was short, the result depends on the
        speed of the machine; else on the seed alone.
    :param validation: baskets to judge by, or how many of ``baskets`` to hold out; by default a tenth, at most 2,000.
    :param seed: the seed of the settings, of all fits and of what is held out.
    :param folder: where every run is kept, as a file that ``Fit.load`` reads, written whole or not at all. A search
        that was killed goes on from there, and ends as if it had not been. It may be given other ``seconds`` then.
    :param common: ``min_size``, ``batch_size``, ``learning_rate``, ``evaluate_every`` and ``patience`` of ``fit``, the
        same for all trials.
    :return: the best fit, and the table of all runs.
    :raises ValueError: for what ``fit`` refuses, unknown models, no model, rank or anchor, fewer trials than models and
        ranks, settings out of range, and a folder of another search, or of something else.
    :raises TypeError: for settings that are not searched with, and for items that are not integers.
    :raises FloatingPointError: if the log-likelihood became NaN in all runs.

    >>> from numpyro_ndpp.datasets import simulate_baskets
    >>> settings = {"models": ["ndpp"], "ranks": [8], "num_trials": 3, "num_rounds": 2, "num_steps": 60}
    >>> result = search(simulate_baskets(300), **settings, evaluate_every=20, progress_bar=False)
    >>> sorted(set(result.table["num_steps"]))
    [20, 60]
    >>> result.best.distribution().rank
    8
    """
    unknown = set(common) - set(_COMMON)
    if unknown:
        raise TypeError(f"{min(unknown)} is no setting of a search; those of all fits may be {', '.join(_COMMON)}")
    num_items, names = catalogue_of(baskets, num_items, items)
    num_rounds, num_steps = static_int("num_rounds", num_rounds, 1), static_int("num_steps", num_steps, 1)
    seed = static_int("seed", seed, 0, 2**63 - 1, "2**63 - 1")
    spread = finite_float("spread", spread, 1)
    limit = math.inf if seconds is None else finite_float("seconds", seconds, 0, exclusive=True)
    anchors = [finite_float(f"anchors[{i}]", anchor, 0) for i, anchor in enumerate(anchors)]
    if not anchors:
        raise ValueError("anchors: one at least is needed, got none")
    padded = as_padded("baskets", with_names(baskets)[0], num_items)
    groups = _models_and_ranks(models, ranks, num_items, padded)
    if static_int("num_trials", num_trials, 1) < len(groups):
        raise ValueError(
            f"num_trials must be at least {len(groups)}, one for each model and rank, got {num_trials}; or give fewer "
            f"models or ranks"
        )
    smallest = min((columns for _, columns in groups), key=lambda columns: columns[0] + columns[1] // 2 * 2)
    if validation is None:
        validation = min(_MOST_VALIDATION, max(1, len(padded) // 10))
    train, held_out = split_baskets(padded, num_items, smallest, validation, seed)
    lengths = [max(1, num_steps // _SHARE**later) for later in reversed(range(num_rounds))]
    # The first of every model and rank, then the others: those that share programs come one after the other.
    turns: list[list[Trial]] = [[] for _ in range(len(groups) + 1)]
    for number in range(num_trials):
        place, group = divmod(number, len(groups))
        trial = Trial(number, _settings(*groups[group], place, anchors, spread, (seed, group)))
        turns[group + 1 if place else 0].append(trial)
    if folder is not None:
        folder = claimed_folder(folder, train, held_out, turns, lengths, common, seed)

    def run(trial: Trial, length: int) -> Run:
        return run_trial(trial, length, folder, train, held_out, num_items, items=names, seed=seed, **common)

    runs: list[Run] = []
    best: Run | None = None
    with tqdm(total=_most_steps(num_trials, lengths), unit="step", disable=not progress_bar) as bar:
        for i, length in enumerate(lengths):
            tried: list[Run] = []
            never_passed_over = turns[0] if i == 0 else turns[0][:1]
            for turn, trials in enumerate(turns):
                used = sum(each.seconds for each in runs)
                until = used + (limit * (i + 1) / num_rounds - used) / (len(turns) - turn)
                for trial in trials:
                    if trial not in never_passed_over and _time_with(runs, trial, length) > until:
                        continue
                    bar.set_description(f"round {i + 1}, {trial.settings['model']}, trial {trial.number}")
                    done = run(trial, length)
                    if best is None or best.result is None or done.score > best.score:
                        best = done
                    # One kernel is kept at a time; what is compared are numbers.
                    tried.append(done._replace(result=None))
                    runs.append(tried[-1])
                    bar.update(length)
                    bar.set_postfix(best=f"{best.score:.3f}")
            turns = [_going_on(tried)]
        bar.total = bar.n
    if best is None or best.result is None:
        raise FloatingPointError(
            f"the validation log-likelihood became NaN in all {len(runs)} runs; a lower learning_rate may help"
        )
    return SearchResult(best.result, table_of(runs, best))


def _models_and_ranks(
    models: Sequence[str] | None, ranks: Sequence[Any] | None, num_items: int, padded: np.ndarray
) -> list[tuple[str, tuple[int, int]]]:
    """Each model with the columns of V and of B, none twice: fits of one pair share what is compiled."""
    if models is None:
        models = [name for name, kind in MODELS.items() if "gamma" not in kind.strengths]
    if isinstance(models, str) or not models or not set(models) <= set(MODELS):
        raise ValueError(f"models must be a list of some of {sorted(MODELS)}, got {models!r}")
    if ranks is None:
        rank = min(num_items, max(_RANK, padded.shape[1]))
        skew = 9 * rank // 20 * 2
        ranks = [rank, (rank - skew, skew)]
    elif not isinstance(ranks, Sequence) or isinstance(ranks, str) or not ranks:
        raise ValueError(f"ranks must be a list of ranks, got {ranks!r}")
    pairs = []
    for model in models:
        for rank in ranks:
            columns = columns_of(model, rank, num_items)
            if isinstance(rank, (tuple, list)) and not columns[1]:
                columns = columns_of(model, sum(rank), num_items)  # the columns of B are V's then
            pairs.append((model, columns))
    return list(dict.fromkeys(pairs))


def _settings(
    model: str, columns: tuple[int, int], place: int, anchors: list[float], spread: float, seed: tuple[int, int]
) -> dict[str, Any]:
    """The settings of a trial: the model's own at place 0, points of a Richtmyer sequence from there on."""
    strengths, anchor = MODELS[model].strengths, anchors[0]
    if place:
        primes = np.array(_PRIMES[: len(strengths) + 1])
        point = (np.random.default_rng(seed).random(len(primes)) + place * np.sqrt(primes)) % 1
        # Three digits, so that they can be copied from the table.
        tried = zip(strengths.items(), point[1:], strict=True)
        strengths = {name: float(f"{own * spread ** (2 * at - 1):.3g}") for (name, own), at in tried}
        anchor = anchors[int(point[0] * len(anchors))]
    return {"model": model, "rank": columns, **strengths, "anchor": anchor}


def _most_steps(num_trials: int, lengths: list[int]) -> int:
    """The steps of a search in which the first trial goes on beside the best."""
    total, number = 0, num_trials
    for length in lengths:
        total += number * length
        number = max(1, number // _SHARE) + 1
    return total


def _time_with(runs: list[Run], trial: Trial, num_steps: int) -> float:
    """The seconds of the runs and of one more, if its steps take as long as the fastest of its model and rank."""
    model, rank = trial.settings["model"], trial.settings["rank"]
    alike = [run for run in runs if (run.trial.settings["model"], run.trial.settings["rank"]) == (model, rank)]
    a_step = min((run.seconds / run.num_steps for run in alike), default=0.0)
    return sum(run.seconds for run in runs) + num_steps * a_step


def _going_on(tried: list[Run]) -> list[Trial]:
    """The best third, the best one first, and the first trial."""
    ordered = sorted(tried, key=lambda run: -run.score)  # of equal ones the first
    best = [run.trial for run in ordered[: max(1, len(ordered) // _SHARE)]]
    return best + [run.trial for run in tried if run.trial.number == 0 and run.trial not in best]
