"""Subsets as random variables in NumPyro: nonsymmetric determinantal point processes."""

from importlib.metadata import PackageNotFoundError, version

from numpyro_ndpp.diagnostics import ConvergenceWarning, chains_to_arviz, mixing_time, run_chains, summarize_chains
from numpyro_ndpp.distributions import KNDPP, NDPP
from numpyro_ndpp.infer import SubsetGibbs
from numpyro_ndpp.plots import plot_chains, plot_inclusion, plot_kernel, plot_pairs, plot_psrf
from numpyro_ndpp.samplers import Cholesky, Contour, Exact, Rejection, UpDown
from numpyro_ndpp.sized import SizedNDPP
from numpyro_ndpp.subsets import from_multihot, pad_subsets, to_multihot, unpad_subsets

__all__ = [
    "KNDPP",
    "NDPP",
    "Cholesky",
    "Contour",
    "ConvergenceWarning",
    "Exact",
    "Rejection",
    "SizedNDPP",
    "SubsetGibbs",
    "UpDown",
    "chains_to_arviz",
    "from_multihot",
    "mixing_time",
    "pad_subsets",
    "plot_chains",
    "plot_inclusion",
    "plot_kernel",
    "plot_pairs",
    "plot_psrf",
    "run_chains",
    "summarize_chains",
    "to_multihot",
    "unpad_subsets",
]

try:
    __version__ = version("numpyro_ndpp")
except PackageNotFoundError:  # a source tree on the path, which was never installed
    __version__ = "0+unknown"
