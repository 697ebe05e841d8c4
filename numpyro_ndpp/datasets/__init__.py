"""Baskets: from tables and files, simulated ones whose distribution is known, and the papers' data as published.

A basket is a list of item numbers, increasing.
"""

from numpyro_ndpp.baskets import Baskets
from numpyro_ndpp.datasets.files import load_baskets, save_baskets
from numpyro_ndpp.datasets.published import (
    load_goodreads,
    load_instacart,
    load_million_song,
    load_recipes,
    load_uk_retail,
)
from numpyro_ndpp.datasets.simulation import SHOP, SimulatedBaskets, simulate_baskets
from numpyro_ndpp.datasets.transactions import from_names, from_transactions

__all__ = [
    "SHOP",
    "Baskets",
    "SimulatedBaskets",
    "from_names",
    "from_transactions",
    "load_baskets",
    "load_goodreads",
    "load_instacart",
    "load_million_song",
    "load_recipes",
    "load_uk_retail",
    "save_baskets",
    "simulate_baskets",
]
