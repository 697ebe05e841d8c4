r"""Has a chain of subsets mixed? Chains of the walk as ArviZ data, and the mixing time.

A subset is no number, so chains are judged by numbers: log det L_S, the size, whether an item is in, whether both items
of a pair are. There are two factors: ``r_hat`` is ArviZ's rank-normalised split R-hat, and ``psrf`` is the classical
potential scale reduction factor of Gelman and Rubin,

.. math:: \text{PSRF} = \sqrt{\frac{T - 1}{T} + \frac{\operatorname{Var}_c(\bar x_c)}{\operatorname{mean}_c(s_c^2)}} ,

for the means :math:`\bar x_c` and variances :math:`s_c^2` of chains of T draws. The exact probability of every item is
known, so frequencies are also compared with the truth itself.

References: Gelman and Rubin (1992), *Inference from iterative simulation using multiple sequences*, Statistical
Science 7; Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), *Rank-normalization, folding, and localization: an
improved R-hat*, Bayesian Analysis 16; Han, Gartrell, Dohmatob and Karbasi (2022), ICML, appendix on the PSRF.
"""

import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from tqdm.auto import tqdm

from numpyro_ndpp.base import SubsetDistribution
from numpyro_ndpp.chain_summary import ConvergenceWarning, summarize_chains
from numpyro_ndpp.chains import BLOCK, begin_chains, chain_in_words, log_dets, run_block
from numpyro_ndpp.checks import check_distribution, finite_float, static_int
from numpyro_ndpp.samplers.walk import StepInfo

__all__ = ["ConvergenceWarning", "MixingTime", "chains_to_arviz", "mixing_time", "run_chains", "summarize_chains"]

# The progress bar is shown once a run has taken so many seconds.
_BAR_DELAY = 3.0


class MixingTime(NamedTuple):
    """The first step from which the PSRF stays below the threshold, and the PSRF after each step.

    ``num_steps`` is None if the PSRF did not fall below, or fell too late to see whether it stays there.
    ``psrf[t - 1]`` belongs to the first t steps; the first is NaN. ``chain`` says which chain was judged: if the size
    varies, it is not the one behind ``sample``.
    """

    num_steps: int | None
    psrf: np.ndarray
    threshold: float
    chain: str


def run_chains(
    dist: SubsetDistribution,
    key: Array,
    num_chains: int,
    num_steps: int,
    thin: int = 1,
    init: str | ArrayLike = "uniform",
    *,
    max_items: int = 1000,
    progress_bar: bool = True,
) -> Any:
    """Chains of the up-down walk, side by side, as ArviZ data (InferenceData below ArviZ 1.0, DataTree from 1.0 on).

    If the size is fixed, a step is that of :class:`~numpyro_ndpp.UpDown`: two items are dropped, two are drawn. If it
    varies, a step is a move of :class:`~numpyro_ndpp.SubsetGibbs` without a likelihood, which may change the size. That
    is not the chain behind ``sample``, which draws the size first. The attribute ``chain`` of the result says which
    chain it is. A step costs O(k d² + d² log n) a chain, and d³ if the size varies, after O(n d²) once.

    :param dist: an NDPP or KNDPP, or one of these conditioned; without batch dimensions.
    :param num_chains: how many chains.
    :param num_steps: steps of each chain. No warm-up is taken away: the data show how a chain settles.
    :param thin: steps from one recorded subset to the next; ``num_steps // thin`` are recorded.
    :param init: where chains start. ``"uniform"``: each at a uniformly random subset, more spread out than draws are,
        or at the greedy subset if that one has probability zero. ``"greedy"``: all at the greedy MAP subset. Or padded
        subsets, (w,) or (num_chains, w).
    :param max_items: in catalogues up to this size every item has an indicator. In larger ones only items that occur
        have one, the likeliest first.
    :param progress_bar: whether to show a bar, after a few seconds.
    :return: what :func:`chains_to_arviz` returns, with the group ``sample_stats``: ``num_rejections`` counts rejected
        proposals since the last recorded subset, and ``changed`` says whether the subset is another one.
    :raises ValueError: for numbers out of range, starts of probability zero, a batch of distributions.

    >>> from jax import random
    >>> from numpyro_ndpp import KNDPP, run_chains
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(30, 3), (30, 4), (4, 4)]))
    >>> data = run_chains(KNDPP(V, B, D, k=3), random.key(3), num_chains=4, num_steps=50)
    >>> data["posterior"]["included"].sizes["item"], data["posterior"]["subset"].shape
    (30, (4, 50, 3))
    """
    check_distribution(dist, SubsetDistribution)
    num_chains = static_int("num_chains", num_chains, 1)
    num_steps = static_int("num_steps", num_steps, 1)
    thin = static_int("thin", thin, 1, num_steps, "num_steps")
    walk, keys, states = begin_chains(dist, key, num_chains, init)

    num_draws = num_steps // thin
    blocks = [min(BLOCK, num_draws - first) for first in range(0, num_draws, BLOCK)]
    jax.block_until_ready(run_block(dist, walk, keys, states, 0, thin))  # compiled: not part of the time a step takes
    subsets, infos, start = [], [], time.perf_counter()
    with tqdm(total=num_draws * thin, unit="step", delay=_BAR_DELAY, disable=not progress_bar) as bar:
        for length in blocks:
            keys, states, block, info = run_block(dist, walk, keys, states, length, thin)
            subsets.append(np.asarray(block)[:, :length])
            infos.append(jax.tree.map(lambda array, length=length: np.asarray(array)[:, :length], info))
            bar.update(length * thin)
    seconds = time.perf_counter() - start
    stats = {name: np.concatenate([getattr(info, name) for info in infos], axis=1) for name in StepInfo._fields}
    return chains_to_arviz(
        np.concatenate(subsets, axis=1),
        dist,
        max_items=max_items,
        sample_stats=stats,
        attrs={"sampling_time": seconds, "thin": thin, "chain": chain_in_words(dist)},
    )


# --- ArviZ -----------------------------------------------------------------------------------------------------------


def _to_arviz(groups: dict[str, Any], coords: dict, dims: dict, attrs: dict) -> Any:
    """ArviZ's container of groups of arrays (chain, draw, ...). Only this function knows its two majors."""
    import arviz as az

    with warnings.catch_warnings():
        # Many short chains are meant; each major has words of its own for them.
        warnings.filterwarnings("ignore", message="More chains|Found chain dimension to be longer")
        if hasattr(az, "convert_to_datatree"):
            data = az.from_dict(groups, coords=coords, dims=dims)
        else:
            data = az.from_dict(**groups, coords=coords, dims=dims)
    data["posterior"].attrs.update(attrs)
    return data


def _items_shown(subsets: np.ndarray, probs: np.ndarray, max_items: int) -> np.ndarray:
    """The items with an indicator: all, or the likeliest of those that occur.

    Not the most frequent: chance has favoured these, and their frequencies would be too high.
    """
    n = len(probs)
    if n <= max_items:
        return np.arange(n)
    items = np.unique(subsets[subsets < n])
    return np.sort(items[np.argsort(-probs[items], kind="stable")[:max_items]])


def _indicators(subsets: np.ndarray, items: np.ndarray, n: int) -> np.ndarray:
    """Whether each of the items (m,) is in the subsets (..., w): (..., m), 0 or 1."""
    place = np.full(n + 1, len(items))
    place[items] = np.arange(len(items))
    included = np.zeros((*subsets.shape[:-1], len(items) + 1), np.uint8)
    np.put_along_axis(included, place[subsets], 1, axis=-1)
    return included[..., :-1]


def chains_to_arviz(
    subsets: ArrayLike,
    dist: SubsetDistribution,
    *,
    max_items: int = 1000,
    sample_stats: Mapping[str, ArrayLike] | None = None,
    attrs: dict[str, Any] | None = None,
) -> Any:
    """Chains of padded subsets (chains, draws, w) as ArviZ data, for :func:`summarize_chains` and ArviZ itself.

    The group ``posterior`` has ``subset`` (chain, draw, slot), ``log_det``, ``size`` and ``included`` (chain, draw,
    item), 0 or 1; the group ``constant_data`` has the exact ``inclusion_probs`` (item). A site of an MCMC run
    whose distribution does not vary goes in by ``mcmc.get_samples(group_by_chain=True)[site]``.

    :param dist: the distribution that the chains should have.
    :param max_items: as in :func:`run_chains`.
    :param sample_stats, attrs: further arrays (chains, draws), and attributes of the posterior.
    :raises ValueError: for arrays that are no chains of subsets.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP, chains_to_arviz
    >>> dist = NDPP(jnp.eye(3), jnp.zeros((3, 1)), jnp.zeros((1, 1)))
    >>> data = chains_to_arviz(jnp.array([[[0, 3, 3], [1, 2, 3]]]), dist)
    >>> data["posterior"]["size"].values.tolist()
    [[1, 2]]
    """
    check_distribution(dist, SubsetDistribution)
    max_items = static_int("max_items", max_items, 1)
    subsets, n = np.asarray(subsets), dist.num_items
    if subsets.ndim != 3 or not np.issubdtype(subsets.dtype, np.integer):
        raise ValueError(
            f"subsets must be integers of shape (chains, draws, width), got {subsets.dtype} {subsets.shape}"
        )
    if subsets.size and (subsets.min() < 0 or subsets.max() > n):
        raise ValueError(
            f"subsets: items must be 0 to {n - 1}, and {n} where there is none, got {subsets.min()} to {subsets.max()}"
        )
    log_det = log_dets(dist, subsets)
    probs = np.asarray(dist.inclusion_probs())
    items = _items_shown(subsets, probs, max_items)
    groups: dict[str, Any] = {
        "posterior": {
            "subset": subsets,
            "log_det": log_det,
            "size": np.sum(subsets < n, axis=-1),
            "included": _indicators(subsets, items, n),
        },
        "constant_data": {"inclusion_probs": probs[items]},
    }
    if sample_stats:
        groups["sample_stats"] = {name: np.asarray(array) for name, array in sample_stats.items()}
    dims = {"subset": ["slot"], "included": ["item"], "inclusion_probs": ["item"]}
    return _to_arviz(groups, {"item": items}, dims, {"num_items": n, **(attrs or {})})


# --- The mixing time -------------------------------------------------------------------------------------------------


def running_psrf(x: np.ndarray) -> np.ndarray:
    """The classical PSRF of the first t draws, for every t, of chains (c, t): (t,), the first NaN.

    >>> import numpy as np
    >>> from numpyro.diagnostics import gelman_rubin
    >>> x = np.random.default_rng(0).normal(size=(5, 50))
    >>> bool(abs(running_psrf(x)[29] - gelman_rubin(x[:, :30])) < 1e-12)
    True
    """
    x = np.asarray(x, np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"x must be chains (c, t) of numbers, two at least, got shape {x.shape}")
    x = x - x.mean()
    number = np.arange(1, x.shape[1] + 1)
    means = np.cumsum(x, axis=1) / number
    squares = np.cumsum(x**2, axis=1) - number * means**2
    with np.errstate(divide="ignore", invalid="ignore"):
        within = np.mean(np.maximum(squares, 0.0), axis=0) / (number - 1)
        between = means.var(axis=0, ddof=1)
        psrf = np.sqrt((number - 1) / number + between / within)
    # Chains that have not moved and are at one place agree.
    return np.where((within == 0) & (between == 0) & (number > 1), 1.0, psrf)


def mixing_time(
    dist: SubsetDistribution,
    key: Array,
    num_chains: int = 100,
    threshold: float = 1.1,
    *,
    max_steps: int = 100_000,
    init: str | ArrayLike = "uniform",
    progress_bar: bool = True,
) -> MixingTime:
    """The first step at which the classical PSRF of log det L_S over many chains stays below a threshold.

    The chains start spread out, and all their steps count. They run until the PSRF has been below the threshold for as
    long as it took to get there, and for at least 16 steps.

    :param threshold: a number above one.
    :param max_steps: the most steps; if they do not suffice, ``num_steps`` of the result is None.
    :raises ValueError: for fewer than two chains, a threshold that is not above one.

    >>> from jax import random
    >>> from numpyro_ndpp import KNDPP, mixing_time
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(40, 4), (40, 4), (4, 4)]))
    >>> result = mixing_time(KNDPP(V, B, D, k=6), random.key(3))
    >>> 2 <= result.num_steps < 200
    True
    """
    check_distribution(dist, SubsetDistribution)
    num_chains = static_int("num_chains", num_chains, 2)
    max_steps = static_int("max_steps", max_steps, 2)
    threshold = finite_float("threshold", threshold, 1, exclusive=True)
    walk, keys, states = begin_chains(dist, key, num_chains, init)
    recorded: list[np.ndarray] = []
    next_look = 0.0
    with tqdm(unit="step", delay=_BAR_DELAY, disable=not progress_bar) as bar:
        while True:
            keys, states, subsets, _ = run_block(dist, walk, keys, states, BLOCK, 1)
            recorded.append(log_dets(dist, np.asarray(subsets)))
            bar.update(BLOCK)
            length = BLOCK * len(recorded)
            if length < min(next_look, max_steps):
                continue
            next_look = 1.2 * length  # a look takes time in proportion to the length
            psrf = running_psrf(np.concatenate(recorded, axis=1)[:, :max_steps])
            above = np.flatnonzero(~(psrf < threshold))  # the first, NaN, among them
            first = int(above[-1]) + 2
            stays = len(psrf) >= max(2 * first, first + 16)
            if stays or len(psrf) >= max_steps:
                return MixingTime(first if stays else None, psrf, threshold, chain_in_words(dist))
