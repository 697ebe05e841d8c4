"""Tests run in 64 bits unless they say otherwise; float32 is asked for by the arrays that a test passes."""

import gc
import importlib.metadata
import os
from pathlib import Path

# There is a worker for every core. The threads of the linear algebra would wait for each other, spinning.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Batches of kernels are prepared by several batches of factorisations, which wait for each other forever if there are
# as many as threads (docs/explanation/numerics.md). What must never need this runs with two threads, in
# test_standing_still.py.
os.environ.setdefault("NPROC", "8")
if os.environ.get("NUMPYRO_NDPP_TESTS") == "quick":
    # What is compiled runs once. `make test-slow QUICK=` compiles as users do.
    flags = ["--xla_backend_optimization_level=0"]
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones may not know them
        # A program that is compiled in parts, for several threads, takes a seventh more work.
        flags += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags])

import jax
import pytest

from numpyro_ndpp.programs import LEVELS

jax.config.update("jax_enable_x64", True)
if os.environ.get("NUMPYRO_NDPP_TESTS") == "quick":
    # The package's own programs ask for more than the flags do. Only draws are worth it here: a test makes thousands.
    LEVELS["often"] = 0
# What is imported stays, and what JAX traces makes millions of objects: they are looked through less often.
gc.freeze()
gc.set_threshold(20_000, 10, 10)

# Every compiled program holds some twenty memory mappings, of which Linux gives a process 65,530 and no more: XLA
# crashes at the next one. The tests compile thousands of programs.
_MAPPINGS = Path("/proc/self/maps")
_MAX_MAPPINGS = 56_000
# They are counted, which takes some time, after as many programs.
_PROGRAMS = 100
_compiled = [0]


def _count_programs(event, duration, **_):
    _compiled[0] += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_count_programs)

# Pages and docstrings whose examples take long.
_SLOW_EXAMPLES = {
    "checking_a_fit.md",
    "cold_items.md",
    "concepts.md",
    "models.md",
    "sampling.md",
    "sizes.md",
    "numpyro_ndpp.chain_summary.summarize_chains",
    "numpyro_ndpp.diagnostics.mixing_time",
    "numpyro_ndpp.diagnostics.run_chains",
    "numpyro_ndpp.infer.SubsetGibbs",
    "numpyro_ndpp.samplers.contour.Contour",
    "numpyro_ndpp.search.search",
    "numpyro_ndpp.samplers.walk.Walk",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.name in _SLOW_EXAMPLES:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _compiled_programs_are_let_go():
    yield
    if _compiled[0] < _PROGRAMS:
        return
    _compiled[0] = 0
    if _MAPPINGS.exists() and _MAPPINGS.read_bytes().count(b"\n") > _MAX_MAPPINGS:
        jax.clear_caches()


@pytest.fixture
def without_x64():
    """JAX as most users run it: no 64-bit type exists."""
    with jax.enable_x64(False):
        yield
