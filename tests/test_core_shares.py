"""The cores of a CPU make a share of the draws each: the same draws, and no core waits for another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_flight import batches
from kernels import factors

from numpyro_ndpp import KNDPP, NDPP, Cholesky, Contour, Exact, Rejection, SizedNDPP, UpDown, draw_shares, drawing


def many_features(**settings):
    """A kernel for which the walk's chains go alone."""
    return NDPP(0.2 * np.random.default_rng(0).normal(size=(60, 40)), sampler=UpDown(num_steps=2, **settings))


def ordinary(sampler, k=None, **settings):
    if k is None:
        return NDPP.from_factors(*factors("ordinary"), sampler=sampler, **settings)
    return KNDPP.from_factors(*factors("ordinary"), k, sampler=sampler)


LAWS = {
    "leaps": lambda: ordinary(Exact()),
    "leaps, limits": lambda: ordinary(Exact(), min_size=1, max_size=3),
    "leaps, given items": lambda: ordinary(Exact()).condition([3], [5]),
    "leaps, free size": lambda: SizedNDPP.from_factors(*factors("ordinary"), np.zeros(5), sampler=Exact()),
    "contour": lambda: ordinary(Contour(), 3),
    "rejection": lambda: ordinary(Rejection()),
    "walk": lambda: ordinary(UpDown(num_steps=3)),
    "walk, one size": lambda: ordinary(UpDown(), 3),
    "walk, chains alone": many_features,
    "walk, chains alone, published operator": lambda: many_features(init="uniform", up="rejection"),
}
QUICK = ("leaps",)


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
    assert set(shares) == {8}  # one program for both


def test_threads_draw_in_the_precision_of_the_caller(without_x64, monkeypatch):
    """Settings of a ``with`` statement hold in one thread alone."""
    monkeypatch.setattr(drawing, "num_core_shares", lambda _: 2)
    law, key = ordinary(Exact()), jax.random.key(0)
    draws = law.sample(key, (6,))
    assert law.prepared_state().R.dtype == jnp.float32
    np.testing.assert_array_equal(draws, of_program(law, key, 6))


@every_law
def test_no_core_waits_for_another(name):
    """Only a batch of factorisations waits for threads: the program of a share has none."""
    law = LAWS[name]()
    state, number = law.prepared_state(), np.int32(8)
    assert law.sampler.may_share_cores(state)
    program = drawing._share.lower(law.sampler, 8, 2, state, jax.random.key(0), np.int32(0), number).compile()
    assert batches(program.as_text()) == []


def test_what_is_factorised_as_a_batch_is_not_shared():
    samplers = Cholesky(), UpDown(init="uniform"), UpDown(up="rejection")
    for law in (ordinary(sampler, 3) for sampler in samplers):
        assert not law.sampler.may_share_cores(jax.eval_shape(law.sampler.prepare, law.target))


@pytest.mark.parametrize("sampler", [UpDown(), Exact()], ids=lambda sampler: type(sampler).__name__)
def test_draws_without_items(sampler):
    assert ordinary(sampler, 0).sample(jax.random.key(0), (4,)).shape == (4, 0)
    assert ordinary(sampler, max_size=0).sample(jax.random.key(0), (4,)).shape == (4, 0)


def test_what_more_than_one_device_has_or_other_keys_draw_is_not_shared(monkeypatch):
    monkeypatch.setattr(drawing, "num_core_shares", lambda _: pytest.fail("these were to be shared"))
    law = ordinary(Exact())
    law.sample(jax.random.key(0, impl="rbg"), (4,))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    law.sample(jax.random.key(0), (4,))


def test_as_many_shares_as_cores_and_draws_allow(monkeypatch):
    for num_cores, expected in ((1, [1, 1, 1, 1]), (6, [1, 2, 4, 4]), (200, [1, 2, 4, 16])):
        cores = range(num_cores)
        monkeypatch.setattr(draw_shares.os, "sched_getaffinity", lambda _, cores=cores: cores, raising=False)
        assert [draw_shares.num_core_shares(length) for length in (1, 2, 4, 128)] == expected
