"""Real baskets, which are not part of the project: tests that need them are left out where they are not."""

import os
from pathlib import Path

_BESIDE = Path(__file__).parents[2] / "shared" / "data"
GROCERIES = Path(os.environ.get("NUMPYRO_NDPP_DATA", _BESIDE)) / "groceries.npz"
