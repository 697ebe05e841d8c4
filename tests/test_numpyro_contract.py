"""What NumPyro and JAX ask of a distribution: pytrees, transformations, shapes, keys, handlers."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from kernels import PARTS
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions.batch_util import promote_batch_shape, vmap_over
from numpyro.infer.util import log_density

from numpyro_ndpp import KNDPP, NDPP, Cholesky, SizedNDPP, UpDown, pad_subsets

N_ITEMS = 6
RNG = np.random.default_rng(0)
V, B, D = RNG.normal(size=(N_ITEMS, 2)), RNG.normal(size=(N_ITEMS, 2)), RNG.normal(size=(2, 2))
X, W = np.hstack([V, B]), np.block([[np.eye(2), np.zeros((2, 2))], [np.zeros((2, 2)), D - D.T]])
BASKETS = np.asarray(pad_subsets([[0, 1], [2, 3], [1, 4], [0, 5], [3, 4]], N_ITEMS, 2))

LAWS = {
    "NDPP": lambda **settings: NDPP(V, B, D, **settings),
    "NDPP of 1 to 3": lambda **settings: NDPP(V, B, D, min_size=1, max_size=3, **settings),
    "KNDPP": lambda **settings: KNDPP(V, B, D, 2, **settings),
    "SizedNDPP": lambda **settings: SizedNDPP(V, B, D, np.log([0.1, 0.2, 0.4, 0.1, 0.2]), **settings),
    "SizedNDPP of factors": lambda **settings: SizedNDPP.from_factors(X, W, dist.Poisson(2.0), **settings),
    "NDPP of factors": lambda **settings: NDPP.from_factors(X, W, **settings),
    "KNDPP of factors": lambda **settings: KNDPP.from_factors(X, W, 2, **settings),
}
every_law = pytest.mark.parametrize("name", LAWS)
# Each law is compiled on its own. Where much is compiled, these two stand for all but in the slow tests.
QUICK = ("KNDPP", "NDPP of factors")
two_laws_quick = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in LAWS]
)
# The sampler that is compiled in the shortest time; the default one in the slow tests.
sampler_quick = pytest.mark.parametrize(
    "sampler", [Cholesky(), pytest.param(UpDown(), marks=pytest.mark.slow)], ids=lambda sampler: type(sampler).__name__
)


@jax.jit
def log_prob_of(law, values):
    return law.log_prob(values)


@every_law
def test_pytree_round_trip_keeps_everything(name):
    law = LAWS[name]()
    leaves, tree = jax.tree.flatten(law)
    copy = jax.tree.unflatten(tree, leaves)
    assert copy.batch_shape == law.batch_shape
    assert copy.event_shape == law.event_shape
    assert (copy.min_size, copy.max_size, copy.sampler) == (law.min_size, law.max_size, law.sampler)
    assert getattr(copy, "k", None) == getattr(law, "k", None)
    assert copy.support == law.support
    np.testing.assert_allclose(log_prob_of(copy, BASKETS), log_prob_of(law, BASKETS))


@every_law
def test_pickle(name):
    law = LAWS[name]()
    law.log_normalizer  # noqa: B018 - a cached value travels too
    copy = pickle.loads(pickle.dumps(law))
    assert copy.__dict__.keys() == law.__dict__.keys()
    np.testing.assert_allclose(log_prob_of(copy, BASKETS), log_prob_of(law, BASKETS))


@two_laws_quick
def test_jit_with_the_distribution_as_argument_compiles_once(name):
    traces = []

    @jax.jit
    def log_prob(law, value):
        traces.append(1)
        return law.log_prob(value)

    law = LAWS[name]()
    np.testing.assert_allclose(log_prob(law, BASKETS), law.log_prob(BASKETS), rtol=1e-12)
    other = jax.tree.map(lambda leaf: 1.1 * leaf, LAWS[name]())
    assert np.isfinite(log_prob(other, BASKETS)).all()
    assert len(traces) == 1


@two_laws_quick
@sampler_quick
def test_nothing_is_compiled_on_a_second_call(name, sampler):
    law = LAWS[name](sampler=sampler)

    def use(law, key):
        law.log_prob(BASKETS)
        law.inclusion_probs()
        law.size_log_prob()
        law.marginal_log_prob(BASKETS[:, :2])
        law.next_item_log_prob(BASKETS[:, :1])
        law.sample(key, (2,))

    keys = random.split(random.key(0), 2)
    use(law, keys[0])
    use(LAWS[name](sampler=sampler), keys[0])
    second = jax.tree.map(lambda leaf: 1.1 * leaf, law)
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        compiled = []
        import logging

        class Recorder(logging.Handler):
            def emit(self, record):
                if "Compiling" in record.getMessage():
                    compiled.append(record.getMessage())

        recorder = Recorder()
        logger = logging.getLogger("jax")
        patch.setattr(logger, "propagate", False)
        logger.addHandler(recorder)
        try:
            use(second, keys[1])
        finally:
            logger.removeHandler(recorder)
    assert not compiled


@two_laws_quick
@sampler_quick
def test_sample_shapes_and_keys(name, sampler):
    law = LAWS[name](sampler=sampler)
    for key in (random.key(0), random.PRNGKey(0)):
        draws = law.sample(key, (3, 2))
        assert draws.shape == (3, 2, *law.event_shape)
        assert draws.dtype == jnp.int32
        assert law.support(draws).all()
    assert (law.sample(random.key(1)) == law.sample(random.PRNGKey(1))).all()
    with pytest.raises(NotImplementedError):
        law.rsample(random.key(0))


def test_batch_shapes_broadcast():
    parts = (np.zeros(shape) for shape in ((3, 1, 6, 2), (2, 6, 3), (3, 3)))
    V, B, D = parts
    assert (NDPP(V, B, D).batch_shape, NDPP(V, B, D).event_shape) == ((3, 2), (5,))
    assert (KNDPP(V, B, D, 4).batch_shape, KNDPP(V, B, D, 4).event_shape) == ((3, 2), (4,))
    of_factors = NDPP.from_factors(np.zeros((4, 6, 5)), np.eye(5))
    assert (of_factors.batch_shape, of_factors.event_shape) == ((4,), (5,))


@pytest.mark.parametrize(
    ("axes", "k"),
    [
        pytest.param(axes, k, marks=[] if (k is None) == (len(axes) == 3) else pytest.mark.slow)
        for axes in ({"V": 0}, {"D": 0}, {"V": 0, "B": 0, "D": 0})
        for k in (None, 2)
    ],
)
def test_vmap_over_some_parameters(axes, k):
    parts = {"V": V, "B": B, "D": D}
    batched = {name: jnp.stack([part, 2 * part, -part]) if name in axes else part for name, part in parts.items()}

    def make(V, B, D):
        return NDPP(V, B, D) if k is None else KNDPP(V, B, D, k)

    expected = [make(**{n: p[i] if n in axes else p for n, p in batched.items()}).log_prob(BASKETS) for i in range(3)]
    law = jax.vmap(make, in_axes=[axes.get(n) for n in "VBD"], out_axes=vmap_over(make(V, B, D), **axes))(
        *(batched[n] for n in "VBD")
    )
    mapped = jax.vmap(lambda law: law.log_prob(BASKETS), in_axes=(vmap_over(law, **axes),))(law)
    np.testing.assert_allclose(mapped, expected, rtol=1e-10)
    promoted = promote_batch_shape(law)
    assert promoted.batch_shape == (3,)
    np.testing.assert_allclose(promoted.log_prob(BASKETS[:, None]).T, expected, rtol=1e-10)
    view = jax.vmap(lambda law: law.multihot().mean, in_axes=(vmap_over(law, **axes),))(law)
    assert view.shape == (3, N_ITEMS)
    many = vmap_over(law.multihot(), **axes)
    assert jax.vmap(lambda m: m.mean, in_axes=(many,))(law.multihot()).shape == (3, N_ITEMS)


@two_laws_quick
@sampler_quick
def test_expand_to_event_and_mask(name, sampler):
    law = LAWS[name](sampler=sampler)
    expanded = law.expand([5])
    assert expanded.batch_shape == (5,)
    assert expanded.sample(random.key(0), (2,)).shape == (2, 5, *law.event_shape)
    np.testing.assert_allclose(expanded.log_prob(BASKETS), law.log_prob(BASKETS))
    assert expanded.to_event(1).log_prob(BASKETS).shape == ()
    mask = np.array([True, False, True, False, True])
    masked = law.mask(mask).log_prob(BASKETS)
    np.testing.assert_allclose(masked, np.where(mask, law.log_prob(BASKETS), 0.0))


def test_masked_rows_have_no_gradient():
    junk = BASKETS.copy()
    junk[1] = -1
    mask = np.array([True, False, True, False, True])

    def total(V, make):
        return make(V).mask(mask).log_prob(junk).sum()

    # feasible_like names items 0 and 1; here these have probability zero.
    dead = V.copy()
    dead[:2] = 0.0
    for make in (lambda V: NDPP(V, B * 0, D), lambda V: KNDPP(V, B * 0, D, 2, validate_args=False)):
        gradient = jax.jit(jax.grad(total), static_argnums=1)(dead, make)
        assert np.isfinite(gradient).all()


@sampler_quick
@pytest.mark.parametrize("multihot", [False, True])
def test_plate_with_subsampling_in_a_model(multihot, sampler):
    data = jnp.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 1, 0]])
    # Within a model NumPyro wants the event's own width.
    data = data if multihot else pad_subsets([[0, 1], [2], [], [0, 3, 5]], N_ITEMS, 4)

    def model(data, size=None):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        law = NDPP(scale * V, B, D, sampler=sampler)
        with numpyro.plate("baskets", len(data), subsample_size=size) as index:
            numpyro.sample("basket", law.multihot() if multihot else law, obs=data[index])

    whole, trace = log_density(model, (data,), {}, {"scale": 1.3})
    law = NDPP(1.3 * V, B, D)
    expected = (law.multihot() if multihot else law).log_prob(data).sum() + dist.LogNormal(0.0, 1.0).log_prob(1.3)
    np.testing.assert_allclose(whole, expected, rtol=1e-10)
    assert trace["basket"]["fn"].batch_shape == (len(data),)
    with handlers.seed(rng_seed=0), handlers.substitute(data={"scale": 1.3}):
        part, _ = log_density(model, (data, 2), {}, {"scale": 1.3})
    assert np.isfinite(part)
    draws = handlers.seed(model, 0)
    predicted = handlers.trace(handlers.uncondition(draws)).get_trace(data)["basket"]["value"]
    assert predicted.shape == data.shape[:1] + ((N_ITEMS,) if multihot else (4,))


def test_scan_over_baskets():
    def model(data):
        def step(carry, basket):
            numpyro.sample("basket", KNDPP(carry * V, B, D, 2), obs=basket)
            return carry * 1.1, None

        scan(step, 1.0, data)

    total, _ = log_density(model, (BASKETS,), {}, {})
    expected = sum(KNDPP(1.1**i * V, B, D, 2).log_prob(basket) for i, basket in enumerate(BASKETS))
    np.testing.assert_allclose(total, expected, rtol=1e-10)


@sampler_quick
def test_no_tracer_leaks(sampler):
    with jax.checking_leaks():
        law = LAWS["KNDPP"](sampler=sampler)

        @jax.jit
        def use(law, key):
            probs = law.inclusion_probs().sum() + law.log_normalizer
            return probs + law.log_prob(law.sample(key)) + law.size_log_prob()[2]

        use(law, random.key(0))
        law.log_prob(BASKETS)


@sampler_quick
def test_batched_laws_inside_vmap_of_sample(sampler):
    keys = random.split(random.key(0), 3)

    def draw(V, key):
        return NDPP(V, B, D, sampler=sampler, validate_args=False).sample(key)

    draws = jax.jit(jax.vmap(draw))(np.stack([V] * 3), keys)
    assert draws.shape == (3, 4)


@two_laws_quick
@sampler_quick
def test_without_64_bits(name, sampler, without_x64):
    law = LAWS[name](sampler=sampler)
    assert law.log_prob(BASKETS).dtype == jnp.float32
    with jax.enable_x64(True):
        double = LAWS[name]()
        expected = double.log_prob(BASKETS)
        inclusion = double.inclusion_probs()
    np.testing.assert_allclose(law.log_prob(np.asarray(BASKETS)), expected, rtol=1e-4)
    np.testing.assert_allclose(law.inclusion_probs(), inclusion, rtol=1e-4)
    assert law.sample(random.key(0), (3,)).dtype == jnp.int32
    assert (
        jax.grad(lambda V: NDPP(V, B, D).log_prob(np.asarray(BASKETS)).sum())(V.astype(np.float32)).dtype == jnp.float32
    )


def test_lists_and_integers_are_accepted_as_parameters():
    law = NDPP([[1, 0], [0, 1]], [[0], [0]], [[0]])
    np.testing.assert_allclose(law.inclusion_probs(), [0.5, 0.5])


def test_repr_and_discreteness():
    law = KNDPP(V, B, D, 2)
    assert "event shape (2,)" in repr(law)
    assert law.is_discrete
    assert not law.has_enumerate_support
    assert partial(NDPP, V, B)(D).num_items == N_ITEMS


def test_mixture_of_one_family():
    """The support depends on static numbers only, so that NumPyro takes kernels as components."""
    V, B, D = (np.stack([np.asarray(part), 0.5 * np.asarray(part)]) for part in PARTS["ordinary"])
    components = KNDPP(V, B, D, 3, sampler=Cholesky())
    weights = np.array([0.3, 0.7])
    mixture = dist.MixtureSameFamily(dist.Categorical(probs=weights), components)
    subsets = np.array([[0, 1, 2], [3, 5, 8]])
    log_probs = np.asarray(components.log_prob(subsets[:, None]))
    np.testing.assert_allclose(mixture.log_prob(subsets), np.log(np.exp(log_probs) @ weights), rtol=1e-10)
    draws = mixture.sample(random.key(0), (5,))
    assert mixture.support(draws).all()
