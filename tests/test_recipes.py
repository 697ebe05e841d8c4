"""Kernels from qualities, points, and dense matrices, and dense matrices from kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import PARTS, SKEW, TRUE_RANK, all_subsets, dense_kernel, enumerated_law, table

from numpyro_ndpp import KNDPP, NDPP, pad_subsets
from numpyro_ndpp.recipes import fourier_features, from_dense, from_marginal, from_quality

N = 10
RNG = np.random.default_rng(0)
Q = RNG.uniform(0.2, 1.5, N)
PHI, B, D = RNG.normal(size=(N, 4)), RNG.normal(size=(N, 4)), RNG.normal(size=(4, 4))
SETS = all_subsets(N)
SUBSETS = np.asarray(pad_subsets(SETS, N))


def law_of(L):
    minors = np.array([np.linalg.det(L[np.ix_(s, s)]) if s else 1.0 for s in SETS])
    return minors / minors.sum()


def probs(law):
    return np.exp(law.log_prob(SUBSETS))


@pytest.mark.parametrize("skew", [False, True])
def test_quality_as_enumerated(skew):
    law = NDPP(*from_quality(Q, PHI, B, D) if skew else from_quality(Q, PHI))
    likeness = PHI @ PHI.T + (B @ (D - D.T) @ B.T if skew else 0)
    L = Q[:, None] * likeness * Q
    np.testing.assert_allclose(law.dense_kernel(), L, atol=1e-12)
    np.testing.assert_allclose(probs(law), law_of(L), atol=1e-12)


def test_quality_of_a_batch():
    qualities = np.stack([Q, 2 * Q])
    law = KNDPP(*from_quality(qualities, PHI, B, D), 3)
    assert law.batch_shape == (2,)
    np.testing.assert_allclose(law.dense_kernel()[1], 4 * law.dense_kernel()[0], rtol=1e-12)


def test_gradients_of_quality_and_embeddings():
    """Against finite differences, in double precision."""
    basket, eps = np.array([1, 4, 7]), 1e-6

    @jax.jit
    def log_prob(q, phi, B, D):
        return KNDPP(*from_quality(q, phi, B, D), k=3).log_prob(basket)

    arguments = (Q, PHI, B, D)
    gradients = jax.jit(jax.grad(log_prob, argnums=(0, 1, 2, 3)))(*arguments)
    for i, gradient in enumerate(gradients):
        direction = np.random.default_rng(i).normal(size=arguments[i].shape)
        moved = [[*arguments[:i], arguments[i] + step * direction, *arguments[i + 1 :]] for step in (eps, -eps)]
        slope = (log_prob(*moved[0]) - log_prob(*moved[1])) / (2 * eps)
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-6)


def test_what_quality_refuses():
    with pytest.raises(ValueError, match=r"quality must be at least 0, got -2 for item 3; .* jnp.exp\(scores\)"):
        from_quality(np.where(np.arange(N) == 3, -2.0, Q), PHI)
    with pytest.raises(ValueError, match=r"for each row of embeddings, got quality of shape \(9,\) and embeddings of"):
        from_quality(Q[:-1], PHI)
    with pytest.raises(ValueError, match=r"for each row of B, got quality of shape \(10,\) and B of shape \(8, 4\)"):
        from_quality(Q, PHI, B[:8], D)
    with pytest.raises(ValueError, match="D is missing: B and D come together or not at all"):
        from_quality(Q, PHI, B)
    with pytest.raises(ValueError, match=r"embeddings must be a matrix .* got shape \(10,\)"):
        from_quality(Q, Q)


def test_fourier_features():
    points = RNG.normal(size=(N, 3))
    scale = np.array([0.5, 1.0, 2.0])
    features = fourier_features(jax.random.key(0), points, 20_000, scale)
    distance = np.sum(((points[:, None] - points) / scale) ** 2, axis=-1)
    np.testing.assert_allclose(features @ features.T, np.exp(-distance / 2), atol=0.03)
    np.testing.assert_allclose(np.sum(features**2, axis=1), 1.0, rtol=1e-12)
    law = NDPP(*from_quality(Q, fourier_features(jax.random.key(0), points, 12)))
    np.testing.assert_allclose(probs(law), law_of(np.asarray(law.dense_kernel())), atol=1e-12)

    def log_normalizer(scale):
        return NDPP(fourier_features(jax.random.key(0), points, 12, scale)).log_normalizer

    slope = (log_normalizer(1.0 + 1e-6) - log_normalizer(1.0 - 1e-6)) / 2e-6
    np.testing.assert_allclose(jax.grad(log_normalizer)(1.0), slope, rtol=1e-6)


def test_what_fourier_features_refuse():
    key, points = jax.random.key(0), np.ones((N, 2))
    with pytest.raises(ValueError, match="num_features must be even, for cosines and sines in pairs, got 5"):
        fourier_features(key, points, 5)
    with pytest.raises(ValueError, match="num_features must be at least 2, got 0"):
        fourier_features(key, points, 0)
    with pytest.raises(ValueError, match="length_scale must be above 0, got 0"):
        fourier_features(key, points, 4, 0.0)
    with pytest.raises(ValueError, match=r"points must be a matrix .* got shape \(10,\)"):
        fourier_features(key, points[:, 0], 4)


@pytest.mark.parametrize("name", list(PARTS))
def test_dense_and_back(name):
    L = dense_kernel(*PARTS[name])
    X, W = from_dense(L)
    assert X.shape[1] == TRUE_RANK[name]
    norm = np.linalg.norm(L, 2)
    assert np.linalg.norm(X @ W @ X.T - L, 2) <= 1e-8 * norm
    law = NDPP.from_factors(X, W, validate_args=True)
    np.testing.assert_allclose(law.dense_kernel(), L, atol=1e-8 * norm)


@pytest.mark.parametrize("name", table())
def test_dense_law_as_enumerated(name):
    law = NDPP.from_factors(*from_dense(dense_kernel(*PARTS[name])))
    expected = enumerated_law(name)
    assert np.sum(np.abs(probs(law) - [expected.get(s, 0.0) for s in SETS])) < 1e-7


@pytest.mark.parametrize("name", [name for name in PARTS if name not in (*SKEW, "scaled 1e6", "skew pairs and V")])
def test_marginal_kernel_and_back(name):
    L = dense_kernel(*PARTS[name])
    K = np.linalg.solve((np.eye(N) + L).T, L.T).T
    np.testing.assert_allclose(NDPP(*PARTS[name]).dense_marginal_kernel(), K, atol=1e-8)
    X, W = from_marginal(K)
    law = NDPP.from_factors(X, W, validate_args=True)
    np.testing.assert_allclose(law.dense_marginal_kernel(), K, atol=1e-8)
    np.testing.assert_allclose(X @ W @ X.T, L, atol=1e-8 * max(1, np.linalg.norm(L, 2) ** 2))


@pytest.mark.parametrize("name", ["ordinary", *SKEW])
def test_marginal_kernel_law_as_enumerated(name):
    L = dense_kernel(*PARTS[name])
    law = NDPP.from_factors(*from_marginal(np.linalg.solve((np.eye(N) + L).T, L.T).T))
    expected = enumerated_law(name)
    np.testing.assert_allclose(probs(law), [expected.get(s, 0.0) for s in SETS], atol=1e-8)


@pytest.mark.parametrize("make", [from_dense, from_marginal])
def test_dense_under_a_derivative(make):
    """Where the rank is not seen the factors are exact, whatever the direction."""
    at = 0.01 * dense_kernel(*PARTS["ordinary"]) + 0.1 * np.eye(N)  # of full rank, so that all directions are allowed
    if make is from_marginal:
        at = np.linalg.solve((np.eye(N) + at).T, at.T).T
    direction = np.random.default_rng(3).normal(size=at.shape)

    def log_prob(matrix):
        return NDPP.from_factors(*make(matrix)).log_prob(np.array([1, 4, 7]))

    slope = (log_prob(at + 1e-6 * direction) - log_prob(at - 1e-6 * direction)) / 2e-6
    np.testing.assert_allclose(np.sum(jax.jit(jax.grad(log_prob))(at) * direction), slope, rtol=1e-5)


def test_a_tolerance_lowers_the_rank():
    vectors = np.linalg.qr(RNG.normal(size=(N, N)))[0]
    L = (vectors * np.logspace(0, -9, N)) @ vectors.T
    for tolerance, most in ((1e-3, 5), (1e-6, 8)):
        X, W = from_dense(L, tolerance=tolerance)
        assert X.shape[1] <= most
        assert np.linalg.norm(X @ W @ X.T - L, 2) <= tolerance
    assert from_dense(L.astype(np.float32))[0].shape[1] < N
    assert from_dense(L.astype(np.float32))[0].dtype == jnp.float32


def test_a_batch_of_dense_kernels():
    L = np.stack([dense_kernel(*PARTS[name]) for name in ("ordinary", "symmetric")])
    law = NDPP.from_factors(*from_dense(L))
    assert (law.batch_shape, law.rank) == ((2,), 8)
    np.testing.assert_allclose(law.dense_kernel(), L, atol=1e-7)


def test_single_precision_is_enough(without_x64):
    L = dense_kernel(*PARTS["ordinary"]).astype(np.float32)
    law = NDPP.from_factors(*from_dense(L), validate_args=True)
    assert law.rank == 8
    np.testing.assert_allclose(law.dense_kernel(), L, atol=1e-4)


def test_what_dense_kernels_are_refused():
    with pytest.raises(ValueError, match=r"L must have a positive semidefinite symmetric part, .* the eigenvalue -1 "):
        from_dense(np.diag([1.0, -1.0]))
    with pytest.raises(ValueError, match=r"L must be square, with a row for each item, got shape \(3, 2\)"):
        from_dense(np.ones((3, 2)))
    with pytest.raises(ValueError, match="L must be finite, got nan in row 1, column 0"):
        from_dense(np.array([[1.0, 0.0], [np.nan, 1.0]]))
    with pytest.raises(ValueError, match="L has n × n numbers, and is for n = 4096 items at most, got 5000"):
        from_dense(np.broadcast_to(np.float32(0), (5000, 5000)))
    with pytest.raises(ValueError, match="tolerance must be a finite number at least 0 and at most 1, got 2"):
        from_dense(np.eye(2), tolerance=2)


def test_what_marginal_kernels_are_refused():
    with pytest.raises(ValueError, match="K must have no eigenvalue 1: then some items are certain"):
        from_marginal(np.diag([1.0, 0.5]))
    for eigenvalue in (1.5, -0.1):
        with pytest.raises(ValueError, match="K must be a marginal kernel: the symmetric part of K - KᵀK"):
            from_marginal(np.diag([eigenvalue, 0.5]))
    with pytest.raises(ValueError, match="K must be square"):
        from_marginal(np.ones((3, 2)))


def test_a_kernel_of_zeros():
    law = NDPP.from_factors(*from_dense(np.zeros((3, 3))))
    np.testing.assert_allclose(law.inclusion_probs(), 0.0)
    np.testing.assert_allclose(NDPP.from_factors(*from_marginal(np.zeros((3, 3)))).inclusion_probs(), 0.0)


def test_dense_kernels_of_conditioned_distributions():
    law = NDPP(*PARTS["ordinary"])
    L, out = dense_kernel(*PARTS["ordinary"]), [2, 5]
    L[out], L[:, out] = 0, 0
    np.testing.assert_allclose(law.condition(exclude=out).dense_kernel(), L, atol=1e-12)
    given = law.condition(include=[1], exclude=out)
    with pytest.raises(ValueError, match=r"dense_kernel\(\) is of the distribution before include"):
        given.dense_kernel()
    K = np.asarray(given.dense_marginal_kernel())
    np.testing.assert_allclose(np.diagonal(K), given.inclusion_probs(), atol=1e-10)
    pair = np.log(np.linalg.det(K[np.ix_([0, 3], [0, 3])]))
    np.testing.assert_allclose(given.marginal_log_prob(np.array([0, 3])), pair, atol=1e-8)


def test_dense_kernels_that_are_not_there():
    with pytest.raises(ValueError, match=r"those of 3 to 3 items have no marginal kernel; use marginal_log_prob\(\)"):
        KNDPP(*PARTS["ordinary"], 3).dense_marginal_kernel()
    large = NDPP(np.ones((5000, 1)))
    with pytest.raises(ValueError, match=r"dense_kernel\(\) has n × n numbers, and is for n = 4096 items at most"):
        large.dense_kernel()
    with pytest.raises(ValueError, match=r"dense_marginal_kernel\(\) has n × n numbers"):
        large.dense_marginal_kernel()


@pytest.mark.parametrize("law", [NDPP(PHI), KNDPP(PHI, k=2), NDPP.from_factors(PHI).condition(include=[0])])
def test_what_has_no_mean_says_what_to_use(law):
    with pytest.raises(NotImplementedError, match=r"use inclusion_probs\(\), which is the mean of multihot\(\)"):
        law.mean  # noqa: B018
    with pytest.raises(NotImplementedError, match=r"use multihot\(\)\.variance"):
        law.variance  # noqa: B018
    with pytest.raises(NotImplementedError, match=r"no closed form: estimate it by -log_prob"):
        law.entropy()
