"""Chains of subsets: they follow their law, wherever they start, and how long they take to mix."""

import jax.numpy as jnp
import numpy as np
import pytest
from chi_square import chi_square_p_value
from jax import random
from kernels import PARTS, N, enumerated_law

from numpyro_ndpp import KNDPP, NDPP, Contour, UpDown, mixing_time, run_chains
from numpyro_ndpp.chains import chain_in_words, uniform_starts, walk_of


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ordinary", "skew", "skew pairs and V"])
def test_chains_of_varying_size_follow_the_law(name):
    V, B, D = PARTS[name]
    rest = 8 - B.shape[1]  # columns of zeros, so that kernels share what is compiled
    law = NDPP(V, np.pad(B, [(0, 0), (0, rest)]), np.pad(D, [(0, rest), (0, rest)]))
    data = run_chains(law, random.key(1), num_chains=1500, num_steps=60, thin=60)
    masks = data["posterior"]["included"].values[:, -1].astype(int)
    assert chi_square_p_value(enumerated_law(name), masks) > 1e-4


@pytest.mark.slow
def test_chains_of_a_conditioned_law():
    law = KNDPP(*PARTS["ordinary"], k=4).condition(include=jnp.array([3]))
    data = run_chains(law, random.key(1), num_chains=3000, num_steps=12, thin=12)
    masks = data["posterior"]["included"].values[:, -1].astype(int)
    assert (masks[:, 3] == 0).all()
    masks[:, 3] = 1
    whole = enumerated_law("ordinary", 4, 4)
    given = {subset: p for subset, p in whole.items() if 3 in subset}
    total = sum(given.values())
    assert chi_square_p_value({subset: p / total for subset, p in given.items()}, masks) > 1e-4


@pytest.mark.slow
def test_chains_of_one_item_move():
    data = run_chains(KNDPP(*PARTS["ordinary"], k=1), random.key(1), num_chains=300, num_steps=10)
    masks = data["posterior"]["included"].values[:, 1:].reshape(-1, N).astype(int)  # each draw is a fresh one
    assert chi_square_p_value(enumerated_law("ordinary", 1, 1), masks) > 1e-4


def test_chains_of_no_item():
    assert (run_chains(KNDPP(*PARTS["ordinary"], k=0), random.key(1), 2, 4)["posterior"]["size"].values == 0).all()


def test_uniform_starts_keep_to_the_items_that_are_left():
    law = KNDPP(*PARTS["ordinary"], k=2).condition(exclude=jnp.arange(5))
    walk = walk_of(law)
    starts = np.asarray(uniform_starts(law, walk, random.split(random.key(0), 200)))
    assert starts.min() >= 5
    assert len(np.unique(starts, axis=0)) == 10  # all pairs of the five


@pytest.mark.slow
def test_rejections_are_counted():
    law = KNDPP(*PARTS["ordinary"], k=4, sampler=UpDown(up="rejection"))
    data = run_chains(law, random.key(0), num_chains=8, num_steps=50)
    assert data["sample_stats"]["num_rejections"].values.sum() > 0


@pytest.mark.slow
def test_starts():
    law = KNDPP(*PARTS["ordinary"], k=3, sampler=Contour())  # chains walk, whatever the sampler
    greedy = run_chains(law, random.key(0), 3, 1, init="greedy")["posterior"]["subset"].values[:, 0]
    assert all(len({*first} & {*law.greedy().tolist()}) >= 1 for first in greedy.tolist())
    own = run_chains(law, random.key(0), 2, 5, init=jnp.array([[0, 1, 2], [3, 4, 5]]))
    # two of the three items are exchanged at a time: one of the start is still there after a step
    after = own["posterior"]["subset"].values[:, 0].tolist()
    assert all(len({*items} & {*start}) >= 1 for items, start in zip(after, ([0, 1, 2], [3, 4, 5]), strict=True))
    spread = run_chains(NDPP(*PARTS["ordinary"]), random.key(0), 200, 1)["posterior"]["size"].values
    assert len(np.unique(spread)) >= 6


def paper_kernel(n, d, seed=0):
    """Section 6.1 of the paper, with d columns in V and in B each."""
    V, B, D = (
        random.normal(key, shape)
        for key, shape in zip(random.split(random.key(seed), 3), [(n, d), (n, d), (d, d)], strict=True)
    )
    return V * (2 / d) ** 0.25, B * (2 / d) ** 0.25, D


@pytest.mark.slow
def test_mixing_time_grows_with_the_size_and_not_with_the_catalogue():
    times = {
        (n, k): mixing_time(KNDPP(*paper_kernel(n, 10), k=k), random.key(1)).num_steps
        for n, k in [(100, 4), (100, 16), (1600, 4), (1600, 16)]
    }
    for n in (100, 1600):
        assert times[n, 16] > 2 * times[n, 4]
    for k in (4, 16):  # sixteen times the catalogue
        assert times[1600, k] < 2 * times[100, k]


def test_data_say_which_chain_they_are_of():
    V, B, D = PARTS["ordinary"]
    fixed, varying = chain_in_words(KNDPP(V, B, D, 4)), chain_in_words(NDPP(V, B, D))
    assert "as it is behind sample" in fixed
    assert "may change the size" in varying
