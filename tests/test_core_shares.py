"""The cores of a CPU make a share of the draws each: the same draws, and no core waits for another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_flight import batches
from kernels import factors

from numpyro_ndpp import KNDPP, NDPP, Contour, Exact, SizedNDPP, UpDown, draw_shares, drawing
from numpyro_ndpp.programs import compiled_for


def many_features():
    """A kernel for which the walk's chains go alone."""
    rng = np.random.default_rng(0)
    return NDPP(0.2 * rng.normal(size=(60, 40)), sampler=UpDown(num_steps=2))


LAWS = {
    "leaps": lambda: NDPP.from_factors(*factors("ordinary"), sampler=Exact()),
    "leaps, limits": lambda: NDPP.from_factors(*factors("ordinary"), min_size=1, max_size=3, sampler=Exact()),
    "leaps, given items": lambda: NDPP.from_factors(*factors("ordinary"), sampler=Exact()).condition([3], [5]),
    "leaps, free size": lambda: SizedNDPP.from_factors(*factors("ordinary"), np.zeros(5), sampler=Exact()),
    "walk": many_features,
}
QUICK = ("leaps", "walk")


def of_program(law, key, num_draws):
    """The draws of one program, which knows nothing of cores."""
    return jax.jit(lambda law, key: law.sample(key, (num_draws,)))(law.prepare(), key)


every_law = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in LAWS]
)


@every_law
def test_shares_are_the_draws_of_one_program(name, monkeypatch):
    shares = []

    def four(num_draws):
        shares.append(num_draws)
        return 4

    monkeypatch.setattr(drawing, "num_core_shares", four)
    law, key = LAWS[name](), jax.random.key(0)
    for num_draws in (5, 8):
        np.testing.assert_array_equal(law.sample(key, (num_draws,)), of_program(law, key, num_draws))
    assert shares == [5, 8]


def test_threads_draw_in_the_precision_of_the_caller(without_x64, monkeypatch):
    """Settings of a ``with`` statement hold in one thread alone."""
    monkeypatch.setattr(drawing, "num_core_shares", lambda _: 2)
    law, key = NDPP.from_factors(*factors("ordinary"), sampler=Exact()), jax.random.key(0)
    draws = law.sample(key, (6,))
    assert law.prepared_state().R.dtype == jnp.float32
    np.testing.assert_array_equal(draws, of_program(law, key, 6))


@every_law
def test_no_core_waits_for_another(name):
    """Only a batch of factorisations waits for threads: the program of a share has none."""
    law = LAWS[name]()
    state, number = law.prepared_state(), np.int32(8)
    assert law.sampler.may_share_cores(state)
    arguments = state, jax.random.key(0), np.int32(0), number
    program = compiled_for(drawing._share, "draws", (law.sampler, 8, 2), arguments)
    assert batches(program.as_text()) == []


def test_what_is_factorised_as_a_batch_is_not_shared():
    X, W = factors("ordinary")
    for law in (KNDPP.from_factors(X, W, 3, sampler=Contour()), KNDPP.from_factors(X, W, 3), NDPP.from_factors(X, W)):
        state = jax.eval_shape(law.sampler.prepare, law.target)
        assert not law.sampler.may_share_cores(state)


def test_as_many_shares_as_cores_and_draws_allow(monkeypatch):
    monkeypatch.setattr(draw_shares.os, "sched_getaffinity", lambda _: range(6), raising=False)
    assert [draw_shares.num_core_shares(number) for number in (1, 2, 3, 4, 100)] == [1, 2, 2, 4, 4]
