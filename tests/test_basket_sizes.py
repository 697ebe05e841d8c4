"""Sizes learned from baskets, and kernels learned beside them."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from numpyro_ndpp import KNDPP, SizedNDPP, learning, pad_subsets
from numpyro_ndpp.basket_sizes import size_logits_of_baskets
from numpyro_ndpp.learning import Fit, fit


def baskets_of(sizes, n, seed=0):
    rng = np.random.default_rng(seed)
    return [np.sort(rng.choice(n, size, replace=False)) for size in sizes]


def test_histogram_with_a_negative_binomial_for_what_was_not_seen():
    sizes = np.repeat([0, 1, 2, 7], [3, 20, 10, 2])
    logits = size_logits_of_baskets(baskets_of(sizes, 12), 12, 10)
    mean, variance = sizes.mean(), sizes.var()
    tail = np.exp(np.asarray(dist.NegativeBinomial2(mean, mean**2 / (variance - mean)).log_prob(np.arange(11))))
    expected = np.bincount(sizes, minlength=11) + tail
    np.testing.assert_allclose(np.exp(logits), expected / expected.sum(), rtol=1e-6)
    assert np.isfinite(logits).all()


def test_sizes_without_spread_have_a_poisson_tail():
    probs = np.exp(size_logits_of_baskets(baskets_of([3] * 30, 8), 8, 6, min_size=1))
    np.testing.assert_allclose(probs.sum(), 1.0)
    assert probs[0] == 0
    assert probs[3] > 0.9
    assert (probs[1:] > 0).all()


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="one basket at least is needed"):
        size_logits_of_baskets([], 5)
    with pytest.raises(ValueError, match="baskets have 1 to 3 items, but sizes go from min_size=2 to 4"):
        size_logits_of_baskets([[0], [1, 2, 3]], 5, 4, min_size=2)
    with pytest.raises(ValueError, match="max_size must be"):
        size_logits_of_baskets([[0]], 5, 9)


@pytest.fixture(scope="module")
def bimodal():
    """Baskets of one item or of four: no NDPP has such sizes."""
    rng = np.random.default_rng(0)
    single = [[int(rng.integers(8))] for _ in range(150)]
    quadruples = [[int(item) for item in np.sort(rng.choice(8, 4, replace=False))] for _ in range(150)]
    return single + quadruples


@pytest.mark.slow
def test_fit_has_the_sizes_of_the_baskets(bimodal, tmp_path):
    settings = {"rank": 8, "num_steps": 60, "evaluate_every": 30, "seed": 1, "progress_bar": False}
    sized = fit(bimodal, 8, model="sized", **settings)
    plain = fit(bimodal, 8, **settings)
    assert isinstance(sized.distribution(), SizedNDPP)
    np.testing.assert_allclose(np.exp(sized.distribution().size_log_prob())[[1, 4]], 0.5, atol=0.05)
    assert sized.history["validation"].max() > plain.history["validation"].max() + 0.3
    path = tmp_path / "fit.npz"
    sized.save(path)
    again = Fit.load(path)
    value = np.asarray(pad_subsets([[2], [1, 3, 4, 6]], 8, 8))
    log_probs = np.asarray(again.distribution().log_prob(value))
    np.testing.assert_array_equal(log_probs, sized.distribution().log_prob(value))
    # π times the k-NDPP of the same kernel
    logits = size_logits_of_baskets(bimodal, 8)
    given_size = [KNDPP(sized.V, sized.B, sized.D, k).log_prob(value[i, :k]) for i, k in enumerate((1, 4))]
    np.testing.assert_allclose(log_probs - jnp.stack(given_size), logits[[1, 4]], atol=0.1)
    assert {len(basket) for basket in sized.complete([3], num=10)} <= {1, 4}


@pytest.mark.slow
def test_a_killed_run_goes_on(bimodal, tmp_path, monkeypatch):
    settings = {
        "model": "sized",
        "rank": 8,
        "evaluate_every": 10,
        "num_steps": 40,
        "patience": 0,
        "progress_bar": False,
    }
    whole = fit(bimodal, 8, **settings)
    settings |= {"checkpoint": tmp_path / "run.npz", "checkpoint_every": 10}
    write = learning._write_checkpoint

    def write_and_stop(*arguments):
        write(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(learning, "_write_checkpoint", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            fit(bimodal, 8, **settings)
    again = fit(bimodal, 8, **settings)
    np.testing.assert_array_equal(again.V, whole.V)
    np.testing.assert_array_equal(again.size_logits, whole.size_logits)
