"""The up-down walk: one application of each up operator and whole draws against enumeration.

Chi-square tests are at a false-alarm rate of 1e-4 each, with fixed keys.
"""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chi_square import chi_square_p_value
from kernels import KERNELS, PARTS, TRUE_RANK, N, all_subsets, dense_kernel, enumerated_law, factors, table
from scipy import stats

from numpyro_ndpp import KNDPP, NDPP, Cholesky, UpDown, to_multihot
from numpyro_ndpp.kernel import Kernel
from numpyro_ndpp.samplers import direct as direct_module
from numpyro_ndpp.samplers import updown
from numpyro_ndpp.samplers.chain import WalkKernel
from numpyro_ndpp.samplers.direct import border, draw_pair
from numpyro_ndpp.samplers.proposal import (
    decompose,
    draw_k_dpp,
    log_esp_table,
    select_eigenvectors,
    youla_symmetrization,
)
from numpyro_ndpp.samplers.published import propose_until_accepted
from numpyro_ndpp.samplers.tree import build_tree
from numpyro_ndpp.samplers.walk import distinct_items
from numpyro_ndpp.target import Target


def factored(name, k=None, dtype=np.float64, limits=None, **settings):
    """The law of a table kernel by its factors, so that all kernels of one rank share what is compiled."""
    X, W = factors(name, dtype)
    sampler = UpDown(**settings)
    if k is None:
        return NDPP.from_factors(X, W, sampler=sampler, **(limits or {}))
    return KNDPP.from_factors(X, W, k, sampler=sampler)


def masks(draws):
    return np.asarray(to_multihot(draws, N))


def num_mixing_steps(name, k):
    """Steps after which the walk is within 1e-4 of its law: k² is enough but for kernels of skew pairs."""
    return (50 if k <= 4 else 100) if "pairs" in name else k**2


# --- One application of an up operator -------------------------------------------------------------------------------


@jax.jit
def prepare(X, W):
    """The walk's kernel, on a tree with leaves of two items: deeper than one so small would have."""
    return WalkKernel.of(build_tree(X, leaf_size=2), W, W)


@partial(jax.jit, static_argnums=4)
def draw_pairs(kernel, keys, subset, kept, up):
    """Pairs (s, 2) that the operator adds to the kept items of a subset, whether found, and the rejections."""
    state, dtype = kernel.chain_at(subset), kernel.W.dtype

    def draw(key):
        border_key, down_key, up_key = jax.random.split(key, 3)
        bordered = border(kernel, state, kept, jax.random.uniform(border_key, kept.shape, dtype))
        down = jax.random.uniform(down_key, (2, kernel.tree.num_decisions), dtype)
        items, found = draw_pair(kernel, down, state, bordered, jnp.asarray(True))
        if up == "direct":
            return items, found, jnp.asarray(0)
        pair = propose_until_accepted(kernel, up_key, state, bordered)
        return jnp.where(pair.accepted, pair.items, items), pair.accepted | found, pair.num_rejections

    return jax.vmap(draw)(keys)


WIDTH = 5  # all subsets are padded to it, so that one program serves them


@cache
def pairs_of(name, subset, kept, num_draws, up, dtype):
    kernel = prepare(*factors(name, dtype))
    keys = jax.random.split(jax.random.key(1), num_draws)
    subset = np.array([*subset, *(WIDTH - len(subset)) * [N]])
    kept = np.array([*kept, *(WIDTH - len(kept)) * [False]])
    return jax.tree.map(np.asarray, draw_pairs(kernel, keys, subset, kept, up))


def pair_law(name, rest):
    """P({a, b}) ∝ det L_{A∪{a,b}} for all pairs beside A, by dense determinants."""
    L = dense_kernel(*PARTS[name])
    pairs = itertools.combinations([item for item in range(N) if item not in rest], 2)
    minors = {pair: np.linalg.det(L[np.ix_([*rest, *pair], [*rest, *pair])]) for pair in pairs}
    largest = max(minors.values())
    weights = {pair: minor if minor > 1e-10 * largest else 0.0 for pair, minor in minors.items()}
    return {pair: weight / sum(weights.values()) for pair, weight in weights.items()}


# name, S, which items are kept: among them sets A with det L_A = 0 or nearly so
CASES = [
    ("ordinary", (0, 2, 3, 6, 9), (True, True, False, True, False)),
    ("skew", (0, 3, 4, 8), (True, False, True, False)),
    ("near skew", (1, 2, 5), (True, False, False)),
    ("near skew", (0, 2, 3, 6, 9), (True, True, False, True, False)),
    ("skew pairs", (0, 1, 2, 3), (True, False, True, False)),
    ("skew pairs", (0, 1, 4, 5), (True, True, False, False)),
    ("skew pairs and V", (0, 2, 3, 6, 7), (False, True, True, True, False)),
    ("repeated rows", (0, 1, 5, 8, 9), (True, True, False, True, False)),
    ("zero rows", (0, 1, 5, 8), (True, False, True, False)),
    ("scaled 1e6", (0, 2), (False, False)),
]


def check_pairs(name, subset, kept, num_draws, up, dtype):
    items, found, _ = pairs_of(name, subset, kept, num_draws, up, dtype)
    rest = [item for item, keep in zip(subset, kept, strict=True) if keep]
    law = pair_law(name, rest)
    assert found.mean() > 0.999
    drawn = np.sort(items[found], axis=1)
    counts = dict.fromkeys(law, 0)
    for pair, count in zip(*np.unique(drawn, axis=0, return_counts=True), strict=True):
        counts[tuple(pair)] += count  # a KeyError here is a repeated item
    observed, expected = np.array([(counts[pair], p * len(drawn)) for pair, p in law.items()]).T
    assert (observed[expected == 0] == 0).all()
    common = expected > 5
    observed = np.append(observed[common], observed[~common].sum() + 1e-9)
    expected = np.append(expected[common], expected[~common].sum() + 1e-9)
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [pytest.param(np.float64, marks=pytest.mark.slow), np.float32])
@pytest.mark.parametrize(("name", "subset", "kept"), CASES)
def test_direct_operator_has_the_conditional_law(name, subset, kept, dtype):
    check_pairs(name, subset, kept, 20_000, "direct", dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "subset", "kept"), [CASES[0], CASES[1], CASES[4], CASES[7]])
def test_published_operator_has_the_conditional_law(name, subset, kept):
    check_pairs(name, subset, kept, 20_000, "rejection", np.float64)


def test_number_of_rejections_agrees_with_its_closed_form():
    """The mean number of proposals is the ratio of the two e_2's, and rejections are one fewer."""
    name, subset, kept = CASES[0]
    num_rejections = pairs_of(name, subset, kept, 20_000, "rejection", np.float64)[2]
    rest = [item for item, keep in zip(subset, kept, strict=True) if keep]
    law = factored(name, 5)
    X, W = np.asarray(law.X), np.asarray(law.W)
    XA = X[rest]
    W = W - W @ XA.T @ np.linalg.inv(XA @ W @ XA.T) @ XA @ W
    values, vectors = np.linalg.eig((W - W.T) / 2)
    dominating = (W + W.T) / 2 + np.real(vectors @ np.diag(np.abs(values)) @ np.linalg.inv(vectors))

    def e2(inner):
        L = X @ inner @ X.T
        return (np.trace(L) ** 2 - np.trace(L @ L)) / 2

    expected = e2(dominating) / e2(W) - 1
    assert expected > 1  # or else there would be little to see
    standard_error = num_rejections.std() / np.sqrt(len(num_rejections))
    assert abs(num_rejections.mean() - expected) < 3.9 * standard_error


def test_symmetrization_dominates_every_minor():
    for name in ("ordinary", "skew", "near skew"):
        law = factored(name)
        X, W = np.asarray(law.X), np.asarray(law.W)
        What = np.asarray(youla_symmetrization(law.W))
        np.testing.assert_allclose(What, What.T, atol=1e-12)
        for subset in all_subsets(N, 1, 4):
            rows = X[list(subset)]
            smaller, larger = np.linalg.det(rows @ W @ rows.T), np.linalg.det(rows @ What @ rows.T)
            assert smaller <= larger + 1e-9 * abs(larger)


def test_eigenvectors_are_selected_by_the_products_of_their_values():
    values = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 1e-3])
    keys = jax.random.split(jax.random.key(0), 20_000)
    table = log_esp_table(jnp.asarray(values), 4)
    chosen = np.asarray(jax.vmap(lambda key: select_eigenvectors(jnp.asarray(values), table, 3, key))(keys))
    assert (chosen.sum(axis=1) == 3).all()
    triples = list(itertools.combinations(range(6), 3))
    weights = np.array([values[list(triple)].prod() for triple in triples])
    counts = np.array([chosen[:, list(triple)].all(axis=1).sum() for triple in triples])
    assert (counts[weights == 0] == 0).all()
    common = weights / weights.sum() * len(keys) > 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(weights[common], weights[~common].sum()) / weights.sum() * len(keys)
    assert stats.chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("k", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_tree_based_k_dpp_follows_its_law(k):
    law = factored("ordinary")
    X = law.X
    What = youla_symmetrization(law.W)
    tree = build_tree(X, 2)
    kernel = decompose(What, X.T @ X)
    table = log_esp_table(kernel.eigenvalues, k)
    keys = jax.random.split(jax.random.key(0), 20_000)
    items, found = jax.vmap(lambda key: draw_k_dpp(tree, kernel, table, k, key))(keys)
    assert np.all(found)
    L = np.asarray(X @ What @ X.T)
    minors = {subset: np.linalg.det(L[np.ix_(subset, subset)]) for subset in itertools.combinations(range(N), k)}
    total = sum(minors.values())
    assert chi_square_p_value({s: m / total for s, m in minors.items()}, masks(jnp.sort(items, axis=1))) > 1e-4


# --- Whole draws -----------------------------------------------------------------------------------------------------


def paper_kernel(n, d, dtype=np.float64, seed=0):
    """The random kernels of the paper's section 6.1."""
    rng = np.random.default_rng(seed)
    V, B = (rng.normal(scale=(2 / d) ** 0.25, size=(n, d // 2)).astype(dtype) for _ in range(2))
    return V, B, rng.normal(size=(d // 2, d // 2)).astype(dtype)


def law_of_parts(parts, low, high):
    L = dense_kernel(*parts)
    minors = {s: np.linalg.det(L[np.ix_(s, s)]) if s else 1.0 for s in all_subsets(N, low, high)}
    total = sum(minors.values())
    return {s: m / total for s, m in minors.items()}


@pytest.fixture(scope="module")
def draws_of_the_paper():
    return masks(KNDPP(*paper_kernel(N, 8), k=5).sample(jax.random.key(0), (100_000,)))


@pytest.mark.slow
def test_draws_of_the_papers_first_figure(draws_of_the_paper):
    """n = 10, d = 8, k = 5, k² steps: the 252 subsets by 10⁵ draws."""
    assert (draws_of_the_paper.sum(axis=1) == 5).all()
    assert chi_square_p_value(law_of_parts(paper_kernel(N, 8), 5, 5), draws_of_the_paper) > 1e-4


@pytest.mark.slow
def test_gap_falls_as_fast_as_that_of_independent_draws(draws_of_the_paper):
    """max |p - q| after 10², ..., 10⁵ draws, against its quantiles for independent draws of the enumerated law."""
    law = law_of_parts(paper_kernel(N, 8), 5, 5)
    p = np.zeros(2**N)
    for subset, probability in law.items():
        p[sum(2**item for item in subset)] = probability
    codes = draws_of_the_paper @ (2 ** np.arange(N))
    rng = np.random.default_rng(0)
    for number in (100, 1000, 10_000, 100_000):
        gap = np.abs(np.bincount(codes[:number], minlength=2**N) / number - p).max()
        independent = np.abs(rng.multinomial(number, p, size=2000) / number - p).max(axis=1)
        assert gap < np.quantile(independent, 0.9995)


@pytest.mark.slow
def test_draws_of_the_papers_first_figure_by_the_published_operator():
    law = KNDPP(*paper_kernel(N, 8), k=5, sampler=UpDown(up="rejection"))
    draws = masks(law.sample(jax.random.key(0), (20_000,)))
    assert chi_square_p_value(law_of_parts(paper_kernel(N, 8), 5, 5), draws) > 1e-4


@pytest.mark.slow
def test_draws_of_all_sizes():
    draws = masks(NDPP(*paper_kernel(N, 8)).sample(jax.random.key(0), (100_000,)))
    assert chi_square_p_value(law_of_parts(paper_kernel(N, 8), 0, 8), draws) > 1e-4


def check_draws(name, k, num_draws, dtype=np.float64, num_steps=None, **settings):
    num_steps = num_mixing_steps(name, k) if num_steps is None else num_steps
    law = factored(name, k, dtype, num_steps=num_steps, **settings)
    draws = masks(law.sample(jax.random.key(2), (num_draws,)))
    assert (draws.sum(axis=1) == k).all()
    assert chi_square_p_value(enumerated_law(name, k, k), draws) > 1e-4


@pytest.mark.parametrize("name", table())
def test_draws_of_one_size(name):
    check_draws(name, 4, 4_096, num_steps=50)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ordinary", "near skew", "repeated rows"])
def test_draws_after_as_many_steps_as_a_draw_has(name):
    check_draws(name, 3, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ordinary", "skew"])
@pytest.mark.parametrize("k", [2, "rank"])
def test_draws_of_the_smallest_and_largest_size(name, k):
    check_draws(name, TRUE_RANK[name] if k == "rank" else k, 5_000)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "k"), [("near skew", 3), ("near skew", 5), ("skew pairs and V", 5)])
def test_float32_draws_of_nearly_singular_kernels(name, k):
    check_draws(name, k, 10_000, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_draws_of_every_size(name):
    only_even = name in ("skew", "skew pairs")
    for k in range(1, TRUE_RANK[name] + 1):
        if not (only_even and k % 2):
            check_draws(name, k, 10_000)


@pytest.mark.parametrize(
    ("name", "num_draws"),
    [
        pytest.param("skew", 4_096, marks=pytest.mark.slow),
        pytest.param("skew pairs and V", 4_096, marks=pytest.mark.slow),
        ("skew pairs and V", 2_048),
    ],
)
def test_draws_of_varying_size(name, num_draws):
    draws = masks(factored(name, num_steps=100).sample(jax.random.key(3), (num_draws,)))
    assert chi_square_p_value(enumerated_law(name), draws) > 1e-4


@pytest.mark.slow
def test_draws_of_limited_size():
    draws = masks(factored("ordinary", limits={"min_size": 2, "max_size": 4}).sample(jax.random.key(3), (10_000,)))
    assert chi_square_p_value(enumerated_law("ordinary", 2, 4), draws) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_draws_of_like_sizes_are_made_together(dtype, monkeypatch):
    """A few at a time; and where there is room for many more items than there are, at the cost of those that are."""
    monkeypatch.setattr(updown, "walk_chunk_size", lambda walk, width: 512)
    monkeypatch.setattr(direct_module, "WIDE", 2)
    jax.clear_caches()
    draws = masks(factored("ordinary", dtype=dtype).sample(jax.random.key(3), (4_096,)))
    jax.clear_caches()
    assert chi_square_p_value(enumerated_law("ordinary"), draws) > 1e-4


@pytest.mark.slow
def test_uniform_start():
    """Rows of zeros make most uniform starts impossible; none of these is ever returned."""
    law = factored("zero rows", 4, init="uniform", num_steps=0)
    draws = law.sample(jax.random.key(0), (500,))
    assert jnp.isfinite(law.log_prob(draws)).all()
    assert len(np.unique(np.asarray(draws), axis=0)) > 50
    check_draws("zero rows", 4, 4_096, num_steps=50, init="uniform")


def test_distinct_items_are_uniform():
    draw = jax.vmap(lambda key: distinct_items(6, 3, 4, key))
    draws = np.sort(np.asarray(draw(jax.random.split(jax.random.key(0), 20_000))), axis=1)
    assert (draws[:, 3] == 6).all()
    subsets, counts = np.unique(draws[:, :3], axis=0, return_counts=True)
    assert len(subsets) == 20
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_subsets_are_distinct_items(dtype):
    n, k = 5000, 150
    law = KNDPP(*paper_kernel(n, 200, dtype), k=k, sampler=UpDown(num_steps=5))
    check_distinct(law.sample(jax.random.key(0), (2,)), n)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [10, 50])
def test_a_million_items(k, dtype):
    n = 10**6
    law = KNDPP(*paper_kernel(n, 100, dtype), k=k)
    check_distinct(law.sample(jax.random.key(0), (2,)), n)


def check_distinct(draws, n):
    draws = np.asarray(draws)
    assert (np.diff(draws, axis=1) > 0).all()
    assert draws.min() >= 0
    assert draws.max() < n


# --- Steps, preparation and compilation ------------------------------------------------------------------------------


def test_step_says_what_happened():
    law = factored("ordinary", 5)
    walk = jax.jit(UpDown(up="rejection").prepare)(law.target)
    step = jax.jit(lambda walk, key, state: walk.step(key, state))
    state, changes, rejections = walk.init(law.greedy()), [], []
    for key in jax.random.split(jax.random.key(0), 30):
        before = set(np.asarray(state.subset).tolist())
        state, info = step(walk, key, state)
        assert bool(info.changed) == (before != set(np.asarray(state.subset).tolist()))
        changes.append(bool(info.changed))
        rejections.append(int(info.num_rejections))
    assert any(changes)
    assert not all(changes)
    assert min(rejections) == 0
    assert max(rejections) > 0


def test_no_steps_is_the_start():
    law = factored("ordinary", 4, num_steps=0)
    assert (law.sample(jax.random.key(0)) == law.greedy()).all()


def test_work_of_a_step_hardly_grows_with_the_number_of_items():
    """Floating-point operations as XLA counts them, at n = 10³ and 10⁶: the tree is 10 levels deeper."""

    def cost(n):
        X, W = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((n, 100), (100, 100)))
        walk = jax.eval_shape(lambda X, W: UpDown().prepare(Target.of(Kernel.of(X, W), 10, 10)), X, W)
        state = jax.eval_shape(lambda walk: walk.init(walk.starts), walk)
        step = jax.jit(lambda walk, key, state: walk.step(key, state))
        analysis = step.lower(walk, jax.random.key(0), state).compile().cost_analysis()
        return analysis["flops"]

    assert cost(10**6) < 1.6 * cost(10**3)


def test_prepared_draws_are_the_same_and_pass_through_jit():
    law = factored("ordinary", 4)
    prepared = law.prepare()
    expected = law.sample(jax.random.key(0), (3,))
    assert (prepared.sample(jax.random.key(0), (3,)) == expected).all()
    num_traces = 0

    @jax.jit
    def draw(law, key):
        nonlocal num_traces
        num_traces += 1
        return law.sample(key, (3,))

    assert (draw(prepared, jax.random.key(0)) == expected).all()
    draw(factored("zero rows", 4).prepare(), jax.random.key(1))
    assert num_traces == 1
    # The prepared one does not build a tree again: there is no Gram matrix of all items in what it compiles.
    text = draw.lower(prepared, jax.random.key(0)).as_text()
    assert "while" in text
    assert len(text) < len(draw.lower(law, jax.random.key(0)).as_text())


def test_concrete_parameters_are_prepared_once(monkeypatch):
    law = KNDPP(*PARTS["ordinary"], 4, sampler=Cholesky())
    calls = []
    original = Cholesky.prepare

    def counted(self, *args, **kwargs):
        calls.append(1)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Cholesky, "prepare", counted)
    jax.clear_caches()
    jax.jit(lambda key: law.sample(key))(jax.random.key(3))
    for seed in range(3):
        law.sample(jax.random.key(seed))
    assert len(calls) == 1


@pytest.mark.slow
def test_batch_of_kernels_is_prepared_and_drawn_one_by_one():
    laws = [factored(name, 3) for name in ("ordinary", "zero rows")]
    batch = KNDPP.from_factors(jnp.stack([law.X for law in laws]), jnp.stack([law.W for law in laws]), 3)
    draws = batch.prepare().sample(jax.random.key(0), (2000,))
    assert draws.shape == (2000, 2, 3)
    for number, name in enumerate(("ordinary", "zero rows")):
        assert chi_square_p_value(enumerated_law(name, 3, 3), masks(draws[:, number])) > 1e-4


# --- Bad input and hard cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_steps": -1}, "num_steps must be at least 0, got -1"),
        ({"num_steps": 2.5}, "num_steps must be a Python integer, got 2.5"),
        ({"num_steps": True}, "num_steps must be a Python integer, got True"),
        ({"up": "sideways"}, "up must be one of 'direct', 'rejection', got 'sideways'"),
        ({"init": "cold"}, "init must be one of 'greedy', 'uniform', got 'cold'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        UpDown(**settings)


@pytest.mark.parametrize(
    ("name", "k", "init"), [("skew", 3, "greedy"), pytest.param("odd d2", 8, "uniform", marks=pytest.mark.slow)]
)
def test_impossible_size_is_an_error_and_minus_one_under_jit(name, k, init):
    law = factored(name, k, init=init)
    with pytest.raises(ValueError, match=f"no subset of {k} items could be drawn"):
        law.sample(jax.random.key(0))
    draws = jax.jit(lambda key: law.sample(key, (4,)))(jax.random.key(0))
    assert (draws == -1).all()
    assert (jax.jit(law.log_prob)(draws) == -jnp.inf).all()


@pytest.mark.parametrize("sampler", [pytest.param(UpDown(), marks=pytest.mark.slow), Cholesky()])
def test_impossible_range_of_sizes(sampler):
    law = NDPP(*PARTS["skew"], min_size=7, max_size=8, sampler=sampler)
    with pytest.raises(ValueError, match="no subset of 7 to 8 items could be drawn"):
        law.sample(jax.random.key(0))
    assert (jax.jit(lambda key: law.sample(key, (4,)))(jax.random.key(0)) == -1).all()


def test_sizes_that_only_rounding_makes_possible_are_left_out():
    logits = jnp.log(jnp.array([0.3, 1e-12, 0.7, 0.0]))
    starts = jnp.array([[N, N, N], [N, N, N], [0, 1, N], [N, N, N]])
    kept = updown._without_phantom_sizes(logits, starts, N)
    assert jnp.isfinite(kept).tolist() == [True, False, True, False]
    # A likely size without a start is no matter of rounding: its draws have to fail, and be seen to.
    likely = updown._without_phantom_sizes(jnp.log(jnp.array([0.3, 0.2, 0.5, 0.0])), starts, N)
    assert jnp.isfinite(likely).tolist() == [True, True, True, False]


def test_keys_of_both_kinds():
    law = factored("ordinary", 4)
    walk = law.prepared_state()
    draws = UpDown().sample(walk, jax.random.split(jax.random.PRNGKey(0), 5))
    assert (law.log_prob(draws) > -jnp.inf).all()


def test_float32_stays_float32():
    law = factored("ordinary", 4, np.float32)
    walk = law.prepared_state()
    state = walk.init(law.greedy())
    kept = jnp.array([True, True, False, False])
    bordered = border(walk.kernel, state, kept, jnp.linspace(0, 1, 4, dtype=jnp.float32))
    arrays = (bordered.N, bordered.E, *jax.tree.leaves(state.images))
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}


@pytest.mark.parametrize("k", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_sizes_zero_and_one(k):
    draws = factored("ordinary", k).sample(jax.random.key(0), (5000,))
    assert draws.shape == (5000, k)
    assert chi_square_p_value(enumerated_law("ordinary", k, k), masks(draws)) > 1e-4
    assert factored("ordinary", k).sample(jax.random.key(0), (0,)).shape == (0, k)


@pytest.mark.slow
def test_without_64_bits(without_x64):
    law = KNDPP(*paper_kernel(N, 8, np.float32), k=3)
    draws = law.sample(jax.random.key(0), (5000,))
    assert draws.dtype == jnp.int32
    assert chi_square_p_value(law_of_parts(paper_kernel(N, 8), 3, 3), masks(draws)) > 1e-4
