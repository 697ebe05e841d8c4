"""Tables 2 and 3 of Han, Gartrell, Dohmatob and Karbasi (ICML 2022): draws from learned kernels, by every sampler.

    python benchmarks/paper_tables.py KERNEL.npz ... [--output docs/explanation/paper_tables.md#paper_tables] [--quick]

The files are what :meth:`numpyro_ndpp.learning.Fit.save` writes, ``benchmarks/learning.py --kernels FOLDER`` for
example: NDPP kernels make Table 2, ONDPP kernels Table 3. For subsets of 10, of 50 (if the rank allows) and of any
size: seconds for one draw by the published exact sampler (rejection), the linear-time one (Cholesky, any size only),
the published walk (k² steps, pairs by rejection), the walk with the direct up operator, and the contour sampler; and
how many proposals were rejected, in a draw or, for the walk, in a step. ``*``: expected, from the time of one proposal
or of 25 steps. Kernels are used in float64. Compilation is left out, preparation is a column of its own.

Counted by hand at d = 200, k = 50: a step of the direct walk does some 3 k d² + 4 d² log n = 8 MFlop, 2,500 of them
20 GFlop; the published walk has an eigendecomposition in every step, 25 d³ = 200 MFlop, so 25 times that.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
from samplers import draw_time, prepared, seconds_in_words
from tables import machine, write_table
from updown import step_time

from numpyro_ndpp import NDPP, Cholesky, Exact, Rejection, UpDown
from numpyro_ndpp.learning import Fit

# A draw of more proposals is not waited for.
MOST_PROPOSALS = 1000
PUBLISHED = {  # seconds on UK Retail: exact by rejection, linear time, MCMC
    ("ndpp", 10): ("406", "", "25.4"),
    ("ndpp", 50): ("5.1e12\\*", "", "334"),
    ("ndpp", None): ("1.3e8\\*", "5.6", "75.3"),
    ("ondpp", 10): ("0.04", "", "6.5"),
    ("ondpp", 50): ("0.4", "", "140.7"),
    ("ondpp", None): ("0.1", "", "23.1"),
}


def rejection_cells(law: NDPP, low: int, high: int, most_proposals: int) -> tuple[str, str, str]:
    """Seconds a draw, rejections a draw, preparation."""
    state, preparation = prepared(Rejection(), law.X, law.W, low, high)
    proposals = float(np.exp(state.log_expected))
    expected = proposals > most_proposals
    sampler = Rejection(1) if expected else Rejection(100 * most_proposals)
    seconds = draw_time(sampler, state, 8, np.mean) * (proposals if expected else 1)
    mark = "\\*" if expected else ""
    return f"{seconds_in_words(seconds)}{mark}", f"{proposals - 1:.3g}{mark}", seconds_in_words(preparation)


def walk_cells(law: NDPP, size: int, up: str, num_steps: float, num_timed: int) -> tuple[str, str, str]:
    """The same of the walk at one size, for so many steps."""
    state, preparation = prepared(UpDown(up=up), law.X, law.W, size, size)
    seconds, _, rejections = step_time(state, 1, num_timed)
    rejected = f"{rejections:.2g}" if up == "rejection" else "0"
    return f"{seconds_in_words(seconds * num_steps)}\\*", rejected, seconds_in_words(preparation)


def exact_cells(sampler, law: NDPP, low: int, high: int, repeats: int) -> tuple[str, str, str]:
    state, preparation = prepared(sampler, law.X, law.W, low, high)
    seconds = draw_time(sampler, state, repeats, np.mean if low < high else np.min)
    return seconds_in_words(seconds), "0", seconds_in_words(preparation)


def table(path: Path, num_timed: int, most_proposals: int) -> list[str]:
    result = Fit.load(path)
    kind = result.settings["model"]
    law = NDPP(*(np.asarray(part, np.float64) for part in (result.V, result.B, result.D)))
    size_law = np.exp(np.asarray(law.size_log_prob()))
    sizes = np.arange(len(size_law))
    mean_size, mean_steps = float(size_law @ sizes), float(size_law @ sizes**2)
    lines = [f"**{path.stem}**: n = {law.num_items:,}, d = {law.rank}, E|S| = {mean_size:.1f}", ""]
    lines += ["| subsets of | sampler | a draw | rejections | preparation | published, UK Retail |", "|---" * 6 + "|"]
    for k in [k for k in (10, 50) if k <= law.max_size] + [None]:
        low, high = (0, law.max_size) if k is None else (k, k)
        steps = (round(mean_size), mean_steps) if k is None else (k, float(k**2))
        published = PUBLISHED.get((kind, k), ("", "", "")) if path.stem.startswith("uk_retail") else ("", "", "")
        rows = [("exact, rejection", *rejection_cells(law, low, high, most_proposals), published[0])]
        if k is None:
            rows.append(("exact, linear time", *exact_cells(Cholesky(), law, low, high, 4), published[1]))
        for up, name in (("rejection", "MCMC, published walk"), ("direct", "MCMC, direct")):
            cells = walk_cells(law, steps[0], up, steps[1], num_timed)
            rows.append((name, *cells, published[2] if up == "rejection" else ""))
        rows.append(("exact", *exact_cells(Exact(), law, low, high, 4), ""))
        size = "any size" if k is None else f"{k} items"
        lines += [f"| {size} | {' | '.join(row)} |" for row in rows]
        print("\n".join(lines[-len(rows) :]), flush=True)
    return [*lines, ""]


def main(arguments: list[str] | None = None) -> list[str]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=Path, nargs="+", help="saved fits")
    parser.add_argument("--output", type=Path, help="where to write the tables: FILE.md, or PAGE.md#NAME")
    parser.add_argument("--quick", action="store_true", help="two steps and one proposal, to see that it runs")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    limits = (2, 1) if options.quick else (25, MOST_PROPOSALS)
    lines = [line for path in options.kernels for line in table(path, *limits)]
    lines += ["\\* expected, not waited for.", "", f"{machine()}, float64."]
    write_table(options.output, lines)
    return lines


if __name__ == "__main__":
    main()
