"""Greedy MAP against the determinants of all subsets."""

import jax
import numpy as np
import pytest
from kernels import KERNELS, PARTS, TRUE_RANK, N, dense_kernel, enumerated_minors, factored, factors

from numpyro_ndpp import KNDPP, NDPP, unpad_subsets
from numpyro_ndpp.greedy import exchange, greedy_map
from numpyro_ndpp.kernel import Kernel


def minors_of_size(name, k):
    return {s: m for s, m in enumerated_minors(name).items() if len(s) == k}


def greedy_items(X, W, k):
    return tuple(unpad_subsets(greedy_map(Kernel.of(X, W), X.T @ X, k, k), N))


def quick_if(condition, *values):
    return pytest.param(*values, marks=[] if condition else pytest.mark.slow)


# Every size is compiled anew; kernels of one shape share what is compiled.
@pytest.mark.parametrize(
    ("name", "k", "dtype"),
    [
        quick_if(name != "n < d" and k in ((2, 3, 7, 8) if dtype == np.float64 else (3, 8)), name, k, dtype)
        for dtype in (np.float64, np.float32)
        for name in KERNELS
        for k in sorted({1, 2, 3, 4, TRUE_RANK[name]})
    ],
)
def test_greedy_finds_a_subset_wherever_there_is_one(name, k, dtype):
    items = greedy_items(*factors(name, dtype), k)
    minors = minors_of_size(name, k)
    if max(minors.values()) == 0:
        assert len(items) < k  # padded, not filled with junk
        return
    assert len(items) == k
    assert minors[items] > 1e-9 * max(minors.values())


@pytest.mark.parametrize("sizes", [quick_if(True, (2, 3, 7, 8)), quick_if(False, tuple(range(1, 9)))])
def test_greedy_takes_the_largest_gain_each_time(sizes):
    L = dense_kernel(*PARTS["ordinary"])
    chosen = []
    for k in range(1, 9):
        gains = {a: np.linalg.det(L[np.ix_([*chosen, a], [*chosen, a])]) for a in range(N) if a not in chosen}
        chosen.append(max(gains, key=gains.get))
        if k in sizes:
            assert greedy_items(*factors("ordinary"), k) == tuple(sorted(chosen))


def test_pairs_join_where_no_single_item_can():
    law = factored("skew pairs")
    assert unpad_subsets(law.greedy(2), N) == [4, 5]  # the pair of the largest D
    assert unpad_subsets(law.greedy(4), N) == [4, 5, 6, 7]
    assert unpad_subsets(law.mode, N) == [4, 5, 6, 7]  # the others would not raise it


def test_mode_stops_when_the_determinant_stops_growing():
    V = np.diag([2.0, 1.5, 0.5, 0.1])
    law = NDPP(V, np.zeros((4, 1)), np.zeros((1, 1)))
    assert law.mode.tolist() == [0, 1, 4, 4]
    assert NDPP(V, np.zeros((4, 1)), np.zeros((1, 1)), min_size=3).mode.tolist() == [0, 1, 2, 4]
    assert law.greedy(0).shape == (0,)


@pytest.mark.slow
def test_mode_of_one_size():
    V = np.diag([2.0, 1.5, 0.5, 0.1])
    assert NDPP(V, np.zeros((4, 1)), np.zeros((1, 1)), max_size=1).mode.tolist() == [0]
    assert KNDPP(V, np.zeros((4, 1)), np.zeros((1, 1)), 3).mode.tolist() == [0, 1, 2]


@pytest.mark.parametrize("k", [quick_if(False, 2), quick_if(True, 3), quick_if(False, 5)])
@pytest.mark.parametrize("name", ["ordinary", "near skew", "d1 < d2", "repeated rows"])
def test_exchange_never_loses_and_ends_at_a_local_optimum(name, k):
    X, W = factors(name)
    minors = minors_of_size(name, k)
    start = greedy_items(X, W, k)
    end = tuple(unpad_subsets(exchange(Kernel.of(X, W), np.array(start), 20), N))
    assert minors[end] >= minors[start] * (1 - 1e-12)
    for i in end:
        for a in set(range(N)) - set(end):
            neighbour = tuple(sorted({*end, a} - {i}))
            assert minors[neighbour] <= minors[end] * (1 + 1e-9)


def test_greedy_under_jit_and_vmap():
    X, W = factors("ordinary")
    Xs = np.stack([X, 2 * X, X[::-1]])

    def greedy(X):
        return NDPP.from_factors(X, W, validate_args=False).greedy(4, num_exchanges=2)

    batched = np.asarray(jax.jit(jax.vmap(greedy))(Xs))
    one = jax.jit(greedy)
    for X, items in zip(Xs, batched, strict=True):
        assert (np.asarray(one(X)) == items).all()
