"""Items with features: the model's density, cold items, fits that are saved and go on, bad input."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.distributions import Normal
from numpyro.infer.util import log_density
from scipy import stats

from numpyro_ndpp import learning
from numpyro_ndpp.features import as_features, counts_with_cold
from numpyro_ndpp.learning import Fit, fit
from numpyro_ndpp.priors import basket_model, ndpp_prior, symmetric_prior

GROUPS, PER_GROUP = 2, 8
N = GROUPS * PER_GROUP
GROUP = np.arange(N) // PER_GROUP
COLD = np.array([0, 1, 8, 9])
WORDS = np.eye(GROUPS)[GROUP]
SMALL = {"rank": (8, 8), "num_steps": 20, "evaluate_every": 10, "batch_size": 50, "progress_bar": False}


@pytest.fixture(scope="module")
def baskets():
    """Each basket is of one group; the first two items of both are not on sale."""
    rng, found = np.random.default_rng(0), []
    while len(found) < 600:
        items = np.flatnonzero((rng.integers(GROUPS) == GROUP) & (rng.random(N) < 0.4))
        found += [sold.tolist()] if len(sold := np.setdiff1d(items, COLD)) else []
    return found


@pytest.fixture(scope="module")
def small(baskets):
    return fit(baskets, N, features=WORDS, **SMALL)


def density(values, counts, anchor, F, angles, alpha, beta, strength):
    """The log density of the prior by its formula, in SciPy, and the rows' own parts."""
    scale = np.sqrt(counts / 10)[:, None]
    turned = F @ values["B_map"]
    for pair in range(angles.shape[1]):
        for i, angle in enumerate(angles[:, pair]):
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            turned[i, 2 * pair : 2 * pair + 2] = turn @ turned[i, 2 * pair : 2 * pair + 2]
    centre = {"V": (1 + F @ values["V_length"])[:, None] * anchor + F @ values["V_map"], "B": turned}
    own = {"V": alpha, "B": beta}
    total = sum(
        stats.norm.logpdf(values[name], scale * centre[name], scale / np.sqrt(2 * own[name])).sum() for name in own
    )
    maps = (values[name] for name in ("V_map", "B_map", "V_length"))
    return total + sum(stats.norm.logpdf(each, 0, 1 / np.sqrt(2 * strength)).sum() for each in maps)


def test_prior_has_the_density_of_its_formula():
    rng = np.random.default_rng(0)
    shapes = {"V": (5, 3), "B": (5, 5), "V_map": (4, 3), "B_map": (4, 5), "V_length": (4,), "D": (5, 5)}
    values = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    anchor, F, angles = (rng.normal(size=(5, columns)) for columns in (3, 4, 2))
    counts = rng.uniform(1, 9, 5)
    strengths = {"alpha": 2.0, "beta": 3.0, "feature_strength": 0.7}
    prior = partial(ndpp_prior, counts, 10, rank=(3, 5), anchor=anchor, features=F, angles=angles, **strengths)
    found = jax.jit(lambda values: log_density(prior, (), {}, values)[0])(values)
    assert found == pytest.approx(density(values, counts, anchor, F, angles, *strengths.values()), rel=1e-10)


def test_a_function_of_the_user_stands_in_for_the_linear_one():
    anchor, said = np.full((4, 2), 0.5), {"V": np.arange(8.0).reshape(4, 2), "B": np.ones((4, 2))}

    def rows(name, columns):
        factor = numpyro.sample("factor_" + name, Normal(0.0, 1.0))
        assert columns == 2
        return factor * said[name]

    own = {"V": np.zeros((4, 2)), "B": np.zeros((4, 2))}
    values = {"factor_V": 2.0, "factor_B": 3.0, "V_base": own["V"], "B_base": own["B"], "D": np.zeros((2, 2))}
    prior = partial(ndpp_prior, np.full(4, 9.0), 9, rank=(2, 2), anchor=anchor, features=rows)
    reparam = handlers.reparam(prior, config={name: numpyro.infer.reparam.TransformReparam() for name in "VB"})
    law = handlers.seed(handlers.substitute(reparam, values), 0)()
    np.testing.assert_allclose(law.V, anchor + 2 * said["V"], rtol=1e-6)
    np.testing.assert_allclose(law.B, 3 * said["B"], rtol=1e-6)


def test_within_a_plate_each_kernel_has_its_own_function():
    rng = np.random.default_rng(0)
    counts, F, angles = np.ones(5), rng.normal(size=(5, 3)), rng.normal(size=(5, 1))
    shapes = {"V": (5, 2), "B": (5, 2), "V_map": (3, 2), "B_map": (3, 2), "V_length": (3,), "D": (2, 2)}
    values = {name: rng.normal(size=(2, *shape)) for name, shape in shapes.items()}
    prior = partial(ndpp_prior, counts, 7, rank=(2, 2), anchor=rng.normal(size=(5, 2)), features=F, angles=angles)

    def shops():
        with numpyro.plate("shops", 2):
            prior()

    @partial(jax.jit, static_argnums=0)
    def judged(model, values):
        return log_density(model, (), {}, values)[0]

    alone = [judged(prior, {name: value[shop] for name, value in values.items()}) for shop in range(2)]
    assert float(judged(shops, values)) == pytest.approx(float(sum(alone)), rel=1e-10)


def test_cold_items_are_not_on_sale_in_what_is_learned_from():
    rng = np.random.default_rng(0)
    values = {"V": rng.normal(size=(4, 3)), "V_map": np.zeros((2, 3)), "V_length": np.zeros(2)}
    data = np.array([[0, 2], [0, 4]]), np.ones(4), None, rng.normal(size=(4, 2)), None, np.array([1, 3])
    model = handlers.seed(partial(basket_model, prior=partial(symmetric_prior, rank=(3, 0))), 0)
    trace = handlers.trace(handlers.substitute(model, values)).get_trace(*data)
    law = trace["basket"]["fn"]
    L = values["V"] @ values["V"].T
    sold = np.ix_([0, 2], [0, 2])
    expected = np.log(np.linalg.det(L[sold])) - np.linalg.slogdet(np.eye(2) + L[sold])[1]
    assert float(law.log_prob(np.array([[0, 2, 4]]))[0]) == pytest.approx(expected, rel=1e-10)


def test_counts_of_cold_items_are_those_of_their_features():
    rng = np.random.default_rng(0)
    F, counts = rng.normal(size=(40, 3)), rng.geometric(0.1, 40)
    counts[:5] = 0
    found = counts_with_cold(counts, F)
    assert (found[5:] == counts[5:]).all()
    # Ridge regression with a free intercept: augmented least squares say the same.
    design = np.column_stack([np.ones(35), F[5:]])
    penalty = np.column_stack([np.zeros(3), np.eye(3)])
    logs = np.append(np.log(counts[5:]), np.zeros(3))
    weights = np.linalg.lstsq(np.vstack([design, penalty]), logs, rcond=None)[0]
    np.testing.assert_allclose(np.log(found[:5]), weights[0] + F[:5] @ weights[1:], rtol=1e-5)
    assert (counts_with_cold(np.zeros(3, int), F[:3]) == 1).all()
    # An extreme row does not leave the range of the counts.
    assert counts_with_cold(counts, np.vstack([1e3 * F[:1], F[1:]]))[0] in (counts[5:].min(), counts[5:].max())


@pytest.mark.slow
def test_cold_items_go_with_their_group(baskets):
    """Of the cold items, those of the basket's own group are likelier to join it than those of the other group."""
    result = fit(baskets, N, features=WORDS, **SMALL | {"num_steps": 400, "evaluate_every": 100})
    pairs = np.array([[2, 3], [4, 5], [6, 7], [10, 11], [12, 13], [14, 15]])
    joins = np.asarray(result.distribution().next_item_log_prob(pairs))[:, COLD]
    own = GROUP[COLD] == GROUP[pairs[:, :1]]
    gap = np.where(own, joins, 0).sum(axis=1) - np.where(own, 0, joins).sum(axis=1)
    assert (gap > 0).all()
    # The lengths are those of items on sale, not zero.
    length = np.linalg.norm(result.V, axis=1)
    assert 0.5 < np.median(length[COLD]) / np.median(np.delete(length, COLD)) < 2
    # Without features the groups are alike.
    plain = fit(baskets, N, **SMALL | {"num_steps": 400, "evaluate_every": 100})
    joins = np.asarray(plain.distribution().next_item_log_prob(pairs))[:, COLD]
    plain_gap = np.where(own, joins, 0).sum(axis=1) - np.where(own, 0, joins).sum(axis=1)
    assert abs(plain_gap.mean()) < 0.2 * gap.mean()


def test_cold_rows_are_what_features_say(baskets, small):
    """Where features are equal, so are the counts, and rows of B differ by their angles alone."""
    lengths = np.linalg.norm(small.B[COLD], axis=1)
    np.testing.assert_allclose(lengths[[0, 2]], lengths[[1, 3]], rtol=1e-4)
    pairs = np.linalg.norm(small.B[COLD].reshape(4, 4, 2), axis=2)  # of each pair of columns
    np.testing.assert_allclose(pairs[[0, 2]], pairs[[1, 3]], rtol=1e-4)
    assert np.abs(small.B[0] - small.B[1]).max() > 0.01 * lengths[0]


def test_unit_of_features_is_no_matter(baskets, small):
    again = fit(baskets, N, features=1024 * WORDS, **SMALL)
    assert (again.V == small.V).all()


@pytest.mark.parametrize("anchor", [0.0, 0.3, 1.0])
def test_start_is_the_centre_and_cold_items_have_no_own_part(baskets, anchor):
    settings = {"model": "ndpp", "rank": (4, 4), "num_items": N, "anchor": anchor, "batch_size": 2, "num_steps": 10}
    settings |= {"learning_rate": 0.1, "seed": 3, "feature_strength": 1.0} | learning.MODELS["ndpp"].strengths
    train = np.array([[2, 10], [3, 11]])
    learner, F = learning.Learner(settings, 2), as_features(WORDS, N)
    data = learning.training_data(settings, train, features=F)
    V, B, _ = learner.kernel(learner.start(data), data)
    cold = np.setdiff1d(np.arange(N), train)
    assert (np.asarray(data[5]) == cold).all()
    scale = np.sqrt(np.asarray(data[1]) / 2)
    lengths = np.linalg.norm(V, axis=1) / scale
    np.testing.assert_allclose(lengths[cold], anchor, atol=1e-6)
    np.testing.assert_allclose(np.delete(lengths, cold), max(anchor, 0.5), rtol=1e-5)
    assert (np.linalg.norm(B, axis=1) > 0).all()


@pytest.mark.parametrize("model", ["ndpp", "symmetric"])
def test_fits_with_features_go_on_and_are_saved(baskets, tmp_path, model, monkeypatch):
    settings = SMALL | {"model": model, "rank": 16, "features": WORDS, "checkpoint_every": 10}
    whole, path = fit(baskets, N, **settings), tmp_path / "run.npz"
    write = learning._write_checkpoint

    def write_and_stop(*arguments):
        write(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(learning, "_write_checkpoint", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            fit(baskets, N, checkpoint=path, **settings)
    resumed = fit(baskets, N, checkpoint=path, **settings)
    for name in ("V", "B", "D"):
        assert (getattr(resumed, name) == getattr(whole, name)).all()
    resumed.save(tmp_path / "kernel.npz")
    loaded = Fit.load(tmp_path / "kernel.npz")
    assert loaded.settings == whole.settings
    assert (loaded.V == whole.V).all()
    for other in ({"features": WORDS[::-1]}, {"features": None}):
        with pytest.raises(ValueError, match="is of another run: its data is"):
            fit(baskets, N, checkpoint=path, **settings | other)
    with pytest.raises(ValueError, match=r"is of another run: its feature_strength is 1.0, here it is 2.0"):
        fit(baskets, N, checkpoint=path, feature_strength=2.0, **settings)


def test_fit_without_features_is_what_it_was(baskets):
    """Its settings have nothing new, so that old checkpoints are still its own."""
    assert not [name for name in fit(baskets, N, **SMALL | {"num_steps": 10}).settings if "feature" in name]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"features": np.ones((3, 2))},
            ValueError,
            r"features must have a row for each of the 16 items, got shape \(3, 2\)",
        ),
        (
            {"features": np.ones(16)},
            ValueError,
            r"features must have a row for each of the 16 items, got shape \(16,\)",
        ),
        ({"features": np.ones((16, 0))}, ValueError, r"features must have a row .* got shape \(16, 0\)"),
        (
            {"features": np.where(np.eye(16, 2, k=-3) > 0, np.nan, 1.0)},
            ValueError,
            "features must be finite, got nan in row 3, column 0",
        ),
        ({"features": np.full((16, 1), np.inf)}, ValueError, "features must be finite, got inf in row 0, column 0"),
        ({"features": np.zeros((16, 2))}, ValueError, "features must not be zero throughout"),
        (
            {"features": [["red"]] * 16},
            TypeError,
            "features must be a matrix of numbers, a row for each item, got list",
        ),
        ({"features": [[1], [1, 2]]}, TypeError, "features must be a matrix of numbers"),
        ({"features": lambda name, columns: None}, TypeError, "features must be a matrix of numbers.* got function"),
        ({"features": WORDS, "model": "ondpp"}, ValueError, "features is no setting of model='ondpp'"),
        ({"feature_strength": 1.0}, ValueError, "feature_strength is no setting without features"),
        ({"features": WORDS, "feature_strength": 0.0}, ValueError, "feature_strength must be a finite number above 0"),
    ],
)
def test_bad_features_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        fit([[2], [10]], N, **SMALL | settings)


def test_bad_features_of_a_prior_are_refused():
    prior = partial(handlers.seed(ndpp_prior, 0), np.ones(4), 3, rank=(2, 2))
    with pytest.raises(ValueError, match=r"features must have a row for each of the 4 items, got shape \(3, 2\)"):
        prior(features=np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"angles must have shape \(4, 1\), got \(4, 2\)"):
        prior(features=jnp.ones((4, 2)), angles=np.ones((4, 2)))
