"""Subsets as random variables in NumPyro: nonsymmetric determinantal point processes."""

from numpyro_ndpp.distributions import KNDPP, NDPP
from numpyro_ndpp.infer import SubsetGibbs
from numpyro_ndpp.samplers import Cholesky, Contour, Rejection, UpDown
from numpyro_ndpp.subsets import from_multihot, pad_subsets, to_multihot, unpad_subsets

__all__ = [
    "KNDPP",
    "NDPP",
    "Cholesky",
    "Contour",
    "Rejection",
    "SubsetGibbs",
    "UpDown",
    "from_multihot",
    "pad_subsets",
    "to_multihot",
    "unpad_subsets",
]
