"""The style of every figure: sizes for a paper, colours that colour-blind readers can tell apart, panel letters.

The colours are those of Okabe and Ito (2008), *Color universal design*. Attraction is blue and repulsion is vermilion,
in every figure. Take colours from ``COLOURS``: matplotlib looks up a line's "C0" when the figure is saved, in whatever
style there is then.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["ATTRACT", "COLOURS", "REPEL", "attraction_map", "panels", "short_name", "style"]

ATTRACT, REPEL = "#0072B2", "#D55E00"
COLOURS = [ATTRACT, REPEL, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
_SETTINGS: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.0,
    "figure.dpi": 120.0,
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # letters stay letters: journals ask for it
}


@contextmanager
def style() -> Iterator[None]:
    """The settings of matplotlib for figures made within: ``with style(): figure, axes = plt.subplots()``."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context({**_SETTINGS, "axes.prop_cycle": cycler(color=COLOURS)}):
        yield


def panels(rows: int = 1, columns: int = 1, **settings: Any) -> tuple["Figure", np.ndarray]:
    """A figure in this style and its plots (rows, columns), with letters a, b, ... where there is more than one.

    The figure is apart from pyplot: it needs no screen, and it is freed with its last reference. Save it as
    ``figure.savefig("figure.svg")``, or as pdf.

    :param settings: ``figsize`` in inches, by default 3.4 by 2.6 for each plot; the rest goes to ``Figure.subplots``.

    >>> figure, [[left, right]] = panels(1, 2)
    >>> left.get_title(loc="left")
    'a'
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style():
        figure = Figure(layout="constrained", figsize=settings.pop("figsize", (3.4 * columns, 2.6 * rows)))
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, **settings)
        if axes.size > 1:
            for letter, plot in zip("abcdefghijklmnopqrstuvwxyz", axes.flat, strict=False):
                plot.set_title(letter, loc="left", fontweight="bold")
    return figure, axes


def attraction_map() -> "Colormap":
    """From repulsion over white to attraction."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("attraction", [REPEL, "white", ATTRACT])


def short_name(name: str, most: int = 24) -> str:
    """A name for an axis: cut where it has more than ``most`` letters, and its dollar signs begin no formula.

    >>> short_name("frozen potato products, organic")
    'frozen potato products,…'
    """
    cut = name if len(name) <= most else name[: most - 1].rstrip() + "…"
    return cut.replace("$", r"\$")
