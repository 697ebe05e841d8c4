"""Baskets: simulated ones whose law is known, files of our own formats, and the papers' data as published.

A basket is a list of item numbers, increasing.
"""

from numpyro_ndpp.datasets.files import Baskets, load_baskets, save_baskets
from numpyro_ndpp.datasets.published import (
    load_goodreads,
    load_instacart,
    load_million_song,
    load_recipes,
    load_uk_retail,
)
from numpyro_ndpp.datasets.simulation import SHOP, SimulatedBaskets, simulate_baskets

__all__ = [
    "SHOP",
    "Baskets",
    "SimulatedBaskets",
    "load_baskets",
    "load_goodreads",
    "load_instacart",
    "load_million_song",
    "load_recipes",
    "load_uk_retail",
    "save_baskets",
    "simulate_baskets",
]
