"""Tests run in 64 bits unless they say otherwise; float32 is asked for by the arrays that a test passes."""

import jax
import pytest

jax.config.update("jax_enable_x64", True)


@pytest.fixture
def without_x64():
    """JAX as most users run it: no 64-bit type exists."""
    with jax.enable_x64(False):
        yield
