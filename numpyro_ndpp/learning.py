"""Kernels learned from baskets: the MAP estimate of a model of :mod:`numpyro_ndpp.priors`, by SVI.

A fit takes minibatches and Adam, with a rate that falls to zero as a cosine. It stops by the log-likelihood of held-out
baskets, and a killed run goes on from its checkpoint as if nothing had happened.

References: see :mod:`numpyro_ndpp.priors`.
"""

import math
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.sharding import Mesh
from jax.typing import ArrayLike
from numpyro.infer.svi import SVIState
from tqdm.auto import tqdm

from numpyro_ndpp.baskets import Subsets, with_names
from numpyro_ndpp.catalogue import catalogue_of
from numpyro_ndpp.checkpoints import fingerprint, read_arrays, write_arrays
from numpyro_ndpp.checks import finite_float, static_int
from numpyro_ndpp.devices import ITEMS, check_axis, check_same
from numpyro_ndpp.features import as_features
from numpyro_ndpp.fits import Fit
from numpyro_ndpp.learner import FEATURE_STRENGTH, MODELS, Learner, training_data
from numpyro_ndpp.priors import (
    basket_model,
    item_counts,
    ndpp_prior,
    ondpp_prior,
    sized_prior,
    symmetric_prior,
    to_event_width,
)
from numpyro_ndpp.training_baskets import columns_of, sizes_of, smallest_size, split_baskets

__all__ = [
    "Fit",
    "basket_model",
    "fit",
    "item_counts",
    "ndpp_prior",
    "ondpp_prior",
    "sized_prior",
    "symmetric_prior",
    "to_event_width",
]


def fit(
    baskets: Subsets,
    num_items: int | None = None,
    *,
    items: Sequence[str] | None = None,
    model: str = "ndpp",
    rank: int | tuple[int, int] = 200,
    min_size: int | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    gamma: float | None = None,
    max_proposals: float | None = None,
    anchor: float = 1.0,
    features: ArrayLike | None = None,
    feature_strength: float | None = None,
    batch_size: int = 500,
    num_steps: int = 2000,
    learning_rate: float = 0.02,
    validation: int | Subsets | None = None,
    evaluate_every: int = 50,
    patience: int = 10,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    mesh: Mesh | None = None,
    progress_bar: bool = True,
) -> Fit:
    r"""A kernel learned from baskets: the MAP estimate of a model of :mod:`numpyro_ndpp.priors`, by SVI, in float32.

    Every ``evaluate_every`` steps the kernel is judged by the log-likelihood of held-out baskets (for ondpp, less the
    price of rejections). The best kernel is kept. The run ends early when the value has not risen ``patience`` times in
    a row. A step costs O(n d² + d³) for the normaliser and O(m d² + m² d + m³) for each basket of m.

    :param baskets: lists of item numbers, or any other form of :mod:`numpyro_ndpp.baskets`; those with names, as
        :func:`~numpyro_ndpp.datasets.load_baskets` and :func:`~numpyro_ndpp.datasets.from_transactions` return them,
        say how many items there are.
    :param num_items: the number n of items, for baskets without names.
    :param items: the name of every item; they go with the fit, into its file too.
    :param model: ``"ndpp"``, ``"sized"`` (sizes as in the baskets, :class:`~numpyro_ndpp.SizedNDPP`), ``"ondpp"``
        (orthogonal, for the rejection sampler) or ``"symmetric"`` (no B).
    :param rank: the rank d of the learned distribution, its number of features and the size of the largest basket that
        it allows for. Half of the d columns are V's, and half, in pairs, are B's; ``"symmetric"`` has all in V. Two
        numbers are the columns of V and of B, whose sum is the rank (one of an odd number of B counts for nothing).
    :param min_size: 1 learns the distribution given that baskets are not empty, P(S) = det L_S / (det(I + L) - 1), and
        0 that of all baskets. None: 1 if the data have no empty basket, else 0.
    :param alpha, beta, gamma: the strengths of the priors of V and B, and of ondpp's price of rejections. The default
        does well for the model: 50 and 30 for ``"ndpp"`` and ``"sized"``, 50, 0.01 and 0.5 for ``"ondpp"``, 10 for
        ``"symmetric"``.
    :param max_proposals: the most expected proposals with which a kernel of ondpp counts as the best. None: any number,
        and the price of rejections is taken off the log-likelihood.
    :param anchor: how far from zero the prior of V is centred. At 1, and with many more columns than a basket has
        items, these are bought about independently and as often as in the data; at 0.5 a quarter as often, at 0 never.
        Near 1 rare items have most room, and the log-likelihood is best. Near 0 random subsets, which are mostly rare
        items, are told apart best. The papers' objective is ``anchor=0, alpha=0.01, beta=0.01``; it relies on the early
        stop.
    :param features: what is known of the items, a matrix of numbers (n, p); its unit is no matter. Rows of V and of B
        are then a linear function of it plus a part of the item's own (:mod:`numpyro_ndpp.features`), so that items
        which no basket has get sensible rows too; these count as not on sale in the baskets learned from. A step costs
        O(n p d) more. For other functions of what is known, give functions of it as columns
        (:func:`~numpyro_ndpp.recipes.fourier_features`), or use :func:`~numpyro_ndpp.priors.ndpp_prior` in a model.
    :param feature_strength: the strength of the prior of that linear function; 1 by default.
    :param batch_size: baskets in a minibatch.
    :param num_steps: the most steps; the rate falls over them.
    :param learning_rate: Adam's rate at the first step, for features of length one or so.
    :param validation: baskets to judge by, or how many of ``baskets`` to hold out; by default a tenth, at most 300.
    :param evaluate_every: steps from one evaluation to the next.
    :param patience: evaluations without a rise after which the run stops; 0: never.
    :param seed: the seed of the minibatches, of the start and of what is held out.
    :param checkpoint: a file for the state, written every ``checkpoint_every`` steps, at the next evaluation. If it
        exists, the run goes on from it. On the same machine it then ends with the parameters of an uninterrupted run,
        to the last bit.
    :param mesh: devices with an axis "items". Features and Adam's moments are then over its devices by rows, and
        devices share the baskets of a minibatch; the kernel is that of one device, to rounding. On many hosts every
        process calls this with the same arguments (docs: More than one device). A checkpoint does not depend on the
        mesh: a run goes on on any number of devices.
    :param progress_bar: whether to show a bar, with the last log-likelihood of the held-out baskets.
    :return: the kernel with the best evaluation; :meth:`Fit.distribution`, :meth:`Fit.recommend` and
        :meth:`Fit.complete` use it.
    :raises ValueError: for fewer than two baskets, items out of range or repeated, baskets larger than the rank, empty
        baskets with ``min_size=1``, baskets without names where ``num_items`` is not given, settings out of range or of
        another model, a mesh without an axis "items", a checkpoint of other data or settings, or of a version without
        ``min_size``, and, on many hosts, for processes that have other items, baskets or seeds.
    :raises TypeError: for items that are not integers.
    :raises OSError: if a checkpoint cannot be written; the last one stays as it was.
    :raises FloatingPointError: if the log-likelihood is not a number any more.

    >>> from numpyro_ndpp.datasets import simulate_baskets
    >>> shop = simulate_baskets(300)
    >>> result = fit(shop.baskets, items=shop.items, rank=10, num_steps=100, progress_bar=False)
    >>> result.distribution().rank
    10
    >>> result.recommend(["bread"], 1)[0][0]
    'butter'
    """
    if model not in MODELS:
        raise ValueError(f"model must be one of {sorted(MODELS)}, got {model!r}")
    kind = MODELS[model]
    num_items, names = catalogue_of(baskets, num_items, items)
    batch_size = static_int("batch_size", batch_size, 1)
    num_steps, patience = static_int("num_steps", num_steps, 1), static_int("patience", patience, 0)
    evaluate_every = static_int("evaluate_every", evaluate_every, 1)
    checkpoint_every = static_int("checkpoint_every", checkpoint_every, 1)
    seed = static_int("seed", seed, 0, 2**63 - 1, "2**63 - 1")
    learning_rate = finite_float("learning_rate", learning_rate, 0, exclusive=True)
    anchor = finite_float("anchor", anchor, 0)
    given = {"alpha": alpha, "beta": beta, "gamma": gamma, "max_proposals": max_proposals}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        if name not in kind.strengths and (name, model) != ("max_proposals", "ondpp"):
            raise ValueError(f"{name} is no setting of model={model!r}")
        low = 1 if name == "max_proposals" else 0
        given[name] = finite_float(name, value, low, exclusive=name in ("alpha", "beta"))
    mesh = None if mesh is None else check_axis("mesh", mesh, ITEMS)
    check_same("num_items and seed", [num_items, seed])
    if features is None and feature_strength is not None:
        raise ValueError("feature_strength is no setting without features")
    if features is not None and not kind.rows:
        raise ValueError(f"features is no setting of model={model!r}")
    if features is not None and mesh is not None:
        raise ValueError("features and mesh do not go together yet: a fit with features is on a single device")
    known = None if features is None else as_features(features, num_items)
    if known is not None:
        value = 1.0 if feature_strength is None else feature_strength
        given[FEATURE_STRENGTH] = finite_float(FEATURE_STRENGTH, value, 0, exclusive=True)
    ranks = columns_of(model, rank, num_items)
    folder = None if checkpoint is None else Path(checkpoint).resolve().parent
    if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ValueError(f"checkpoint: {folder} is not a folder that can be written to")
    # The names have been looked at; those of a table would be so again.
    train, held_out = split_baskets(with_names(baskets)[0], num_items, ranks, validation, seed)
    settings: dict[str, Any] = {"model": model, "rank": list(ranks), "num_items": num_items, "max_proposals": None}
    settings |= kind.strengths | given | {"min_size": smallest_size(min_size, num_items, train, held_out)}
    settings |= {
        "anchor": anchor,
        "batch_size": batch_size,
        "num_steps": num_steps,
        "learning_rate": learning_rate,
        "evaluate_every": evaluate_every,
        "patience": patience,
        "seed": seed,
        "data": fingerprint(train, held_out, *([] if known is None else [known])),
        # what the random numbers of the minibatches depend on
        "backend": jax.default_backend(),
        "default_type": str(jnp.zeros(()).dtype),
        "random_bits": str(random.key_impl(random.key(seed))),
    }

    check_same("baskets (their fingerprint)", int(settings["data"][:15], 16))
    sizes = sizes_of(settings, train, held_out)
    # Sizes that no basket has would only cost time.
    learner = Learner(settings, len(train), None if sizes is None else sizes[0][: sizes[1] + 1], mesh)
    data = training_data(settings, train, mesh, known)
    if checkpoint is not None and Path(checkpoint).exists():
        state, result = _read_checkpoint(checkpoint, settings, names, learner, data)
    else:
        nothing, history = np.zeros((0, 0)), {name: np.zeros(0) for name in ("loss", "validation", "price", "seconds")}
        history = {"step": np.zeros(0, int)} | history
        state, result = learner.start(data), Fit(nothing, nothing, nothing, history, settings, names)
    result = result._replace(size_logits=None if sizes is None else sizes[0])
    step = int(result.history["step"].max(initial=0))
    with tqdm(total=num_steps, initial=step, unit="step", disable=not progress_bar or jax.process_index() > 0) as bar:
        while step < num_steps and not (patience and _since_best(result.history) >= patience):
            start, number = time.perf_counter(), min(evaluate_every, num_steps - step)
            state, loss = learner.advance(state, data, number)
            value, price = learner.judge(state, data, held_out)
            step += number
            if math.isnan(value) or math.isnan(price):
                raise FloatingPointError(
                    f"the validation log-likelihood is not a number after {step} steps; a lower learning_rate than "
                    f"{learning_rate} may help"
                )
            row = {"step": step, "loss": loss, "validation": value, "price": price}
            row["seconds"] = time.perf_counter() - start
            result = result._replace(history={name: np.append(result.history[name], row[name]) for name in row})
            since_best = _since_best(result.history)
            if since_best == 0:
                V, B, D = learner.kernel(state, data)
                result = result._replace(V=V, B=B, D=D)
            bar.update(number)
            bar.set_postfix(validation=f"{value:.3f}", since_best=since_best)
            due = step // checkpoint_every > (step - number) // checkpoint_every
            if checkpoint is not None and (due or step == num_steps):
                _write_checkpoint(checkpoint, result, state, learner, data)
    _warn_of_failures(result, held_out)
    return result


def _warn_of_failures(result: Fit, held_out: np.ndarray) -> None:
    """Warn if no evaluation counted, so that the last kernel stands for the best one, or if baskets were of no use."""
    validation, price = result.history["validation"], result.history["price"]
    most = result.settings.get("max_proposals")
    warned = []
    if np.isneginf(validation - price).all() and np.isposinf(price).all():
        warned.append(
            f"no kernel with at most max_proposals={most} expected proposals was met: this is the last one; raise "
            f"gamma above {result.settings['gamma']} or num_steps above {result.settings['num_steps']}"
        )
    elif np.isneginf(validation - price).all():
        impossible = int(np.isneginf(np.asarray(result.distribution().log_prob(held_out))).sum())
        within = f" with at most max_proposals={most} expected proposals" if np.isposinf(price).any() else ""
        warned.append(
            f"no kernel{within} was met that allows for all held-out baskets: this is the last one, under which "
            f"{impossible} of the {len(held_out)} held-out baskets have probability zero"
        )
    if np.isposinf(result.history["loss"]).any():
        warned.append(
            "some baskets to learn from had probability zero, to rounding, in some steps, which did not count them "
            "(history['loss'] is inf there)"
        )
    for text in warned:
        warnings.warn(text, stacklevel=3)


def _since_best(history: dict[str, np.ndarray]) -> int:
    """Evaluations since the best one; none while no kernel counts, so that the last one is kept."""
    scores = history["validation"] - history["price"]
    return len(scores) - 1 - int(np.argmax(scores)) if np.max(scores, initial=-np.inf) > -np.inf else 0


def _as_arrays(state: SVIState) -> SVIState:
    return state._replace(rng_key=random.key_data(state.rng_key))


def _write_checkpoint(path: str | Path, result: Fit, state: SVIState, learner: Learner, data: tuple[Any, ...]) -> None:
    shapes = jax.eval_shape(_as_arrays, learner.shapes(data))
    fetched = jax.tree.map(lambda kept, like: learner.arrays.fetch(kept, like.shape), _as_arrays(state), shapes)
    arrays = {f"state_{i}": leaf for i, leaf in enumerate(jax.tree.leaves(fetched))}
    if jax.process_index() == 0:  # all have what it writes
        write_arrays(path, arrays | result.arrays(), result.settings | {"step": int(result.history["step"][-1])})


def _read_checkpoint(
    path: str | Path, settings: dict[str, Any], names: list[str] | None, learner: Learner, data: tuple[Any, ...]
) -> tuple[SVIState, Fit]:
    shapes = learner.shapes(data)
    arrays, written = read_arrays(path, ("V", "B", "D"))
    if "min_size" not in written:
        raise ValueError(
            f"checkpoint {path} is of an earlier version, whose fits had no min_size: end the run with that version, "
            f"or start anew with another file"
        )
    for name, value in settings.items():
        if written.get(name) != value:
            raise ValueError(
                f"checkpoint {path} is of another run: its {name} is {written.get(name)!r}, here it is {value!r}"
            )
    places = [f"state_{i}" for i in range(len(jax.tree.leaves(shapes)))]
    missing = [name for name in places if name not in arrays]
    if missing:
        raise ValueError(f"checkpoint {path} has no {missing[0]!r}: it is a saved fit, not a checkpoint")
    # One after the other, so that no more than one array is there twice.
    state = jax.tree.unflatten(jax.tree.structure(shapes), [learner.arrays.place(arrays.pop(name)) for name in places])
    result = Fit.of_arrays(arrays, settings)._replace(items=names)
    return state._replace(rng_key=random.wrap_key_data(state.rng_key)), result
