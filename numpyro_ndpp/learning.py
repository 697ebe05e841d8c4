r"""Kernels learned from baskets: priors whose MAP estimate is the papers' regularised likelihood, and SVI around them.

With μ_i the number of training baskets that hold item i (1 if none does) and N the number of baskets, the papers
maximise

.. math:: \frac1N \sum_b \log P(S_b) - α \sum_i \frac{‖v_i‖²}{μ_i} - β \sum_i \frac{‖b_i‖²}{μ_i},

which is, times N and up to a constant, the log density of the model

.. math:: v_i ∼ \mathcal N\big(0, \tfrac{μ_i}{2αN} I\big), \quad b_i ∼ \mathcal N\big(0, \tfrac{μ_i}{2βN} I\big),
          \quad S_b ∼ \mathrm{NDPP}(V, B, D) .

Such a prior is centred on zero, where an item that is never bought belongs: features of rare items shrink away, and a
new basket with one of them has probability zero. Centred instead on items that are bought independently, each as often
as in the data and with a random direction of its own (``anchor``),

.. math:: v_i ∼ \mathcal N\big(\sqrt{μ_i/N}\, a_i, \tfrac{μ_i}{2αN} I\big), \qquad ‖a_i‖ = 1,

it can be strong, for what it shrinks towards is sensible; what occurs often enough moves away. This is what :func:`fit`
does unless told otherwise.

The orthogonal kernel (ONDPP) has BᵀB = I, VᵀB = 0 and D - Dᵀ made of the pairs ±σ_j; a further term
γ Σ log(1 + 2σ_j/(σ_j² + 1)) is γ times the log of the expected number of proposals of the rejection sampler.

References: Gartrell, Han, Dohmatob, Gillenwater and Brunel (2021), *Scalable learning and MAP inference for
nonsymmetric determinantal point processes*, ICLR; Han, Gartrell, Gillenwater, Dohmatob and Karbasi (2022), *Scalable
sampling for nonsymmetric determinantal point processes*, ICLR.
"""

import math
import operator
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax, random
from jax.typing import ArrayLike
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.reparam import TransformReparam
from tqdm.auto import tqdm

from numpyro_ndpp.checkpoints import fingerprint, read_arrays, write_arrays
from numpyro_ndpp.distributions import NDPP
from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.subsets import Subsets, as_padded

__all__ = [
    "Fit",
    "basket_model",
    "fit",
    "item_counts",
    "ndpp_prior",
    "ondpp_prior",
    "symmetric_prior",
    "to_event_width",
]


def item_counts(baskets: ArrayLike, num_items: int) -> np.ndarray:
    """How many of the padded baskets (N, m) hold each item, (n,); an item that none holds counts as one, as published.

    >>> item_counts(np.array([[0, 2], [2, 3]]), num_items=3)
    array([1, 1, 2])
    """
    return np.maximum(np.bincount(np.asarray(baskets).ravel(), minlength=num_items + 1)[:num_items], 1)


def _item_scale(counts: ArrayLike, num_baskets: int) -> Array:
    """√(μ_i/N) (n, 1): the length that v_i has where items are bought independently, and rarely.

    In float32, and so is all that follows, unless the counts are of another floating type.
    """
    counts = jnp.asarray(counts)
    dtype = counts.dtype if jnp.issubdtype(counts.dtype, jnp.floating) else jnp.float32
    return jnp.sqrt(counts.astype(dtype) / num_baskets)[:, None]


def _features(
    name: str, counts: ArrayLike, num_baskets: int, num_columns: int, strength: float, anchor: ArrayLike | None = None
) -> Array:
    """Features with rows N(√(μ_i/N) anchor_i, μ_i/(2 strength N)), written as a scale times features of one scale."""
    scale = _item_scale(counts, num_baskets)
    mean = jnp.zeros((len(scale), num_columns), scale.dtype) if anchor is None else jnp.asarray(anchor, scale.dtype)
    plain = dist.Normal(mean, (2 * strength) ** -0.5)
    return numpyro.sample(name, dist.TransformedDistribution(plain, AffineTransform(0.0, scale)).to_event(2))


def _flat(name: str, *shape: int, support: Any = constraints.real) -> Array:
    return numpyro.sample(name, dist.ImproperUniform(support, (), event_shape=shape))


def ndpp_prior(
    counts: ArrayLike,
    num_baskets: int,
    *,
    rank: tuple[int, int] = (100, 100),
    alpha: float = 0.01,
    beta: float = 0.01,
    anchor: ArrayLike | None = None,
    **settings: Any,
) -> NDPP:
    r"""An NDPP whose sites ``V``, ``B`` and ``D`` have the papers' prior: for use inside a NumPyro model.

    :param counts: how many baskets hold each item (n,), one at least (:func:`item_counts`).
    :param num_baskets: their number N.
    :param rank: the columns of V and of B.
    :param alpha, beta: the strengths of the priors of V and of B. D has a flat one.
    :param anchor: what v_i √(N/μ_i) is centred on (n, d₁); None: zero, as published.
    :param settings: for :class:`~numpyro_ndpp.NDPP`, such as ``min_size=1``.

    >>> import numpyro
    >>> from numpyro import handlers
    >>> baskets = np.array([[0, 2], [2, 3], [0, 1]])
    >>> def model():
    ...     law = ndpp_prior(item_counts(baskets, 3), len(baskets), rank=(2, 2))
    ...     with numpyro.plate("baskets", len(baskets)):
    ...         numpyro.sample("basket", law, obs=to_event_width(baskets, law))
    >>> values = {"V": np.eye(3, 2), "B": np.ones((3, 2)), "D": np.zeros((2, 2))}
    >>> trace = handlers.trace(handlers.substitute(handlers.seed(model, 0), values)).get_trace()
    >>> trace["basket"]["fn"].batch_shape
    (3,)
    """
    V = _features("V", counts, num_baskets, rank[0], alpha, anchor)
    B = _features("B", counts, num_baskets, rank[1], beta)
    return NDPP(V, B, _flat("D", rank[1], rank[1]), **settings)


def symmetric_prior(
    counts: ArrayLike,
    num_baskets: int,
    *,
    rank: tuple[int, int] = (100, 0),
    alpha: float = 0.01,
    anchor: ArrayLike | None = None,
    **settings: Any,
) -> NDPP:
    """The same for the symmetric low-rank DPP: a site ``V``, and a B without columns. See :func:`ndpp_prior`."""
    V = _features("V", counts, num_baskets, rank[0], alpha, anchor)
    return NDPP(V, jnp.zeros((len(V), 0), V.dtype), jnp.zeros((0, 0), V.dtype), **settings)


def ondpp_prior(
    counts: ArrayLike,
    num_baskets: int,
    *,
    rank: tuple[int, int] = (100, 100),
    alpha: float = 0.01,
    beta: float = 0.01,
    gamma: float = 0.1,
    anchor: ArrayLike | None = None,
    **settings: Any,
) -> NDPP:
    r"""The same for the orthogonal NDPP: BᵀB = I, VᵀB = 0, and D with σ_j at (0, 1), (2, 3), ... and zeros elsewhere.

    Its sites are ``V_raw``, ``B_raw`` and ``sigma``. B is the orthonormal factor of B_raw, and V is what V_raw has
    outside the columns of B; both are flat, and the papers' terms for V, B and σ are factors.

    :param rank: the columns of V and of B, the latter an even number.
    :param gamma: the price of a unit of the log of the expected number of proposals of the rejection sampler.

    The other parameters are those of :func:`ndpp_prior`.
    """
    if rank[1] % 2:
        raise ValueError(f"rank: an orthogonal NDPP has an even number of columns in B, got {rank[1]}")
    scale = _item_scale(counts, num_baskets)
    n, (d1, d2) = len(scale), rank
    B = orthonormalize(_flat("B_raw", n, d2) * scale)
    V = _flat("V_raw", n, d1) * scale
    # What rounding leaves of B in V after one projection is taken out by a second.
    for _ in range(2):
        V = V - matmul(B, matmul(B.T, V))
    sigma = _flat("sigma", d2 // 2, support=constraints.positive)
    weights = scale**-2
    mean = 0.0 if anchor is None else scale * jnp.asarray(anchor, scale.dtype)
    numpyro.factor("prior_V", -alpha * jnp.sum(weights * (V - mean) ** 2))
    numpyro.factor("prior_B", -beta * jnp.sum(weights * B**2))
    numpyro.factor("proposals", -gamma * num_baskets * log_expected_proposals(sigma))
    first = 2 * jnp.arange(d2 // 2)
    return NDPP(V, B, jnp.zeros((d2, d2), sigma.dtype).at[first, first + 1].set(sigma), **settings)


def log_expected_proposals(sigma: Array) -> Array:
    """Σ log(1 + 2σ_j/(σ_j² + 1)), for an orthogonal NDPP, whatever its V."""
    return jnp.sum(jnp.log1p(2 * sigma / (sigma**2 + 1)))


def orthonormalize(A: Array) -> Array:
    """An orthonormal basis (n, d) of the columns of A, by Cholesky's factor of AᵀA, three times: no step but products.

    The first time the diagonal is raised by the size of the rounding, so that the factor exists for any A, and the
    result is only better conditioned than A; the second and third make it orthonormal to rounding. O(n d²).
    """
    identity = jnp.eye(A.shape[1], dtype=A.dtype)
    for units in (8.0, 0.0, 0.0):
        C = matmul(A.T, A)
        factor = jnp.linalg.cholesky(C + units * jnp.finfo(A.dtype).eps * jnp.trace(C) * identity)
        A = matmul(A, jax.scipy.linalg.solve_triangular(factor, identity, lower=True).T)
    return A


def to_event_width(baskets: Array, law: NDPP) -> Array:
    """Padded baskets (..., m) with as many columns as the law's events have, which NumPyro's ELBOs insist on.

    Columns of padding are added or left out. A basket that would lose an item is too large for the law: it is -1
    throughout, which is no subset and has probability zero.
    """
    width = law.event_shape[0]
    missing = [(0, 0)] * (baskets.ndim - 1) + [(0, max(width - baskets.shape[-1], 0))]
    too_large = jnp.any(baskets[..., width:] < law.num_items, axis=-1, keepdims=True)
    return jnp.where(too_large, -1, jnp.pad(baskets, missing, constant_values=law.num_items)[..., :width])


def basket_model(
    baskets: ArrayLike,
    counts: ArrayLike,
    anchor: ArrayLike | None = None,
    *,
    prior: Callable[..., NDPP],
    batch_size: int | None = None,
) -> NDPP:
    """A NumPyro model: a kernel from ``prior(counts, N, anchor=anchor)``, and padded ``baskets`` (N, m) drawn with it.

    :param batch_size: the number of baskets that are looked at; None: all.

    :return: the law.
    """
    baskets = jnp.asarray(baskets)
    law = prior(counts, len(baskets), anchor=anchor)
    size = None if batch_size is None else min(batch_size, len(baskets))
    with numpyro.plate("baskets", len(baskets), subsample_size=size):
        batch = numpyro.subsample(baskets, event_dim=1)
        numpyro.sample("basket", law, obs=to_event_width(batch, law))
    return law


def directions(key: Array, num_items: int, num_columns: int) -> Array:
    """A random unit vector of so many numbers for each item."""
    A = random.normal(key, (num_items, num_columns), jnp.float32)
    return A / jnp.linalg.norm(A, axis=1, keepdims=True)


def _start_ndpp(key: Array, num_items: int, rank: tuple[int, int]) -> dict[str, Array]:
    """Items bought independently, each as often as in the data, but for a little that links them."""
    keys = random.split(key, 3)
    return {
        "V_base": directions(key, num_items, rank[0]),
        "B_base": _START_SKEW * directions(keys[1], num_items, rank[1]),
        "D": random.normal(keys[2], (rank[1], rank[1]), jnp.float32),
    }


def _start_symmetric(key: Array, num_items: int, rank: tuple[int, int]) -> dict[str, Array]:
    return {"V_base": directions(key, num_items, rank[0])}


def _start_ondpp(key: Array, num_items: int, rank: tuple[int, int]) -> dict[str, Array]:
    keys = random.split(key)
    return {
        "V_raw": directions(key, num_items, rank[0]),
        "B_raw": directions(keys[1], num_items, rank[1]),
        "sigma": jnp.full(rank[1] // 2, _START_SKEW, jnp.float32),
    }


class _Model(NamedTuple):
    prior: Callable[..., NDPP]
    start: Callable[[Array, int, tuple[int, int]], dict[str, Array]]
    sites: tuple[str, ...]
    strengths: tuple[str, ...]


_START_SKEW = 0.3
_LOC = "_loc"
_MODELS = {
    "ndpp": _Model(ndpp_prior, _start_ndpp, ("V_base", "B_base", "D"), ("alpha", "beta")),
    "ondpp": _Model(ondpp_prior, _start_ondpp, ("V_raw", "B_raw", "sigma"), ("alpha", "beta", "gamma")),
    "symmetric": _Model(symmetric_prior, _start_symmetric, ("V_base",), ("alpha",)),
}
# Adam moves features that all have one scale, whatever the counts of their items.
_ONE_SCALE = {"V": TransformReparam(), "B": TransformReparam()}


class Fit(NamedTuple):
    """A learned kernel, and how it was learned."""

    V: np.ndarray
    B: np.ndarray
    D: np.ndarray
    history: dict[str, np.ndarray]
    """One number for each evaluation: ``step``, ``loss`` (mean over the steps since the last one, per basket),
    ``validation`` (mean log-likelihood of the held-out baskets), ``price`` (what is taken off for rejections;
    the best evaluation is that with the largest difference of the two) and ``seconds``."""
    settings: dict[str, Any]

    def distribution(self, **settings: Any) -> NDPP:
        """The learned :class:`~numpyro_ndpp.NDPP`, with ``settings`` such as a sampler."""
        return NDPP(self.V, self.B, self.D, **settings)

    def save(self, path: str | Path) -> None:
        """Write an npz file, whole or not at all.

        :raises OSError: if it cannot be written, for want of space for example; a file of that name stays as it was.
        """
        arrays = {name: getattr(self, name) for name in ("V", "B", "D")}
        histories = {f"history_{name}": values for name, values in self.history.items()}
        write_arrays(path, arrays | histories, self.settings)

    @classmethod
    def load(cls, path: str | Path) -> "Fit":
        """What :meth:`save` wrote.

        :raises ValueError: for a file that is not such a one.
        """
        arrays, settings = read_arrays(path, ("V", "B", "D"))
        prefix = "history_"
        history = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
        return cls(arrays["V"], arrays["B"], arrays["D"], history, settings)


def fit(
    baskets: Subsets,
    num_items: int,
    *,
    model: str = "ndpp",
    rank: int | tuple[int, int] = 100,
    alpha: float = 50.0,
    beta: float = 30.0,
    gamma: float = 0.5,
    max_proposals: float | None = None,
    anchored: bool = True,
    batch_size: int = 500,
    num_steps: int = 2000,
    learning_rate: float = 0.02,
    validation: int | Subsets | None = None,
    evaluate_every: int = 50,
    patience: int = 6,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    progress_bar: bool = True,
) -> Fit:
    r"""A kernel learned from baskets: the MAP estimate of a model of this module, by SVI, in float32.

    Minibatches, Adam with a rate that falls to zero as a cosine; every ``evaluate_every`` steps the log-likelihood of
    held-out baskets (less the price of rejections, for ondpp). The parameters with the best one are kept, and the run
    ends early when it has not risen ``patience`` times in a row. A step costs O(n d² + d³) for the normaliser and
    O(m² d + m³) for each basket of m.

    :param baskets: lists of item numbers, or padded subsets (N, m).
    :param num_items: the number n of items.
    :param model: ``"ndpp"``, ``"ondpp"`` (orthogonal, for the rejection sampler) or ``"symmetric"`` (no B).
    :param rank: the columns of V and of B; one number stands for both.
    :param alpha, beta, gamma: the strengths of the priors of V and B, and of ondpp's price of rejections.
    :param max_proposals: the expected number of proposals that a kernel of ondpp may need to count as the best; None:
        any, and the price of rejections is taken off its log-likelihood.
    :param anchored: whether the prior of V is centred on independent items rather than on zero. The papers' objective
        is ``anchored=False, alpha=0.01, beta=0.01``, which relies on the early stop.
    :param batch_size: baskets in a minibatch.
    :param validation: baskets to judge by, or how many of ``baskets`` to hold out for that; by default 300, or a tenth
        if that is less.
    :param patience: evaluations without a rise after which to stop; 0: never.
    :param checkpoint: a file that the state is written to every ``checkpoint_every`` steps, with the next evaluation.
        If it is there already, the run goes on from it, and ends with the parameters of one never interrupted.
    :raises ValueError: for fewer than two baskets, items out of range or repeated, baskets larger than the rank,
        settings out of range, and a checkpoint of other data or settings.
    :raises OSError: if a checkpoint cannot be written; the last one stays as it was.
    :raises FloatingPointError: if the log-likelihood is not a number any more.

    >>> from numpyro_ndpp.datasets import simulate_baskets
    >>> shop = simulate_baskets(300)
    >>> result = fit(shop.baskets, len(shop.items), rank=(6, 4), num_steps=100, progress_bar=False)
    >>> result.distribution().rank
    10
    """
    if model not in _MODELS:
        raise ValueError(f"model must be one of {sorted(_MODELS)}, got {model!r}")
    kind = _MODELS[model]
    num_items, batch_size, num_steps = _integers(num_items=num_items, batch_size=batch_size, num_steps=num_steps)
    evaluate_every, checkpoint_every = _integers(evaluate_every=evaluate_every, checkpoint_every=checkpoint_every)
    patience, seed = _integers(patience=patience, seed=seed)
    alpha, beta, gamma, learning_rate = map(float, (alpha, beta, gamma, learning_rate))
    anchored, max_proposals = bool(anchored), None if max_proposals is None else float(max_proposals)
    ranks = _ranks(model, rank, num_items)
    _check_positive(alpha=alpha, beta=beta, batch_size=batch_size, learning_rate=learning_rate)
    _check_positive(num_steps=num_steps, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every)
    if max_proposals is not None and not max_proposals >= 1:
        raise ValueError(f"max_proposals must be one at least, got {max_proposals}")
    if gamma < 0 or patience < 0:
        raise ValueError(f"gamma and patience must not be negative, got {gamma} and {patience}")
    if checkpoint is not None and not os.access(Path(checkpoint).resolve().parent, os.W_OK):
        raise ValueError(f"checkpoint: {Path(checkpoint).resolve().parent} is not a folder that can be written to")
    train, held_out = _split(baskets, num_items, sum(ranks), validation, seed)
    given = {"alpha": alpha, "beta": beta, "gamma": gamma}
    strengths = {name: given[name] for name in kind.strengths}
    settings = {"model": model, "rank": list(ranks), "num_items": num_items, **strengths, "batch_size": batch_size}
    settings |= {"num_steps": num_steps, "learning_rate": learning_rate, "evaluate_every": evaluate_every}
    settings |= {
        "anchored": anchored,
        "max_proposals": max_proposals,
        "patience": patience,
        "seed": seed,
        "data": fingerprint(train, held_out),
        # what the random numbers of the minibatches depend on
        "backend": jax.default_backend(),
        "default_type": str(jnp.zeros(()).dtype),
        "random_bits": str(random.key_impl(random.key(seed))),
    }

    # What V starts from is what its prior is centred on.
    anchor = directions(random.key(seed), num_items, ranks[0]) if anchored else None
    prior = partial(kind.prior, rank=ranks, **strengths)
    reparametrized = handlers.reparam(partial(basket_model, prior=prior, batch_size=batch_size), config=_ONE_SCALE)
    adam = numpyro.optim.Adam(lambda step: learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * step / num_steps)))
    guide = partial(_point_guide, start=partial(kind.start, random.key(seed), num_items, ranks), sites=kind.sites)
    svi = SVI(reparametrized, guide, adam, Trace_ELBO())
    data = jnp.asarray(train), jnp.asarray(item_counts(train, num_items)), anchor
    state = svi.init(random.key(seed), *data)

    @partial(jax.jit, donate_argnums=0)
    def advance(state: Any, data: tuple[Any, ...], number: int) -> tuple[Any, Array]:
        """So many steps, and the mean of the loss over them."""

        def step(_: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
            state, loss = svi.update(carry[0], *data)
            return state, carry[1] + loss

        state, total = lax.fori_loop(0, number, step, (state, jnp.zeros(())))
        return state, total / number

    def law_of(state: Any, data: tuple[Any, ...]) -> NDPP:
        values = {name.removesuffix(_LOC): value for name, value in svi.get_params(state).items()}
        plain = handlers.reparam(partial(prior, data[1], len(train), anchor=data[2]), config=_ONE_SCALE)
        return handlers.seed(handlers.substitute(plain, values), random.key(0))()

    @jax.jit
    def judge(state: Any, data: tuple[Any, ...], held_out: Array) -> tuple[Array, Array]:
        """The mean log-likelihood of the held-out baskets, and what is to be taken off it for rejections."""
        law = law_of(state, data)
        if model != "ondpp":
            return law.log_prob(held_out).mean(), jnp.zeros(())
        log_proposals = log_expected_proposals(jnp.diagonal(law.D, 1)[::2])
        if max_proposals is None:
            price = gamma * log_proposals
        else:
            price = jnp.where(log_proposals > math.log(max_proposals), jnp.inf, 0.0)
        return law.log_prob(held_out).mean(), price

    @jax.jit
    def kernel(state: Any, data: tuple[Any, ...]) -> tuple[Array, Array, Array]:
        law = law_of(state, data)
        return law.V, law.B, law.D

    progress = _Progress.fresh()
    if checkpoint is not None and Path(checkpoint).exists():
        leaves, structure = jax.tree.flatten(state)
        num_leaves = len(leaves)
        del state, leaves  # what is read takes as much memory
        state, progress = _read_checkpoint(checkpoint, settings, structure, num_leaves)
    with tqdm(total=num_steps, initial=progress.step, unit="step", disable=not progress_bar) as bar:
        while progress.step < num_steps and not (patience and progress.since_best >= patience):
            start, number = time.perf_counter(), min(evaluate_every, num_steps - progress.step)
            state, loss = advance(state, data, number)
            value, price = map(float, judge(state, data, jnp.asarray(held_out)))
            if math.isnan(value):
                raise FloatingPointError(
                    f"the validation log-likelihood is not a number after {progress.step + number} steps; a lower "
                    f"learning_rate than {learning_rate} may help"
                )
            progress = progress.after(number, float(loss) / len(train), value, price, time.perf_counter() - start)
            if progress.since_best == 0:
                progress = progress._replace(best=tuple(map(np.asarray, kernel(state, data))))
            bar.update(number)
            bar.set_postfix(validation=f"{value:.3f}", since_best=progress.since_best)
            due = progress.step // checkpoint_every > (progress.step - number) // checkpoint_every
            if checkpoint is not None and (due or progress.step == num_steps):
                _write_checkpoint(checkpoint, settings, state, progress)
    history = {name: np.array(values) for name, values in progress.history.items()}
    if np.isneginf(history["validation"]).all():
        impossible = int(np.isneginf(np.asarray(NDPP(*progress.best).log_prob(held_out))).sum())
        warnings.warn(
            f"{impossible} of the {len(held_out)} held-out baskets have probability zero under every kernel that was "
            f"met, so none was the best and this is the last one",
            stacklevel=2,
        )
    if np.isposinf(history["price"]).all():
        warnings.warn(
            f"no kernel with at most max_proposals={max_proposals} expected proposals was met: this is the last one; "
            f"a gamma above {gamma} or more than num_steps={num_steps} steps would lower them",
            stacklevel=2,
        )
    V, B, D = progress.best
    return Fit(V, B, D, history, settings)


def _point_guide(*data: Any, start: Callable[[], dict[str, Array]], sites: tuple[str, ...]) -> None:
    """One value for every site: the guide of a MAP estimate."""
    for name in sites:
        constraint = constraints.positive if name == "sigma" else constraints.real
        # What it starts from is computed when it is asked for, and held by nobody after.
        value = numpyro.param(name + _LOC, lambda _, name=name: start()[name], constraint=constraint)
        numpyro.sample(name, dist.Delta(value, event_dim=value.ndim))


class _Progress(NamedTuple):
    """How far a run has come: steps done, evaluations since the best one, the best kernel, and the history."""

    step: int
    since_best: int
    best: tuple[np.ndarray, ...]
    history: dict[str, list[float]]

    @classmethod
    def fresh(cls) -> "_Progress":
        return cls(0, 0, (), {"step": [], "loss": [], "validation": [], "price": [], "seconds": []})

    def after(self, number: int, loss: float, validation: float, price: float, seconds: float) -> "_Progress":
        earlier = [value - paid for value, paid in zip(self.history["validation"], self.history["price"], strict=True)]
        best = max(earlier, default=-math.inf)
        since_best = 0 if validation - price > best or best == -math.inf else self.since_best + 1
        row = {"step": self.step + number, "loss": loss, "validation": validation, "price": price, "seconds": seconds}
        history = {name: [*values, row[name]] for name, values in self.history.items()}
        return _Progress(self.step + number, since_best, self.best, history)


def _write_checkpoint(path: str | Path, settings: dict[str, Any], state: Any, progress: _Progress) -> None:
    leaves = jax.tree.leaves(state._replace(rng_key=random.key_data(state.rng_key)))
    arrays = {f"state_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    arrays |= dict(zip("VBD", progress.best, strict=True))
    arrays |= {f"history_{name}": np.array(values) for name, values in progress.history.items()}
    write_arrays(path, arrays, settings | {"step": progress.step, "since_best": progress.since_best})


def _read_checkpoint(
    path: str | Path, settings: dict[str, Any], structure: Any, num_leaves: int
) -> tuple[Any, _Progress]:
    names = [f"state_{i}" for i in range(num_leaves)]
    arrays, written = read_arrays(path, ("V", "B", "D"))
    for name, value in settings.items():
        if written.get(name) != value:
            raise ValueError(
                f"checkpoint {path} is of another run: its {name} is {written.get(name)!r}, here it is {value!r}"
            )
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(f"checkpoint {path} has no {missing[0]!r}: it is a saved fit, not a checkpoint")
    # One after the other, so that no more than one array is there twice.
    restored = jax.tree.unflatten(structure, [jnp.asarray(arrays.pop(name)) for name in names])
    restored = restored._replace(rng_key=random.wrap_key_data(restored.rng_key))
    history = {name: arrays[f"history_{name}"].tolist() for name in _Progress.fresh().history}
    best = tuple(arrays[name] for name in "VBD")
    return restored, _Progress(written["step"], written["since_best"], best, history)


def _integers(**values: Any) -> list[int]:
    try:
        return [operator.index(value) for value in values.values()]
    except TypeError:
        bad = next(name for name, value in values.items() if not hasattr(value, "__index__"))
        raise ValueError(f"{bad} must be an integer, got {values[bad]!r}") from None


def _ranks(model: str, rank: int | tuple[int, int], num_items: int) -> tuple[int, int]:
    try:
        first, second = (
            operator.index(number) for number in (rank if isinstance(rank, (tuple, list)) else (rank, rank))
        )
    except (TypeError, ValueError):
        raise ValueError(f"rank must be a number of columns or two, of V and of B, got {rank!r}") from None
    if model == "symmetric":
        second = 0
    if first < 1 or second < 0:
        raise ValueError(f"rank must have one column of V at least and none or more of B, got {rank!r}")
    if model == "ondpp" and second > num_items:
        raise ValueError(
            f"rank: an orthogonal B has no more columns than there are items, got {second} for {num_items}"
        )
    return first, second


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value!r}")


def _padded(name: str, baskets: Any, num_items: int, rank: int) -> np.ndarray:
    """Baskets as padded subsets, checked: items in range, none twice, none of the baskets larger than the rank."""
    padded = as_padded(name, baskets, num_items)
    sizes = np.sum(padded < num_items, axis=1)
    if len(sizes) and sizes.max() > rank:
        raise ValueError(
            f"{name}: {np.sum(sizes > rank)} baskets have more items than the rank of {rank}, which gives them "
            f"probability zero (the first is basket {np.argmax(sizes > rank)} with {sizes[np.argmax(sizes > rank)]}); "
            f"raise the rank or leave them out"
        )
    return padded


def _split(baskets: Any, num_items: int, rank: int, validation: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Baskets to learn from and baskets to judge by."""
    padded = _padded("baskets", baskets, num_items, rank)
    if len(padded) < 2:
        raise ValueError(f"baskets: two baskets at least are needed, got {len(padded)}")
    if validation is not None and not isinstance(validation, (int, np.integer)):
        held_out = _padded("validation", validation, num_items, rank)
        if len(held_out) == 0:
            raise ValueError("validation: one basket at least is needed, got none")
        return padded, held_out
    number = min(300, max(1, len(padded) // 10)) if validation is None else int(validation)
    if not 0 < number < len(padded):
        raise ValueError(f"validation must be 1 to {len(padded) - 1} of the {len(padded)} baskets, got {number}")
    order = np.random.default_rng(seed).permutation(len(padded))
    return padded[np.sort(order[number:])], padded[np.sort(order[:number])]
