r"""Pictures of kernels: which items attract and which repel, as a map and as bars.

Two measures of a pair of items a, b, from the exact probabilities of being in S; both are zero if the two are
independent, positive if they attract and negative if they repel. The correlation of the indicators, from -1 to 1; and
the log-odds ratio

.. math:: \log \frac{P(a, b)\; P(\text{neither})}{P(a \text{ only})\; P(b \text{ only})} ,

how much the odds of a grow when b is in, on the scale of logarithms. The correlation of rare items is small whatever
they do to each other, most of all if they repel: it cannot be below about :math:`-\sqrt{P(a) P(b)}`. The log-odds ratio
has no such limit, and attraction and repulsion of the same strength have the same length.

Reference: Agresti (2013), *Categorical Data Analysis*, section 2.2.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_ndpp.base import SubsetDistribution
from numpyro_ndpp.checks import check_distribution, static_int
from numpyro_ndpp.figure_style import ATTRACT, REPEL, attraction_map, panels, short_name, style
from numpyro_ndpp.widths import power_of_two

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["pair_correlations", "pair_log_odds", "plot_kernel", "plot_pairs", "strongest_pairs"]

# Pairs are looked for among so many items, the likeliest: 20,000 pairs.
_MOST_ITEMS = 200
# A map has room for so many names.
_SHOWN = 20
# A pair must be expected so often, were its items independent, to say that it repels: none is seen then with
# probability exp(-5), below one in a hundred.
_ENOUGH = 5.0
# A log-odds ratio below this changes odds by less than a tenth.
_NEGLIGIBLE = 0.1
# Marginals of so many pairs are computed at once.
_CHUNK = 4096


def _pair_probs(dist: SubsetDistribution, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P(a), P(b) and P(a, b) for pairs (m, 2) of items."""
    p = np.clip(np.asarray(dist.inclusion_probs(), np.float64), 0.0, 1.0)
    rows = np.sort(pairs, axis=1).astype(np.int32)
    # All chunks have one shape, a power of two, so that few programs are compiled.
    chunk = min(_CHUNK, power_of_two(len(rows)))
    starts = range(0, len(rows), chunk)
    parts = [
        np.asarray(dist.marginal_log_prob(jnp.asarray(np.resize(rows[i : i + chunk], (chunk, 2))))) for i in starts
    ]
    both = np.exp(np.concatenate(parts)[: len(rows)].astype(np.float64)) if parts else np.zeros(0)
    return p[pairs[:, 0]], p[pairs[:, 1]], both


def _all_pairs(items: np.ndarray) -> np.ndarray:
    return np.stack([items[part] for part in np.triu_indices(len(items), 1)], axis=1)


def _likeliest(dist: SubsetDistribution, most: int) -> np.ndarray:
    return np.argsort(-np.asarray(dist.inclusion_probs()), kind="stable")[:most]


def _correlations(dist: SubsetDistribution, pairs: np.ndarray) -> np.ndarray:
    a, b, both = _pair_probs(dist, pairs)
    product = np.sqrt(a * (1 - a) * b * (1 - b))
    varies = product > 1e-9
    return np.where(varies, (both - a * b) / np.where(varies, product, 1.0), 0.0)


def pair_correlations(dist: SubsetDistribution, items: ArrayLike) -> np.ndarray:
    """The correlation (m, m) of the indicators of chosen items (m,): above zero they attract, below zero they repel.

    It is zero for an item that is certain or impossible, and on the diagonal.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1]])
    >>> pair_correlations(NDPP(V), [0, 1]).round(2).tolist()
    [[0.0, -0.46], [-0.46, 0.0]]
    """
    items = np.asarray(items)
    matrix = np.zeros((len(items), len(items)))
    first, second = np.triu_indices(len(items), 1)
    matrix[first, second] = matrix[second, first] = _correlations(dist, _all_pairs(items))
    return matrix


def pair_log_odds(dist: SubsetDistribution, pairs: ArrayLike) -> np.ndarray:
    r"""The log-odds ratio log [P(ab) P(neither) / (P(a only) P(b only))] of pairs of items (m, 2), an array (m,).

    It is infinite for two that come together or not at all, -infinite for two that never meet, and zero where an item
    is certain or impossible. Probabilities below the rounding of those they are differences of count as zero.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> V = jnp.array([[1.0, 0.0], [0.6, 0.8]])  # det L is 0.64 for both, 1 for one and for none
    >>> pair_log_odds(NDPP(V), [[0, 1]]).round(2).tolist()
    [-0.45]
    """
    pairs = np.asarray(pairs)
    a, b, both = _pair_probs(dist, pairs)
    rounding = 32 * float(jnp.finfo(dist.X.dtype).eps)
    neither = 1 - a - b + both
    cells = np.stack([both, neither, a - both, b - both])
    cells = np.where(cells > rounding * np.stack([a * b, np.ones_like(a), a, b]), cells, 0.0)
    varies = (np.minimum(a, b) > 1e-12) & (np.maximum(a, b) < 1 - rounding)
    with np.errstate(divide="ignore", invalid="ignore"):
        together, neither, only_a, only_b = np.log(cells)
        return np.where(varies, np.nan_to_num(together + neither - only_a - only_b, posinf=np.inf, neginf=-np.inf), 0.0)


Pair = tuple[int, int, float]


def strongest_pairs(
    dist: SubsetDistribution, num: int = 8, *, num_baskets: int = 10_000
) -> tuple[list[Pair], list[Pair]]:
    """The pairs of items that attract most and those that repel most: (a, b, log-odds ratio), the strongest first.

    A kernel that was learned from N baskets says little about a pair that chance alone would bring together in a few
    of them: none seen where two are expected is no repulsion, and three seen is no attraction. Pairs count if
    N P(a) P(b) is five at least, and both are among the 200 likeliest items.

    :param dist: a distribution without batch dimensions.
    :param num: how many of either kind at most; there are fewer if fewer attract or repel.
    :param num_baskets: N. For a kernel that is known, not learned, give a large number.
    :raises ValueError: for a batch of distributions, ``num`` or ``num_baskets`` below 1.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> V = jnp.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])
    >>> attract, repel = strongest_pairs(NDPP(V))
    >>> [(a, b, round(value, 2)) for a, b, value in repel]
    [(0, 1, -0.45)]
    """
    check_distribution(dist, SubsetDistribution)
    num, num_baskets = static_int("num", num, 1), static_int("num_baskets", num_baskets, 1)
    p = np.asarray(dist.inclusion_probs(), np.float64)
    pairs = _all_pairs(_likeliest(dist, _MOST_ITEMS))
    pairs = np.sort(pairs[num_baskets * p[pairs[:, 0]] * p[pairs[:, 1]] >= _ENOUGH], axis=1)
    values = pair_log_odds(dist, pairs)
    order = np.argsort(-values, kind="stable")
    rounded = 1e-4  # of independent items in float32
    found = [(int(pairs[i, 0]), int(pairs[i, 1]), float(values[i])) for i in order]
    attract = [pair for pair in found[:num] if pair[2] > rounded]
    return attract, [pair for pair in found[::-1][:num] if pair[2] < -rounded]


def _check_names(names: Sequence[str] | None, n: int) -> None:
    if names is not None and len(names) != n:
        raise ValueError(f"names must have one name for each of {n} items, got {len(names)}")


@style()
def plot_pairs(
    dist: SubsetDistribution,
    names: Sequence[str] | None = None,
    num: int = 8,
    *,
    num_baskets: int = 10_000,
    ax: Any = None,
) -> "Figure":
    r"""Bars of the pairs that attract (blue) and repel (vermilion) most, on one scale: the log-odds ratio.

    .. math:: \log \frac{P(a, b)\; P(\text{neither})}{P(a \text{ only})\; P(b \text{ only})}

    of the exact probabilities of being in S: 0.7 doubles the odds of an item when the other is in, -0.7 halves them.
    Both kinds share the axis, so that lengths can be compared, and its halves are equally long if there are both. Where
    one kind has none, or changes odds by less than a tenth (0.1), the figure says so. Bars of pairs that always or
    never come together end at the edge.

    Which pairs count, :func:`strongest_pairs` says: those that chance alone brings together five times or more in
    ``num_baskets`` baskets.

    :param dist: a distribution without batch dimensions.
    :param names: a name for every item of the catalogue; by default its number. Long ones are cut.
    :param num: how many pairs of either kind.
    :param num_baskets: from how many baskets the kernel was learned; for one that is known give a large number.
    :param ax: matplotlib axes of your own to draw into; by default a new figure.
    :raises ValueError: for a batch of distributions, names that are not n, ``num`` or ``num_baskets`` below 1, and if
        no pair is expected often enough.
    """
    check_distribution(dist, SubsetDistribution)
    _check_names(names, dist.num_items)
    attract, repel = strongest_pairs(dist, num, num_baskets=num_baskets)
    p = np.sort(np.asarray(dist.inclusion_probs(), np.float64))[::-1]
    if len(p) < 2 or num_baskets * p[0] * p[1] < _ENOUGH:
        raise ValueError(f"num_baskets is {num_baskets}: no pair of items is expected five times in so many baskets")
    bars = [*attract, *repel[::-1]]
    if ax is None:
        _, [[ax]] = panels(1, 1, figsize=(5.4, 0.9 + 0.2 * max(len(bars), 4)))
    finite = [abs(value) for *_, value in bars if np.isfinite(value)]
    limit = 1.45 * max([*finite, _NEGLIGIBLE])
    left, right = (-limit if repel else -0.05 * limit), (limit if attract else 0.05 * limit)
    for place, (_, _, value) in enumerate(bars):
        sign = 1 if value > 0 else -1
        length = float(np.clip(value, left, right))
        ax.barh(place, length, 0.72, color=ATTRACT if value > 0 else REPEL)
        if np.isfinite(value):
            words, end, colour = f"{value:+.2f}".replace("-", "−"), length, "black"
        else:
            words, end, colour = "always together" if value > 0 else "never together", 0.0, "white"
        beside: dict[str, Any] = {"xytext": (3 * sign, 0), "textcoords": "offset points"}
        side = "left" if value > 0 else "right"
        ax.annotate(words, (end, place), color=colour, ha=side, va="center", fontsize=7, **beside)

    def label(item: int) -> str:
        return short_name(names[item], 22) if names is not None else str(item)

    ax.set_yticks(range(len(bars)), [f"{label(a)} + {label(b)}" for a, b, _ in bars])
    ax.tick_params(axis="y", length=0)
    ax.axvline(0, color="0.3", linewidth=0.8)
    ax.set(xlim=(left, right), ylim=(len(bars) - 0.4, -0.6))
    ax.set_xlabel("log-odds ratio of being together\nrepel  ←    →  attract")
    notes = [_note(attract, "attract"), _note(repel, "repel")]
    if any(notes):
        ax.set_title("; ".join(filter(None, notes)), fontsize=8, color="0.3")
    return ax.figure


def _note(pairs: list[Pair], what: str) -> str:
    """What a figure says of a kind that has nothing to show."""
    if not pairs:
        return f"no pair {what}s"
    strongest = abs(pairs[0][2])
    return f"no pair {what}s by more than {strongest:.2f}" if strongest < _NEGLIGIBLE else ""


def _items_that_matter(dist: SubsetDistribution) -> np.ndarray:
    """Items of the pairs that attract and repel most, by turns, as many as a map has room for."""
    items = _likeliest(dist, _MOST_ITEMS)
    if len(items) <= _SHOWN:
        return items
    pairs = _all_pairs(items)
    values = _correlations(dist, pairs)
    order = np.argsort(-values, kind="stable")
    attract, repel = pairs[order[values[order] > 0]], pairs[order[::-1][values[order[::-1]] < 0]]
    chosen: dict[int, None] = {}
    for turn in range(_SHOWN):
        for kind in (attract, repel):
            chosen |= dict.fromkeys(kind[turn].tolist() if turn < len(kind) else [])
    # A kernel without attraction, or without repulsion, may leave room.
    chosen |= dict.fromkeys(items.tolist())
    return np.array(list(chosen)[:_SHOWN])


@style()
def plot_kernel(
    dist: SubsetDistribution, items: ArrayLike | None = None, names: Sequence[str] | None = None
) -> "Figure":
    """A map of which items attract (blue) and repel (vermilion): the correlation of their indicators.

    Items that attract and repel alike stand together. The colours have one scale, symmetric about zero, which ends at
    the strongest correlation of either sign; white is independence.

    :param dist: a distribution without batch dimensions.
    :param items: the items to show; by default 20, those of the pairs that attract most and that repel most, by turns,
        among the 200 likeliest items. So both are seen where both are there; :func:`plot_pairs` has their strengths.
    :param names: a name for every item of the catalogue; by default its number. Long ones are cut.
    :raises ValueError: for items out of range or repeated, fewer than two items, or names that are not n.
    """
    check_distribution(dist, SubsetDistribution)
    n = dist.num_items
    _check_names(names, n)
    chosen = _items_that_matter(dist) if items is None else np.asarray(items)
    if chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer) or len(chosen) < 2:
        raise ValueError(f"items must be two or more item numbers, got {chosen.tolist()}")
    if chosen.min() < 0 or chosen.max() >= n or len(np.unique(chosen)) < len(chosen):
        raise ValueError(f"items must be 0 to {n - 1}, each once, got {chosen.tolist()}")
    matrix = pair_correlations(dist, chosen)
    if len(chosen) > 2:
        order = _in_order_of_likeness(matrix)
        chosen, matrix = chosen[order], matrix[np.ix_(order, order)]
    labels = [short_name(names[item], 18) if names is not None else str(item) for item in chosen]
    places = range(len(chosen))

    letters = max(len(label) for label in labels)
    size = max(3.0, 0.4 + 0.19 * len(chosen) + 0.075 * letters)  # the words beside the scale need that
    figure, [[plot]] = panels(1, 1, figsize=(size + 1.0, size))
    limit = max(np.abs(matrix).max(), 1e-3)
    shown = np.ma.masked_array(matrix, np.eye(len(chosen)) > 0)
    image = plot.imshow(shown, cmap=attraction_map(), vmin=-limit, vmax=limit)
    plot.set_facecolor("0.93")
    plot.set_xticks(places, labels, rotation=90)
    plot.set_yticks(places, labels)
    plot.tick_params(length=0)
    plot.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=plot, shrink=0.8, pad=0.06)
    bar.set_label("correlation of being in S")
    bar.ax.set_title("attract", fontsize=8)
    bar.ax.set_xlabel("repel", fontsize=8)
    bar.outline.set_visible(False)
    return figure


def _in_order_of_likeness(matrix: np.ndarray) -> np.ndarray:
    """An order in which items with like rows are neighbours, by hierarchical clustering."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    # Items that attract are near; items that repel are far.
    distance = matrix.max() - matrix
    np.fill_diagonal(distance, 0.0)
    return leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=True))
