"""Greedy MAP against the determinants of all subsets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import KERNELS, PARTS, TRUE_RANK, N, dense_kernel, enumerated_minors

from numpyro_ndpp import KNDPP, NDPP, unpad_subsets
from numpyro_ndpp.greedy import exchange, greedy_map
from numpyro_ndpp.kernel import gram


def factors(name, dtype=np.float64):
    law = NDPP(*(np.asarray(part, dtype) for part in PARTS[name]))
    return law.X, law.W


def minors_of_size(name, k):
    return {s: m for s, m in enumerated_minors(name).items() if len(s) == k}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", KERNELS)
def test_greedy_finds_a_subset_wherever_there_is_one(name, dtype):
    X, W = factors(name, dtype)
    for k in [1, 2, 3, 4, TRUE_RANK[name]]:
        items = tuple(unpad_subsets(greedy_map(X, W, gram(X), k, k), N))
        minors = minors_of_size(name, k)
        if max(minors.values()) == 0:
            assert len(items) < k  # padded, not filled with junk
            continue
        assert len(items) == k
        assert minors[items] > 1e-9 * max(minors.values())


def test_greedy_takes_the_largest_gain_each_time():
    L = dense_kernel(*PARTS["ordinary"])
    X, W = factors("ordinary")
    chosen = []
    for k in range(1, 9):
        gains = {a: np.linalg.det(L[np.ix_([*chosen, a], [*chosen, a])]) for a in range(N) if a not in chosen}
        chosen.append(max(gains, key=gains.get))
        assert unpad_subsets(greedy_map(X, W, gram(X), k, k), N) == sorted(chosen)


def test_pairs_join_where_no_single_item_can():
    assert unpad_subsets(NDPP(*PARTS["skew pairs"]).greedy(2), N) == [4, 5]  # the pair of the largest D
    assert unpad_subsets(NDPP(*PARTS["skew pairs"]).greedy(4), N) == [4, 5, 6, 7]
    assert unpad_subsets(NDPP(*PARTS["skew pairs"]).mode, N) == [4, 5, 6, 7]  # the others would not raise it


def test_mode_stops_when_the_determinant_stops_growing():
    V = np.diag([2.0, 1.5, 0.5, 0.1])
    law = NDPP(V, np.zeros((4, 1)), np.zeros((1, 1)))
    assert law.mode.tolist() == [0, 1, 4, 4]
    assert NDPP(V, np.zeros((4, 1)), np.zeros((1, 1)), min_size=3).mode.tolist() == [0, 1, 2, 4]
    assert NDPP(V, np.zeros((4, 1)), np.zeros((1, 1)), max_size=1).mode.tolist() == [0]
    assert KNDPP(V, np.zeros((4, 1)), np.zeros((1, 1)), 3).mode.tolist() == [0, 1, 2]
    assert law.greedy(0).shape == (0,)


@pytest.mark.parametrize("name", ["ordinary", "near skew", "d1 < d2", "repeated rows"])
def test_exchange_never_loses_and_ends_at_a_local_optimum(name):
    X, W = factors(name)
    for k in [2, 5]:
        minors = minors_of_size(name, k)
        start = greedy_map(X, W, gram(X), k, k)
        end = tuple(unpad_subsets(exchange(X, W, start, 20), N))
        assert minors[end] >= minors[tuple(start.tolist())] * (1 - 1e-12)
        for i in end:
            for a in set(range(N)) - set(end):
                neighbour = tuple(sorted({*end, a} - {i}))
                assert minors[neighbour] <= minors[end] * (1 + 1e-9)


def test_greedy_under_jit_and_vmap():
    V, B, D = PARTS["ordinary"]
    Vs = jnp.stack([V, 2 * V, V[::-1]])
    batched = jax.jit(jax.vmap(lambda V: NDPP(V, B, D, validate_args=False).greedy(4, num_exchanges=2)))(Vs)
    for V, items in zip(Vs, batched, strict=True):
        assert (NDPP(V, B, D).greedy(4, num_exchanges=2) == items).all()
