"""The README's own model, on real baskets: it beats popularity. (Its code blocks are doctests.)"""

import doctest
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.handlers import seed, substitute
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta
from real_data import GROCERIES

from numpyro_ndpp import NDPP, pad_subsets
from numpyro_ndpp.datasets import load_baskets
from numpyro_ndpp.learning import item_counts
from numpyro_ndpp.metrics import hold_out, mean_percentile_rank, popularity

README = Path(__file__).parents[1] / "README.md"


def readme_model():
    examples = doctest.DocTestParser().get_examples(README.read_text(encoding="utf-8"))
    source = next(example.source for example in examples if example.source.startswith("def model("))
    assert len(source.splitlines()) <= 15
    names = {"numpyro": numpyro, "dist": dist, "NDPP": NDPP, "jnp": jnp}
    exec(source, names)
    return names["model"]


def test_readme_has_its_model():
    assert callable(readme_model())


@pytest.mark.slow
@pytest.mark.long
def test_readme_model_beats_popularity():
    if not GROCERIES.exists():
        pytest.skip(f"no real baskets: {GROCERIES.name} is not there")
    model, data = readme_model(), load_baskets(GROCERIES)
    with jax.enable_x64(False):
        train, test = hold_out(data.baskets, 2000)
        n, d = len(data.items), 50
        directions = random.normal(random.key(0), (n, d))
        directions /= jnp.linalg.norm(directions, axis=1, keepdims=True)
        share, popular = item_counts(train, n) / len(train), popularity(train, n)
        inputs = pad_subsets(train, n, width=min(n, 2 * d)), share, directions
        guide = AutoDelta(model)
        svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
        params = svi.run(random.key(0), 900, *inputs, progress_bar=False).params
        law = substitute(seed(model, 0), guide.median(params))(*inputs)
        for hidden in range(2):  # which items are hidden
            ours, theirs = (mean_percentile_rank(each, test, seed=hidden) for each in (law, popular))
            print(f"mean percentile rank of a hidden item: {ours}; by popularity: {theirs}")
            assert np.isfinite(ours.value)
            assert ours.value > theirs.value
