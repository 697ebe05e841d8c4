"""Tests run in 64 bits unless they say otherwise; float32 is asked for by the arrays that a test passes."""

import os
from pathlib import Path

# A batch of factorisations is handed to the threads that wait for it: as many at once as there are threads wait
# forever, which happens on two cores (see docs/numerics.md). Eight threads are enough for what the tests do.
os.environ.setdefault("NPROC", "8")

import jax
import pytest

jax.config.update("jax_enable_x64", True)

# Every compiled program holds some twenty memory mappings, of which Linux gives a process 65,530 and no more: XLA
# crashes at the next one. The tests compile thousands of programs.
_MAPPINGS = Path("/proc/self/maps")
_MAX_MAPPINGS = 20_000


@pytest.fixture(autouse=True)
def _compiled_programs_are_let_go():
    yield
    if _MAPPINGS.exists() and _MAPPINGS.read_bytes().count(b"\n") > _MAX_MAPPINGS:
        jax.clear_caches()


@pytest.fixture
def without_x64():
    """JAX as most users run it: no 64-bit type exists."""
    with jax.enable_x64(False):
        yield
