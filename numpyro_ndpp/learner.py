"""The steps behind :func:`numpyro_ndpp.learning.fit`: models, their starts and data, SVI on minibatches, evaluations.

Fits of one model, shape and batch size share their compiled programs: all that differs between them is an argument.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, lax, random
from jax.sharding import Mesh
from jax.typing import ArrayLike
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.reparam import TransformReparam
from numpyro.infer.svi import SVIState
from numpyro.infer.util import transform_fn

from numpyro_ndpp.distributions import NDPP
from numpyro_ndpp.features import counts_with_cold, feature_sites, feature_start
from numpyro_ndpp.item_arrays import ItemArrays
from numpyro_ndpp.priors import (
    basket_model,
    counts_of_padded,
    directions,
    log_expected_proposals,
    ndpp_prior,
    ondpp_prior,
    sized_prior,
    symmetric_prior,
)
from numpyro_ndpp.programs import FOR_GPU
from numpyro_ndpp.sized import SizedNDPP


def _start_ndpp(key: Array, V: Array, num_skew: int) -> dict[str, Array]:
    B_key, D_key = random.split(key)
    B = _START_SKEW * directions(B_key, len(V), num_skew)  # a little, to link items that V has about independent
    return {"V_base": V, "B_base": B, "D": random.normal(D_key, (num_skew, num_skew), jnp.float32)}


def _start_symmetric(key: Array, V: Array, num_skew: int) -> dict[str, Array]:
    return {"V_base": V}


def _start_ondpp(key: Array, V: Array, num_skew: int) -> dict[str, Array]:
    sigma = jnp.full(num_skew // 2, _START_SKEW, jnp.float32)
    return {"V_raw": V, "B_raw": directions(key, len(V), num_skew), "sigma": sigma}


class _Kind(NamedTuple):
    prior: Callable[..., NDPP | SizedNDPP]
    start: Callable[[Array, Array, int], dict[str, Array]]
    """From a key, the features V to start from, and the columns of B."""
    sites: tuple[str, ...]
    strengths: dict[str, float]
    """The strengths that the model has, with values that do well."""
    rows: tuple[str, ...] = ()
    """The sites whose rows may be functions of features."""


_START_SKEW = 0.3
# V starts from the centre of its prior, but no nearer to zero than this: at zero no gradient leads away.
_SHORTEST_START = 0.5
_LOC = "_loc"
FEATURE_STRENGTH = "feature_strength"
MODELS = {
    "ndpp": _Kind(ndpp_prior, _start_ndpp, ("V_base", "B_base", "D"), {"alpha": 50.0, "beta": 30.0}, ("V", "B")),
    "ondpp": _Kind(ondpp_prior, _start_ondpp, ("V_raw", "B_raw", "sigma"), {"alpha": 50.0, "beta": 0.01, "gamma": 0.5}),
    "sized": _Kind(sized_prior, _start_ndpp, ("V_base", "B_base", "D"), {"alpha": 50.0, "beta": 30.0}),
    "symmetric": _Kind(symmetric_prior, _start_symmetric, ("V_base",), {"alpha": 10.0}, ("V",)),
}
# Adam moves features of one scale, whatever the counts of their items.
_ONE_SCALE = {name: TransformReparam() for name in ("V", "B", "V_map", "B_map")}


def _keys(seed: int) -> Array:
    """Three keys: of V's directions, of the rest of the start, of the minibatches."""
    return random.split(random.key(seed), 3)


def training_data(
    settings: dict[str, Any], train: np.ndarray, mesh: Mesh | None = None, features: np.ndarray | None = None
) -> tuple[Array | None, ...]:
    """The model's arguments: baskets, how many hold each item, and what V's prior is centred on.

    With features (:func:`~numpyro_ndpp.features.as_features`) also these, the angles of B and the cold items.
    """
    num_items, length, columns = settings["num_items"], settings["anchor"], settings["rank"]
    arrays, keys = ItemArrays(num_items, mesh), _keys(settings["seed"])

    def directions_of_items() -> Array:
        # The directions are those that V starts from.
        return length * directions(keys[0], num_items, columns[0])

    anchor = arrays.make(directions_of_items) if length else None
    if features is None:
        return arrays.place(train), arrays.place(counts_of_padded(train, num_items)), anchor
    counts = np.bincount(train.ravel(), minlength=num_items + 1)[:num_items]
    cold = np.flatnonzero(counts == 0).astype(np.int32)
    angles = None
    if columns[1]:
        turns = random.uniform(random.fold_in(keys[1], 1), (num_items, columns[1] // 2), jnp.float32)
        angles = 2 * jnp.pi * turns
    counts = counts_with_cold(counts, features)
    return jnp.asarray(train), jnp.asarray(counts), anchor, jnp.asarray(features), angles, jnp.asarray(cold)


class _Programs:
    """The compiled steps, evaluations and kernels of SVI for one model, shape, batch size and smallest size.

    It holds no data: compiled methods and the object refer to one another, and memory is freed late.
    """

    def __init__(
        self,
        model: str,
        num_items: int,
        rank: tuple[int, int],
        batch_size: int,
        min_size: int,
        mesh: Mesh | None,
        has_features: bool,
    ) -> None:
        self._kind, self._num_items, self._rank, self._batch_size = MODELS[model], num_items, rank, batch_size
        self._min_size, self.arrays = min_size, ItemArrays(num_items, mesh)
        self._sites, self._strengths = self._kind.sites, tuple(self._kind.strengths)
        if has_features:
            self._sites += feature_sites(self._kind.rows)
            self._strengths += (FEATURE_STRENGTH,)
        # No timing of several ways to multiply: the process that goes on from a checkpoint must take the same way.
        options = {"xla_gpu_autotune_level": 0, **FOR_GPU} if jax.default_backend() == "gpu" else None
        keeping = self.arrays.keeping
        whole = partial(self.arrays.given_whole, shapes=partial(self.shapes, _keys(0), 1.0, known={}))
        self.start = jax.jit(self._first_state, compiler_options=options)
        self.advance = jax.jit(keeping(whole(self._many_steps)), donate_argnums=0, compiler_options=options)
        self.judge = jax.jit(whole(self._validation_and_price), compiler_options=options)
        self.kernel = jax.jit(keeping(whole(self._features)), compiler_options=options)

    def shapes(self, keys: Array, length: float, numbers: dict[str, Any], known: dict[str, Any]) -> SVIState:
        """The shapes of the state, as the model has them; nothing is computed."""
        return jax.eval_shape(self.start, keys, length, numbers, known)

    def _prior(self, numbers: dict[str, Any]) -> Callable[..., NDPP | SizedNDPP]:
        # In float32, as the features are.
        names = [*self._strengths, *(["size_logits"] if "size_logits" in numbers else [])]
        strengths = {name: jnp.asarray(numbers[name], jnp.float32) for name in names}
        return partial(self._kind.prior, rank=self._rank, **strengths)

    def _svi(self, numbers: dict[str, Any]) -> SVI:
        model = partial(_model, self._min_size, prior=self._prior(numbers), batch_size=self._batch_size)
        model = handlers.reparam(model, config=_ONE_SCALE)
        rate, num_steps = numbers["learning_rate"], numbers["num_steps"]
        adam = numpyro.optim.Adam(lambda step: rate * 0.5 * (1 + jnp.cos(jnp.pi * step / num_steps)))
        svi = SVI(partial(_at_point, model, self._sites), _no_guide, adam, Trace_ELBO())
        transforms = {name + _LOC: biject_to(_constraint(name)) for name in self._sites}
        svi.constrain_fn = partial(transform_fn, transforms)  # what svi.init does; but that runs the model
        return svi

    def _first_state(self, keys: Array, length: float, numbers: dict[str, Any], known: dict[str, Any]) -> SVIState:
        V = length * directions(keys[0], self._num_items, self._rank[0])
        values = self._kind.start(keys[1], V, self._rank[1])
        if known:
            values = feature_start(random.fold_in(keys[1], 2), values, **known)
        params = {name + _LOC: biject_to(_constraint(name)).inv(value) for name, value in values.items()}
        optim_state = self._svi(numbers).optim.init(params)
        # Strong types, as a state read from a checkpoint has: nothing is compiled again for it.
        optim_state = jax.tree.map(lambda x: lax.convert_element_type(x, x.dtype), optim_state)
        return SVIState(optim_state, None, keys[2])

    def _many_steps(self, state: Any, data: tuple[Any, ...], numbers: dict[str, Any], number: int) -> tuple[Any, Array]:
        svi = self._svi(numbers)

        def step(_: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
            state, loss = svi.update(carry[0], *data)
            return state, carry[1] + loss

        state, total = lax.fori_loop(0, number, step, (state, jnp.zeros(())))
        return state, total / number

    def _distribution(self, state: Any, data: tuple[Any, ...], numbers: dict[str, Any]) -> NDPP | SizedNDPP:
        values = {name.removesuffix(_LOC): value for name, value in self._svi(numbers).get_params(state).items()}
        baskets, counts, anchor, *known = data
        prior = partial(self._prior(numbers), counts, len(baskets), anchor=anchor)
        if known:  # the cold items are on sale now
            names = ("features", "angles") if "B" in self._kind.rows else ("features",)
            prior = partial(prior, **dict(zip(names, known, strict=False)))
        return handlers.seed(handlers.substitute(handlers.reparam(prior, config=_ONE_SCALE), values), random.key(0))()

    def _features(self, state: Any, data: tuple[Any, ...], numbers: dict[str, Any]) -> tuple[Array, Array, Array]:
        dist = self._distribution(state, data, numbers)
        return dist.V, dist.B, dist.D

    def _validation_and_price(
        self, state: Any, data: tuple[Any, ...], numbers: dict[str, Any], held_out: Array, log_max_proposals: Any
    ) -> tuple[Array, Array]:
        dist = self._distribution(state, data, numbers)
        value = dist.log_prob(held_out).mean() - _log_allowed(dist, self._min_size)
        if self._kind.prior is not ondpp_prior:
            return value, jnp.zeros(())
        log_proposals = log_expected_proposals(jnp.diagonal(dist.D, 1)[::2])
        if log_max_proposals is None:
            return value, numbers["gamma"] * log_proposals
        # Given that a subset is not empty, the ratio of the two normalisers is that of what they have beyond one.
        log_proposals += _log_allowed(dist, self._min_size, log_proposals) - _log_allowed(dist, self._min_size)
        return value, jnp.where(log_proposals > log_max_proposals, jnp.inf, 0.0)


_programs = lru_cache(maxsize=8)(_Programs)


class Learner:
    """SVI for the model of the settings: its steps, evaluations and kernels. It holds no data.

    :param size_logits: for model "sized", the logarithms of the probabilities of the sizes.
    :param mesh: the devices over whose axis "items" features and Adam's moments are; None: a single device.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        num_baskets: int,
        size_logits: np.ndarray | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        rank = tuple(settings["rank"])
        shape = settings["num_items"], rank, settings["batch_size"]
        # A free distribution of the size knows by itself that some have probability zero.
        min_size = 0 if size_logits is not None else settings.get("min_size", 0)
        self.programs = _programs(settings["model"], *shape, min_size, mesh, FEATURE_STRENGTH in settings)
        self.arrays = self.programs.arrays
        self._settings, self._num_baskets = settings, num_baskets
        names = (*MODELS[settings["model"]].strengths, "learning_rate", "num_steps", FEATURE_STRENGTH)
        self.numbers: dict[str, Any] = {name: float(settings[name]) for name in names if name in settings}
        if size_logits is not None:
            self.numbers["size_logits"] = size_logits
        most = settings.get("max_proposals")
        self._most = None if most is None else math.log(most)

    def start(self, data: tuple[Any, ...] = ()) -> SVIState:
        """The state before the first step; with features it depends on the data."""
        return self.arrays.make(lambda: self.programs.start(*self._origin(data)))

    def shapes(self, data: tuple[Any, ...] = ()) -> SVIState:
        """The shapes of the state; nothing is computed."""
        return self.programs.shapes(*self._origin(data))

    def _origin(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        anchor, known = self._settings["anchor"], {}
        if FEATURE_STRENGTH in self._settings:
            known = {"anchor": anchor, "F": data[3], "cold": data[5]}
        return _keys(self._settings["seed"]), max(anchor, _SHORTEST_START), self.numbers, known

    def advance(self, state: Any, data: tuple[Any, ...], number: int) -> tuple[Any, float]:
        """The state after ``number`` steps, in the memory of the given one, and the mean loss of a basket."""
        with self.arrays.context():
            state, loss = self.programs.advance(state, data, self.numbers, number)
        return state, float(loss) / self._num_baskets

    def judge(self, state: Any, data: tuple[Any, ...], held_out: np.ndarray) -> tuple[float, float]:
        """The mean log-likelihood of the held-out baskets, and the price of rejections."""
        with self.arrays.context():
            value, price = self.programs.judge(state, data, self.numbers, held_out, self._most)
        return float(value), float(price)

    def kernel(self, state: Any, data: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
        """V, B and D."""
        n, (d1, d2) = self._settings["num_items"], self._settings["rank"]
        with self.arrays.context():
            parts = self.programs.kernel(state, data, self.numbers)
        return tuple(map(self.arrays.fetch, parts, ((n, d1), (n, d2), (d2, d2))))


def _constraint(site: str) -> Any:
    return constraints.positive if site == "sigma" else constraints.real


def _log_allowed(dist: NDPP | SizedNDPP, min_size: int, log_ratio: ArrayLike = 0.0) -> Array:
    """log P(size ≥ min_size), for 0 or 1, of a distribution without limits whose normaliser is exp(log_ratio) larger.

    P(∅) = 1 / det(I + L): one logarithm more, for a scaled normaliser too, and finite for a kernel of zeros.
    """
    log_normalizer = dist.log_normalizer + log_ratio
    # A kernel of zeros, whose subsets are all empty, has a finite loss too.
    least = jnp.finfo(log_normalizer.dtype).tiny
    return jnp.log(-jnp.expm1(-jnp.maximum(log_normalizer, least))) if min_size else jnp.zeros((), log_normalizer.dtype)


def _model(min_size: int, baskets: Array, *data: Any, **settings: Any) -> None:
    """:func:`basket_model`, given that baskets have ``min_size`` items at least."""
    dist = basket_model(baskets, *data, **settings)
    if min_size:
        numpyro.factor("not_empty", -len(baskets) * _log_allowed(dist, min_size))


def _at_point(model: Callable[..., NDPP | SizedNDPP], sites: tuple[str, ...], *data: Any) -> None:
    """The model with a parameter in place of each site. The ELBO is then its log density, and the maximum the MAP.

    A guide of point masses says the same, but its densities need masks as large as the features.
    """
    values = {name: numpyro.param(name + _LOC, constraint=_constraint(name)) for name in sites}
    handlers.condition(model, values)(*data)


def _no_guide(*data: Any) -> None:
    """Nothing is latent."""
