"""Two threads are enough: vectorised likelihoods, gradients and chains return, in processes of their own.

On two cores two batches of factorisations at once wait for each other forever, in jaxlib 0.10.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Each takes five to forty seconds on a quiet core; what stands still takes all of this.
_SECONDS = 300


@pytest.mark.parametrize(
    "what", ["gradient", *(pytest.param(slow, marks=pytest.mark.slow) for slow in ("likelihood", "nuts", "gibbs"))]
)
def test_nothing_stands_still(what):
    environment = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
    environment["NPROC"] = "2"  # as many threads as a machine with two cores has
    script = Path(__file__).with_name("standing_still.py")
    done = subprocess.run(
        [sys.executable, str(script), what], env=environment, timeout=_SECONDS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
