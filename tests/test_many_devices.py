"""Eight devices give what one gives, and exchange little: in processes of their own, with virtual devices."""

import subprocess
import sys
from pathlib import Path

import pytest
from kernels import HARDEST

# A quiet core takes a minute for the longest.
_SECONDS = 1800


def run(*checks):
    script = Path(__file__).with_name("many_devices.py")
    done = subprocess.run([sys.executable, str(script), *checks], timeout=_SECONDS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_what_is_quick_to_see():
    """Bad input, a fit's state and collectives, and exact draws that are those of one device."""
    run("bad_input", "learner", "draws:ordinary:one")


# Kernels of one shape share what is compiled, which is nearly all of the time: one process for all of them.


@pytest.mark.slow
def test_every_member_has_its_value():
    run(*(f"values:{name}" for name in HARDEST))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact", "fixed", "published", "walk"])
def test_draws_are_those_of_one_device(kind):
    run(*(f"draws:{name}:{kind}" for name in ("ordinary", "near skew", "repeated rows")))


@pytest.mark.slow
def test_draws_by_bands_of_sizes_are_those_of_one_device():
    run("bands:ordinary", "bands:near skew", "collectives_do_not_grow_by_bands")


@pytest.mark.slow
def test_chains_and_latent_subsets_are_those_of_one_device():
    run(*(f"{what}:{name}" for name in ("ordinary", "skew pairs and V") for what in ("chains", "gibbs")))


@pytest.mark.slow
def test_rows_of_zeros_and_explicit_axes_change_nothing():
    run("padding", "explicit_axes", "batch")


@pytest.mark.slow
def test_no_array_of_items_is_gathered():
    run("no_array_of_items_is_gathered")


@pytest.mark.slow
def test_collectives_do_not_grow_with_the_catalogue():
    run("collectives_do_not_grow")


@pytest.mark.slow
def test_each_device_has_its_share_of_the_bytes():
    run("bytes")


@pytest.mark.slow
def test_draws_in_shares_are_those_of_one_device():
    run("shares:ordinary", "ambient_shares:ordinary", "predictive:ordinary")


@pytest.mark.slow
@pytest.mark.parametrize(("model", "num_items"), [("ndpp", 61), ("ndpp", 64), ("ondpp", 61), ("symmetric", 64)])
def test_a_fit_is_that_of_one_device(model, num_items, tmp_path):
    run(f"fit:{tmp_path}:{model}:{num_items}")
