"""Commands for those who do not want to write Python: ``python -m numpyro_ndpp learn | recommend | sample | diagnose``.

Each is a few calls of the package's own functions. Results go to standard output; progress bars, warnings and errors go
to standard error. A mistake is one line and the exit status 2. Files are written whole or not at all.
"""

import argparse
import csv
import io
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from jax import random

from numpyro_ndpp.baskets import Baskets
from numpyro_ndpp.checkpoints import write_whole
from numpyro_ndpp.datasets import load_baskets
from numpyro_ndpp.diagnostics import ConvergenceWarning, run_chains, summarize_chains
from numpyro_ndpp.fits import Fit
from numpyro_ndpp.held_out import hold_out, popularity
from numpyro_ndpp.learning import fit
from numpyro_ndpp.metrics import mean_log_likelihood, mean_percentile_rank, subset_auc

__all__ = ["add_data_arguments", "judge", "load", "main"]

_PROGRAM = "python -m numpyro_ndpp"
_ABOUT = "Baskets in, recommendations out: kernels of determinantal point processes, learned from baskets."
_EXAMPLES = """examples:
  python -m numpyro_ndpp learn orders.csv --kernel kernel.npz
  python -m numpyro_ndpp recommend kernel.npz bread butter
  python -m numpyro_ndpp recommend kernel.npz "whole milk" --exclude soda -n 5
  python -m numpyro_ndpp sample kernel.npz -n 100 --given bread --size 4 --output baskets.csv
  python -m numpyro_ndpp diagnose kernel.npz
"""
_LEARN_EXAMPLES = """the file is one of
  a table with a line for each item of each order, under a header such as order,item
  text with one basket per line, commas between its items
  npz, as numpyro_ndpp.datasets.save_baskets writes it

examples:
  python -m numpyro_ndpp learn orders.csv --kernel kernel.npz
  python -m numpyro_ndpp learn sales.csv --order InvoiceNo --item Description --kernel kernel.npz
  python -m numpyro_ndpp learn pairs.csv --layout orders --kernel kernel.npz
  python -m numpyro_ndpp learn baskets.txt --catalogue names.txt --rank 60 --kernel kernel.npz
"""
_AS_WRITTEN = argparse.RawDescriptionHelpFormatter
_MISTAKES = (ValueError, TypeError, OSError, FloatingPointError, MemoryError)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, where argparse has the usage too."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say how a file of baskets is read; :func:`load` uses them."""
    parser.add_argument("--catalogue", type=Path, metavar="FILE", help="names of all items, one per line")
    parser.add_argument("--layout", choices=["baskets", "orders"], help="a basket per line, or an order and an item")
    parser.add_argument("--order", metavar="COLUMN", help="the column of a table that has the order")
    parser.add_argument("--item", metavar="COLUMN", help="the column of a table that has the item")


def load(options: argparse.Namespace, path: Path, **settings: Any) -> Baskets:
    """Baskets as the options of :func:`add_data_arguments` say."""
    layout = {"layout": options.layout, "order": options.order, "item": options.item}
    return load_baskets(path, catalogue=options.catalogue, **layout, **settings)


def judge(result: Fit, train: Any, test: Any) -> list[str]:
    """What a kernel makes of baskets that it has not seen, in lines to print."""
    dist = result.distribution()
    lines = [f"mean log-likelihood of a new basket: {mean_log_likelihood(dist, test)}"]
    lists = test.baskets if isinstance(test, Baskets) else test
    if any(len(basket) > 1 for basket in lists):
        popular = popularity(train, dist.num_items)
        lines.append(f"mean percentile rank of a hidden item: {mean_percentile_rank(dist, test)}")
        lines.append(f"the same by popularity alone: {mean_percentile_rank(popular, test)}")
    lines.append(f"share of baskets likelier than a random set of their size: {subset_auc(dist, test)}")
    return lines


def _learn(options: argparse.Namespace) -> None:
    folder = options.kernel.resolve().parent
    if options.kernel.is_dir() or not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ValueError(f"--kernel: {options.kernel} is not a file in a folder that can be written to")
    if options.kernel.exists() and options.kernel.samefile(options.baskets):
        raise ValueError(f"--kernel: {options.kernel} is the file of baskets itself")
    data = load(options, options.baskets, progress_bar=not options.quiet)
    train, test = hold_out(data, seed=options.seed)
    number = len(train.baskets)
    print(f"{number} baskets of {len(data.items)} items to learn from, {len(test.baskets)} to judge by", flush=True)
    result = fit(
        train,
        model=options.model,
        rank=options.rank,
        min_size=options.min_size,
        num_steps=options.steps,
        seed=options.seed,
        checkpoint=options.checkpoint,
        progress_bar=not options.quiet,
    )
    result.save(options.kernel)
    print(*judge(result, train, test), result, f"The kernel is in {options.kernel}", sep="\n")


def _recommend(options: argparse.Namespace) -> None:
    for name, probability in Fit.load(options.kernel).recommend(options.items, options.num, exclude=options.exclude):
        print(f"{probability:.4f}  {name}")


def _sample(options: argparse.Namespace) -> None:
    drawn = Fit.load(options.kernel).complete(options.given, options.size, num=options.num, seed=options.seed)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(drawn)
    if options.output is None:
        print(text.getvalue(), end="")
    else:
        write_whole(options.output, lambda file: _write(file, text.getvalue()))


def _write(file: Any, text: str) -> None:
    file.write(text.encode())


def _diagnose(options: argparse.Namespace) -> None:
    result = Fit.load(options.kernel)
    dist = result.distribution()
    sizes, probs = np.arange(dist.rank + 1), np.exp(np.asarray(dist.size_log_prob(), np.float64))
    mean = float(np.sum(sizes * probs))
    spread = float(np.sqrt(np.sum((sizes - mean) ** 2 * probs)))
    print(result, f"size of a basket: {mean:.2f} on average, standard deviation {spread:.2f}", sep="\n", flush=True)
    settings = {"num_chains": options.chains, "num_steps": options.steps, "progress_bar": not options.quiet}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what it says is printed below
        table = summarize_chains(run_chains(dist, random.key(options.seed), **settings))
    print(table.to_string(float_format=lambda value: f"{value:.2f}", na_rep=""))
    print(*(table.attrs["problems"] or ["Nothing speaks against these chains."]), sep="\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_PROGRAM, description=_ABOUT, epilog=_EXAMPLES, formatter_class=_AS_WRITTEN)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, run: Callable[[argparse.Namespace], None], about: str, epilog: str = _EXAMPLES) -> Any:
        added = commands.add_parser(name, help=about, description=about, epilog=epilog, formatter_class=_AS_WRITTEN)
        added.set_defaults(run=run)
        if run is not _learn:
            added.add_argument("kernel", type=Path, help="a file that learn wrote")
        return added

    learn = command("learn", _learn, "Learn a kernel from a file of baskets, and judge it.", _LEARN_EXAMPLES)
    learn.add_argument("baskets", type=Path, help="the file of baskets")
    learn.add_argument("--kernel", type=Path, required=True, metavar="FILE", help="where the kernel goes")
    add_data_arguments(learn)
    learn.add_argument("--model", choices=["ndpp", "ondpp", "symmetric"], default="ndpp")
    learn.add_argument("--rank", type=int, default=100, help="features of an item, and most items of a basket (100)")
    learn.add_argument("--min-size", type=int, choices=[0, 1], help="1: no basket is empty; by default as in the data")
    learn.add_argument("--steps", type=int, default=1000, help="the most steps (1000); it stops when it gets no better")
    learn.add_argument("--checkpoint", type=Path, metavar="FILE", help="to go on from if the run is interrupted")

    recommend = command("recommend", _recommend, "The likeliest items to join a basket, with their probabilities.")
    recommend.add_argument("items", nargs="*", help="what is in the basket, by name or number")
    recommend.add_argument("-n", "--num", type=int, default=10, help="how many to name (10)")
    recommend.add_argument("--exclude", nargs="+", default=[], metavar="ITEM", help="what is not to be recommended")

    sample = command("sample", _sample, "Draw baskets, one per line.")
    sample.add_argument("-n", "--num", type=int, default=10, help="how many baskets (10)")
    sample.add_argument("--given", nargs="+", default=[], metavar="ITEM", help="what is in every basket")
    sample.add_argument("--size", type=int, help="items of a basket; by default they vary as learned")
    sample.add_argument("--output", type=Path, metavar="FILE", help="where the baskets go; by default standard output")

    diagnose = command("diagnose", _diagnose, "What was learned, and whether chains of the default sampler agree.")
    diagnose.add_argument("--chains", type=int, default=4, help="how many chains (4)")
    diagnose.add_argument("--steps", type=int, default=1000, help="steps of each (1000)")
    for added in (learn, sample, diagnose):
        added.add_argument("--seed", type=int, default=0, help="of all that is random (0)")
    for added in (learn, diagnose):
        added.add_argument("--quiet", action="store_true", help="no progress bars")
    return parser


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def main(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit status: 0, or 2 after a mistake, which is told in one line.

    >>> main(["recommend", "no_such_kernel.npz", "bread"])
    2
    """
    options = _parser().parse_args(arguments)
    show = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {_one_line(message)}", file=sys.stderr)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except _MISTAKES as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    finally:
        warnings.showwarning = show
    return 0
