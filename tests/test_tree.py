"""The fat-leaf tree: its sums against sums over the items, its draws against their masses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from test_memory import temporary_bytes

from numpyro_ndpp.samplers import tree as tree_module
from numpyro_ndpp.samplers.packing import pack, pack_query, unpack
from numpyro_ndpp.samplers.tree import build_tree, descend

NUM_DRAWS = 50_000


@jax.jit
def draw_items(tree, Q, keys, excluded):
    return jax.vmap(lambda key: descend(tree, Q, key, excluded))(keys)


def features_and_query(n, d, dtype=np.float64):
    rng = np.random.default_rng(n + d)
    half = rng.normal(size=(d, d))
    return rng.normal(size=(n, d)).astype(dtype), (half @ half.T + half - half.T).astype(dtype)


@pytest.mark.parametrize("d", [1, 2, 5, 8])
def test_packing_keeps_the_inner_product(d):
    X, Q = features_and_query(7, d)
    C = X.T @ X
    np.testing.assert_allclose(unpack(pack(jnp.asarray(C)), d), C)
    np.testing.assert_allclose(pack_query(jnp.asarray(Q + Q.T) / 2) @ pack(jnp.asarray(C)), np.sum(Q * C))


@pytest.mark.parametrize(("n", "leaf_size"), [(37, 1), (37, 3), (64, 2), (5, 8), (300, 20), (1, None), (1000, None)])
def test_every_node_holds_the_sum_over_its_items(n, leaf_size):
    d = 5
    X, _ = features_and_query(n, d)
    tree = build_tree(jnp.asarray(X), leaf_size)
    assert leaf_size is None or tree.leaf_size <= max(8 * -(-leaf_size // 8), leaf_size)
    leaves = tree.leaves  # in blocks, each of which ends in leaves with fewer items
    padded = np.zeros((leaves.num_blocks, leaves.number // leaves.num_blocks * leaves.size, d))
    padded[:, : n // leaves.num_blocks] = X.reshape(leaves.num_blocks, -1, d)
    padded = padded.reshape(-1, d)

    def sum_over(depth, node):
        rows = np.split(padded, 2**depth)[node]
        return rows.T @ rows

    np.testing.assert_allclose(unpack(tree.lefts[0], d), padded.T @ padded, atol=1e-12)
    np.testing.assert_allclose(tree.gram, padded.T @ padded, atol=1e-12)
    for node in range(1, 2**tree.depth):
        depth = node.bit_length() - 1
        expected = sum_over(depth + 1, 2 * (node - 2**depth))
        np.testing.assert_allclose(unpack(tree.lefts[node], d), expected, atol=1e-12)


# An accelerator reads the tree in another way than a CPU; both are run here, on whatever there is.
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("n", "leaf_size", "dtype"), [(37, 1, np.float64), (37, 3, np.float32), (300, None, np.float64)]
)
def test_items_are_drawn_in_proportion_to_their_mass(n, leaf_size, dtype, backend, monkeypatch):
    monkeypatch.setattr(tree_module.jax, "default_backend", lambda: backend)
    draw_items.clear_cache()
    X, Q = features_and_query(n, 4, dtype)
    X[[0, n // 2]] = 0
    tree = build_tree(jnp.asarray(X), leaf_size)
    items, found = draw_items(tree, Q, jax.random.split(jax.random.key(0), NUM_DRAWS), np.zeros(0, int))
    assert np.all(found)
    masses = np.einsum("ad,de,ae->a", X, Q, X).astype(float)
    counts = np.bincount(np.asarray(items), minlength=n)
    assert (counts[[0, n // 2]] == 0).all()
    positive = masses > 0
    expected = masses[positive] / masses.sum() * NUM_DRAWS
    assert stats.chisquare(counts[positive], expected).pvalue > 1e-4


def test_excluded_items_are_never_drawn():
    X, Q = features_and_query(37, 4)
    tree = build_tree(jnp.asarray(X), 3)
    excluded = np.array([3, 4, 5, 36, 37])  # a whole leaf, the last item, and padding
    items, found = draw_items(tree, Q, jax.random.split(jax.random.key(0), NUM_DRAWS), excluded)
    assert not np.isin(np.asarray(items)[np.asarray(found)], excluded).any()
    assert 0.5 < np.mean(found) < 1  # nothing is found in a leaf that is excluded as a whole


def test_masses_below_rounding_are_never_drawn():
    """Items along the query's null vector have a mass of rounding size, of either sign."""
    rng = np.random.default_rng(0)
    null = rng.normal(size=6)
    Q = (np.eye(6) - np.outer(null, null) / (null @ null)).astype(np.float32)
    X = np.outer(rng.normal(size=64), null).astype(np.float32)
    X[17] = rng.normal(size=6)
    tree = build_tree(jnp.asarray(X), 4)
    items, found = draw_items(tree, Q, jax.random.split(jax.random.key(0), NUM_DRAWS), np.zeros(0, int))
    assert set(np.asarray(items)[np.asarray(found)]) == {17}
    assert np.mean(found) > 0.99


@pytest.mark.parametrize(("n", "d"), [(1000, 20), (10**4, 100), (10**6, 100), (10**6, 200)])
def test_the_tree_is_as_large_as_the_features(n, d):
    X = jax.ShapeDtypeStruct((n, d), jnp.float32)
    tree = jax.eval_shape(build_tree, X)
    assert 0.5 < 4 * tree.lefts.size / (4 * n * d) < 1.5


def test_building_holds_no_matrix_per_item():
    """n d² floats would be 40 GB here."""
    n, d = 10**6, 100
    assert temporary_bytes(build_tree, ((n, d), jnp.float32)) < 2 * (4 * n * d)
