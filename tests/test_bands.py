"""Exact draws of varying size as an accelerator makes them, by bands of sizes, against enumeration.

Chi-square tests are at a false-alarm rate of 1e-4 each, with fixed keys.
"""

from functools import partial

import jax
import numpy as np
import pytest
from chi_square import chi_square_p_value
from kernels import HARDEST, KERNELS, N, conditional, enumerated_law, enumerated_minors, factors, table

from numpyro_ndpp import NDPP, Exact, SizedNDPP, pad_subsets, platforms, to_multihot
from numpyro_ndpp.kernel import Kernel
from numpyro_ndpp.samplers import bands, exact
from numpyro_ndpp.samplers.bands import BandState, bands_of, draw_by_bands, prepare_bands
from numpyro_ndpp.target import Target

NUM_DRAWS = 4096


@pytest.fixture
def accelerator(monkeypatch):
    """``Exact`` draws as on an accelerator."""
    monkeypatch.setattr(exact, "platform", lambda: platforms._ACCELERATOR)


@partial(jax.jit, static_argnames=("low", "high"))
def draws_of(X, W, key, low, high):
    state = prepare_bands(Target.of(Kernel.of(X, W), low, high))
    return draw_by_bands(state, jax.random.split(key, NUM_DRAWS), NUM_DRAWS)


def masks(name, seed, low=0, high=None, dtype=np.float64):
    X, W = factors(name, dtype)
    high = min(X.shape) if high is None else high
    return np.asarray(to_multihot(draws_of(X, W, jax.random.key(seed), low, high), N))


# --- The law ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", table())
def test_draws_follow_the_law(name):
    assert chi_square_p_value(enumerated_law(name), masks(name, 1)) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_float32_draws_follow_the_law(name):
    assert chi_square_p_value(enumerated_law(name), masks(name, 2, dtype=np.float32)) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", [*HARDEST[:2], "near skew"])
@pytest.mark.parametrize(("low", "high"), [(2, 4), (1, 8), (0, 3), (5, 7)])
def test_draws_of_limited_size_follow_the_law(low, high, name):
    assert chi_square_p_value(enumerated_law(name, low, high), masks(name, 3, low, high)) > 1e-4


@partial(jax.jit, static_argnums=2)
def draw_masks(law, key, num_draws=NUM_DRAWS):
    return to_multihot(law.sample(key, (num_draws,)), N)


@pytest.mark.slow
@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize(
    ("name", "include", "exclude"),
    [
        ("skew pairs", [0, 2, 3], [7]),
        *((name, [3], [5]) for name in ("ordinary", "skew", "near skew")),
    ],
)
def test_draws_given_items_follow_the_law(name, include, exclude):
    law = NDPP.from_factors(*factors(name), sampler=Exact()).condition(include, exclude)
    assert isinstance(law.prepared_state(), BandState)
    draws = np.asarray(draw_masks(law, jax.random.key(4)))
    assert draws[:, include + exclude].sum() == 0
    assert chi_square_p_value(conditional(name, include, exclude), draws) > 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("accelerator")
def test_draws_of_a_batch_with_limits_follow_the_law():
    sets = [[], [1, 4]]
    law = NDPP.from_factors(*factors("ordinary"), min_size=2, max_size=4, sampler=Exact())
    draws = np.asarray(draw_masks(law.condition(pad_subsets(sets, N)), jax.random.key(5)))
    for column, items in enumerate(sets):
        assert chi_square_p_value(conditional("ordinary", items, [], 2, 4), draws[:, column]) > 1e-4


@pytest.mark.usefixtures("accelerator")
@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_sizes_have_the_distribution_that_they_are_given(given):
    """The near skew kernel has hardly any odd sizes of its own."""
    probs = np.array([0.05, 0.2, 0.1, 0.3, 0.35])
    law = SizedNDPP.from_factors(*factors("near skew"), np.log(probs), sampler=Exact())
    minors = enumerated_minors("near skew")
    of_size = [sum(minor for subset, minor in minors.items() if len(subset) == size) for size in range(5)]
    weights = {s: probs[len(s)] * m / of_size[len(s)] for s, m in minors.items() if len(s) < 5}
    if given:
        law = law.condition([0], [3])
        weights = {tuple(i for i in s if i != 0): w for s, w in weights.items() if 0 in s and 3 not in s}
    total = sum(weights.values())
    expected = {subset: weight / total for subset, weight in weights.items()}
    assert chi_square_p_value(expected, np.asarray(draw_masks(law, jax.random.key(6)))) > 1e-4


# --- Many draws, large ones, impossible ones -------------------------------------------------------------------------


def random_state(n=300, d=40, mean=10.0, dtype=np.float32):
    rng = np.random.default_rng(0)
    X, D = rng.normal(size=(n, d)).astype(dtype) / dtype(n**0.5), rng.normal(size=(d // 2, d // 2)).astype(dtype)
    law = NDPP(X[:, : d // 2], X[:, d // 2 :], D, sampler=Exact()).with_expected_size(mean)
    return law, jax.jit(prepare_bands)(law.target)


@pytest.mark.slow
def test_a_draw_is_a_function_of_its_key(monkeypatch):
    """However many are made at a time, in rooms of whatever size, and beside whatever others."""
    state = random_state(40, 12, 5.0, np.float64)[1]
    keys = jax.random.split(jax.random.key(7), 16)
    draws = jax.jit(lambda keys, number: draw_by_bands(state, keys, number))(keys, 16)
    assert len({*map(int, (draws < 40).sum(axis=1))}) > 4
    monkeypatch.setattr(bands, "_ROOMS", (3, 5))
    monkeypatch.setattr(bands, "_num_together", lambda state, room: 4 if room == 5 else 2)
    again = jax.jit(lambda keys, number: draw_by_bands(state, keys, number))(keys[::-1], 12)
    assert (again[:12] == draws[::-1][:12]).all()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("mean", [6.0, 36.0])
def test_sizes_and_items_in_float32(mean):
    """Near the rank too."""
    law, state = random_state(mean=mean)
    num_draws, n = 4000, 300
    draws = np.asarray(
        jax.jit(lambda keys: draw_by_bands(state, keys, num_draws))(jax.random.split(jax.random.key(8), num_draws))
    )
    draws_in = draws[draws < n]
    probs = np.asarray(law.inclusion_probs(), np.float64)
    scores = (np.bincount(draws_in, minlength=n) - num_draws * probs) / np.sqrt(num_draws * probs * (1 - probs))
    assert abs(scores).max() < 5
    sizes = np.exp(np.asarray(law.size_log_prob(), np.float64))
    variance = sizes @ np.arange(41) ** 2 - (sizes @ np.arange(41)) ** 2
    assert abs((draws < n).sum() / num_draws - mean) < 3.9 * np.sqrt(variance / num_draws)


@pytest.mark.slow
def test_what_is_impossible_is_not_drawn():
    assert (draws_of(*factors("skew"), jax.random.key(0), 7, 8) == -1).all()


@pytest.mark.slow
@pytest.mark.usefixtures("accelerator")
def test_what_is_impossible_is_an_error():
    law = NDPP.from_factors(*factors("skew"), min_size=7, max_size=8, sampler=Exact())
    with pytest.raises(ValueError, match="no subset of 7 to 8 items could be drawn"):
        law.sample(jax.random.key(0))
    nothing = NDPP(np.zeros((N, 4)), np.zeros((N, 4)), np.zeros((4, 4)), sampler=Exact())
    assert (nothing.sample(jax.random.key(0), (3,)) == N).all()


@pytest.mark.parametrize(("width", "rank"), [(1, 1), (8, 8), (30, 100), (100, 100), (100, 200)])
def test_bands_serve_every_size(width, rank):
    top, high, low, of_sizes = bands_of(width, rank, np.dtype(np.float32))
    assert of_sizes[0] == 0
    assert (of_sizes[1:] >= np.arange(1, width + 1)).all()
    assert (np.diff(of_sizes) >= 0).all()
    for size in set(of_sizes[1:]):
        stages = [(h, l) for t, h, l in zip(top, high, low, strict=True) if t == size]
        assert [h for h, _ in stages] == [size, *(l for _, l in stages[:-1])]
        assert stages[-1][1] == 0
    if width == rank:
        assert (of_sizes == rank).sum() == 1  # subsets as large as the rank have circles of their own
