"""Tests run in 64 bits unless they say otherwise; float32 is asked for by the arrays that a test passes."""

from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)


def pytest_configure(config: pytest.Config) -> None:
    """Most of a run is compilation: what took long is kept for the next run and for the other workers.

    The quick tests are compiled without XLA's costly passes, in half the time; the slow ones as users compile.
    """
    jax.config.update("jax_compilation_cache_dir", str(config.rootpath / ".pytest_cache" / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_disable_most_optimizations", config.getoption("markexpr") == "not slow")


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
