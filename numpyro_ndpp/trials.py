"""The runs of a search: fits that are kept in a folder, one file each, and the table of what they came to."""

import json
import math
import os
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_ndpp.checkpoints import fingerprint, read_arrays, write_arrays, write_whole
from numpyro_ndpp.fits import Fit
from numpyro_ndpp.learner import MODELS
from numpyro_ndpp.learning import fit

if TYPE_CHECKING:
    import pandas as pd

_PLAN = "search.json"
_VALUES, _SECONDS = "log_likelihoods", "seconds"
# Steps between checkpoints of a run: short runs make none before their end.
_CHECKPOINT_EVERY = 500


class Trial(NamedTuple):
    number: int
    settings: dict[str, Any]
    """Arguments of fit, other than those that all trials have."""


class Run(NamedTuple):
    trial: Trial
    num_steps: int
    result: Fit | None
    """None if the log-likelihood became NaN."""
    steps: int
    values: np.ndarray
    """The log-likelihood of every held-out basket, -inf for NaN."""
    seconds: float

    @property
    def score(self) -> float:
        return float(self.values.mean())


def claimed_folder(
    folder: str | Path,
    train: np.ndarray,
    held_out: np.ndarray,
    turns: list[list[Trial]],
    lengths: list[int],
    common: dict[str, Any],
    seed: int,
) -> Path:
    """The folder of this search: made, or found with the same plan.

    :raises ValueError: if it is of another search, or of something else.
    """
    folder = Path(folder)
    plan = {
        "data": fingerprint(train, held_out),
        "number of trials": sum(map(len, turns)),
        "steps of the rounds": lengths,
        "seed": seed,
        "settings of all trials": dict(sorted(common.items())),
        "settings": [trial.settings for trials in turns for trial in trials],
        "backend": jax.default_backend(),
        "default_type": str(jnp.zeros(()).dtype),
    }
    text = json.dumps(plan, indent=1, default=repr)
    path = folder / _PLAN
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder {folder} is a file")
    found = [each.name for each in folder.glob("*") if each != path and each.suffix != ".part"]
    if found and not path.exists():
        raise ValueError(f"folder {folder} is not empty, and not that of a search: it has {min(found)}, but no {_PLAN}")
    if found:
        _compare(folder, path.read_text(), json.loads(text))
        return folder
    if not os.access(folder.resolve().parent, os.W_OK):
        raise ValueError(f"folder {folder} cannot be made: {folder.resolve().parent} cannot be written to")
    folder.mkdir(exist_ok=True)
    write_whole(path, lambda file: _write(file, text))  # over a plan by which nothing was run
    return folder


def _compare(folder: Path, text: str, plan: dict[str, Any]) -> None:
    """Refuse the text of another plan."""
    try:
        written = dict(json.loads(text))
    except ValueError as error:
        raise ValueError(f"folder {folder}: {_PLAN} is not that of a search: {error}") from error
    for name, value in plan.items():
        was, now = written.get(name), value
        if was == now:
            continue
        if isinstance(was, list) and len(was) == len(now):  # long ones: what differs first
            was, now = next((a, b) for a, b in zip(was, now, strict=True) if a != b)
        raise ValueError(f"folder {folder} is of another search: its {name} is {was}, here it is {now}")


def _write(file: IO[bytes], text: str) -> None:
    file.write(text.encode())


def run_trial(
    trial: Trial, num_steps: int, folder: Path | None, train: np.ndarray, held_out: np.ndarray, *data: Any, **same: Any
) -> Run:
    """A fit of the trial's settings, or what the folder has of it."""
    name = f"trial_{trial.number:03d}_{num_steps}.npz"
    if folder is not None and (folder / name).exists():
        arrays, settings = read_arrays(folder / name, (_VALUES, _SECONDS))
        result = Fit.of_arrays(arrays, settings) if "V" in arrays else None
        return Run(trial, num_steps, result, _steps(result), arrays[_VALUES], float(arrays[_SECONDS]))
    same |= trial.settings | {"num_steps": num_steps, "validation": held_out, "progress_bar": False}
    if folder is not None:
        same |= {"checkpoint": folder / f"running_{name}", "checkpoint_every": _CHECKPOINT_EVERY}
    start, fitted, result, values = time.perf_counter(), 0.0, None, np.full(len(held_out), -np.inf)
    try:
        result = fit(train, *data, **same)
        # Those before an interruption count too.
        start, fitted = time.perf_counter(), float(result.history["seconds"].sum())
        values = np.asarray(result.distribution().log_prob(held_out), np.float64)
        values = np.where(np.isnan(values), -np.inf, values)
    except FloatingPointError:
        pass  # the table says that these settings are of no use
    done = Run(trial, num_steps, result, _steps(result), values, fitted + time.perf_counter() - start)
    if folder is not None:
        arrays, settings = ({}, trial.settings) if result is None else (result.arrays(), result.settings)
        write_arrays(folder / name, arrays | {_VALUES: values, _SECONDS: np.array(done.seconds)}, settings)
        Path(same["checkpoint"]).unlink(missing_ok=True)
    return done


def _steps(result: Fit | None) -> int:
    return 0 if result is None else int(result.history["step"][-1])


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean and its standard error, which is NaN if there is one number, or an infinite one."""
    if len(values) < 2 or not np.isfinite(values).all():
        return float(values.mean()), math.nan
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def table_of(runs: list[Run], best: Run) -> "pd.DataFrame":
    """One line for each run, the best first."""
    import pandas as pd

    lines = []
    for run in sorted(runs, key=lambda run: -run.score):
        mean, error = _mean_and_error(run.values)
        with np.errstate(invalid="ignore"):  # baskets may be impossible under both kernels
            behind, behind_error = _mean_and_error(best.values - run.values)
        columns = " + ".join(map(str, run.trial.settings["rank"]))
        lines.append({"trial": run.trial.number} | run.trial.settings | {"rank": columns})
        lines[-1] |= {"num_steps": run.num_steps, "steps": run.steps, "log_likelihood": mean, "standard_error": error}
        lines[-1] |= {"behind": behind, "behind_error": behind_error, "seconds": run.seconds}
    strengths = dict.fromkeys(name for kind in MODELS.values() for name in kind.strengths)
    first = [name for name in ("trial", "model", "rank", *strengths, "anchor") if any(name in line for line in lines)]
    last = ["num_steps", "steps", "log_likelihood", "standard_error", "behind", "behind_error", "seconds"]
    return pd.DataFrame(lines, columns=[*first, *last])
