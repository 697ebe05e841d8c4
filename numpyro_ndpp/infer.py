r"""Latent subsets in MCMC: a Gibbs block that updates NDPP and KNDPP sites, beside NUTS on the continuous ones.

Given all other sites, a subset has the law p(S) ∝ prior(S) · likelihood(S), where the likelihood is whatever else in
the model depends on S. The sampler of the prior makes the proposal: items are dropped uniformly, and others, as many or
fewer or more, are drawn from the prior to join the rest. The prior then cancels, but for sums that the draw has
computed already (:func:`numpyro_ndpp.samplers.moves.move`). The move is accepted with probability

.. math:: \min\left(1, \frac{\text{likelihood}(S')}{\text{likelihood}(S)}
          \frac{\binom{|S|}{r} Z_s(A)}{\binom{|S'|}{s} Z_r(A)}\right), \qquad Z_s(A) = \sum_{|T|=s} \det L_{A∪T} ,

where r items are dropped, A is left, and s are added. If the size stays, this is the likelihood ratio alone. No prior
probability is evaluated. The prior comes from the model's own trace, so its kernel may depend on other sites.

If the size is fixed, two items are exchanged at a time. If it varies, one of three kinds of moves is chosen at random:
one item more or less, two items more or less (skew kernels have no single ones), one or two exchanged.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from numpyro import handlers
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import compute_log_probs
from numpyro.util import not_jax_tracer

from numpyro_ndpp.base import SubsetDistribution
from numpyro_ndpp.checks import finite_float, static_int
from numpyro_ndpp.multihot import Multihot
from numpyro_ndpp.samplers import UpDown
from numpyro_ndpp.samplers.moves import move
from numpyro_ndpp.samplers.walk import Walk
from numpyro_ndpp.subsets import items_of_mask, to_multihot

__all__ = ["SubsetGibbs", "SubsetGibbsState"]

Values = dict[str, Array]


_walk_for_moves = jax.jit(UpDown().for_moves)

# Items dropped and added: one more, one less, two more, two less, two exchanged, one exchanged.
_DROPPED, _ADDED = (0, 1, 0, 2, 2, 1), (1, 0, 2, 0, 2, 1)


def local_move(dist: SubsetDistribution, walk: Walk, key: Array, subset: Array) -> tuple[Array, Array]:
    """A subset (w,) near another one, and the log of the Hastings ratio; the same subset and -inf if there is none."""
    kind_key, key = random.split(key)
    if dist.min_size == dist.max_size:
        dropped = added = jnp.asarray(min(2, dist.max_size))
    else:
        kind = random.randint(kind_key, (), 0, len(_DROPPED))
        dropped, added = jnp.array(_DROPPED)[kind], jnp.array(_ADDED)[kind]
    proposed, log_ratio = move(walk, key, subset, dropped, added)
    inside = dist.contains(proposed)
    return jnp.where(inside, proposed, subset), jnp.where(inside, log_ratio, -jnp.inf)


def _as_items(dist: SubsetDistribution | Multihot, value: Array) -> tuple[SubsetDistribution, Array]:
    """The distribution of padded items behind ``dist``, and the value as such items; -1 throughout if it is none."""
    if isinstance(dist, Multihot):
        return dist.base_dist, items_of_mask(value, dist.base_dist.max_size)
    return dist, value


class SubsetGibbsState(NamedTuple):
    """The subsets, by site, and the mean acceptance probability of moves: in the last update, and since warm-up."""

    z: Values
    accept_prob: Array
    mean_accept_prob: Array
    i: Array
    rng_key: Array


class SubsetGibbs(MCMCKernel):
    """Updates latent subsets in MCMC: a block of NumPyro's ``Gibbs``, or a ``gibbs_fn`` for ``HMCGibbs``.

    :param model: the model, the same one that the other blocks have.
    :param site: the name of a latent site with an NDPP or KNDPP, conditioned or as a multihot view; or several names.
    :param num_moves: how many moves an update proposes for every subset. Each evaluates the model once.
    :param fresh: the share of moves that propose a fresh draw from the prior. Its own sampler draws, and must be exact.
    :raises ValueError: for ``num_moves`` and ``fresh`` out of range. When a chain is set up, also for a site that is
        missing, observed, in a plate, or no distribution of subsets, and for fresh draws of an approximate sampler.

    The state has an extra field, ``accept_prob``, the mean acceptance probability of an update:
    ``block_states.0.accept_prob`` if this is the first block. ``chain_method=jax.vmap`` runs chains side by side.

    >>> import jax.numpy as jnp
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from jax import random
    >>> from numpyro.infer import MCMC, NUTS, HMCGibbs
    >>> from numpyro_ndpp import NDPP, SubsetGibbs, to_multihot
    >>> def model(features, y):
    ...     chosen = numpyro.sample("chosen", NDPP(features.T, jnp.zeros((4, 1)), jnp.zeros((1, 1))))
    ...     weights = numpyro.sample("weights", dist.Normal(0, 1).expand([4]).to_event(1))
    ...     numpyro.sample("y", dist.Normal(features @ (weights * to_multihot(chosen, 4)), 0.5), obs=y)
    >>> features = random.normal(random.key(0), (20, 4))
    >>> data = (features, features[:, 1])
    >>> kernel = HMCGibbs(NUTS(model), SubsetGibbs(model, "chosen").gibbs_fn(*data), ["chosen"])
    >>> mcmc = MCMC(kernel, num_warmup=20, num_samples=20, progress_bar=False)
    >>> mcmc.run(random.key(1), *data)
    >>> mcmc.get_samples()["chosen"].shape
    (20, 4)

    As a block, the kernel is ``Gibbs([(SubsetGibbs(model, "chosen"), ["chosen"]), (NUTS(model), None)])``.
    """

    sample_field = "z"

    def __init__(
        self, model: Callable[..., Any], site: str | Sequence[str], *, num_moves: int = 10, fresh: float = 0.0
    ) -> None:
        if not callable(model):
            raise ValueError(f"model must be a function, got {model!r}")
        self.sites = (site,) if isinstance(site, str) else tuple(site)
        if not self.sites or not all(isinstance(name, str) for name in self.sites):
            raise ValueError(f"site must be the name of a site or several of them, got {site!r}")
        self.num_moves = static_int("num_moves", num_moves, 1)
        self.fresh = finite_float("fresh", fresh, 0, 1)
        self._model = model
        self._num_warmup = 0

    @property
    def model(self) -> Callable[..., Any]:
        """The model."""
        return self._model

    # --- As a block of Gibbs -----------------------------------------------------------------------------------------

    def init(
        self, rng_key: Array, num_warmup: int, init_params: Values | None, model_args: tuple, model_kwargs: dict | None
    ) -> SubsetGibbsState:
        """The state at the values that the composite kernel has drawn from the prior."""
        self._num_warmup = num_warmup
        distributions = self._distributions(rng_key, model_args, model_kwargs)
        if not init_params or set(init_params) != set(self.sites):
            given = sorted(init_params or {})
            raise ValueError(f"SubsetGibbs starts at values of its sites {list(self.sites)}, got {given}")
        values = {}
        for name in self.sites:
            values[name] = jnp.asarray(init_params[name], jnp.int32)
            base, items = _as_items(distributions[name], values[name])
            if not_jax_tracer(items) and not bool(base.contains(items)):
                raise ValueError(f"site {name!r} cannot start at {values[name].tolist()}, which is none of its values")
        zero = jnp.zeros(())
        return SubsetGibbsState(values, zero, zero, jnp.asarray(0), rng_key)

    def sample(self, state: SubsetGibbsState, model_args: tuple, model_kwargs: dict | None) -> SubsetGibbsState:
        """The state after an update of every site."""
        rng_key, key = random.split(state.rng_key)
        values, accept_prob = self._update(key, state.z, {}, model_args, model_kwargs)
        i = state.i + 1
        number = jnp.where(i > self._num_warmup, i - self._num_warmup, i)  # the mean begins anew after warm-up
        mean = state.mean_accept_prob + (accept_prob - state.mean_accept_prob) / number
        dtype = state.accept_prob.dtype
        return SubsetGibbsState(values, accept_prob.astype(dtype), mean.astype(dtype), i, rng_key)

    def refresh(self, state: SubsetGibbsState, model_args: tuple, model_kwargs: dict | None) -> SubsetGibbsState:
        """The state itself: nothing in it depends on the other sites."""
        return state

    def wrap_model(self, wrapper: Callable) -> "SubsetGibbs":
        """The same block on a wrapped model."""
        wrapped = copy.copy(self)
        wrapped._model = wrapper(self._model)
        return wrapped

    def get_constrain_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable[[Values], Values]:
        """The identity: subsets are their own values."""
        return lambda values: values

    def get_diagnostics_str(self, state: SubsetGibbsState) -> str:
        return f"acc. prob of subsets={state.mean_accept_prob:.2f}"

    # --- For HMCGibbs ------------------------------------------------------------------------------------------------

    def gibbs_fn(self, *model_args: Any, **model_kwargs: Any) -> Callable[..., Values]:
        """The update as a function for ``HMCGibbs``. That does not hand on the data: give the model's arguments here.

        :raises ValueError: for a site that is missing, observed, in a plate, or no distribution of subsets.
        """
        self._distributions(random.key(0), model_args, model_kwargs)

        def update(rng_key: Array, gibbs_sites: Values, hmc_sites: Values) -> Values:
            values = {name: gibbs_sites[name] for name in self.sites}
            others = {name: value for name, value in gibbs_sites.items() if name not in self.sites}
            return self._update(rng_key, values, {**hmc_sites, **others}, model_args, model_kwargs)[0]

        return update

    # --- What both do ------------------------------------------------------------------------------------------------

    def _distributions(self, key: Array, args: tuple, kwargs: dict | None) -> dict[str, Any]:
        """The distributions of the sites, from a trace of the model."""
        trace = handlers.trace(handlers.seed(self._model, key)).get_trace(*args, **(kwargs or {}))
        return {name: self._distribution(trace, name) for name in self.sites}

    def _distribution(self, trace: dict[str, Any], name: str) -> Any:
        latent = [key for key, site in trace.items() if site["type"] == "sample" and not site["is_observed"]]
        site = trace.get(name)
        if site is None or site["type"] != "sample":
            raise ValueError(f"site {name!r} is not in the model; its latent sites are {latent}")
        if site["is_observed"]:
            raise ValueError(f"site {name!r} is observed; latent sites are {latent}")
        if site["cond_indep_stack"]:
            plates = [frame.name for frame in site["cond_indep_stack"]]
            raise ValueError(
                f"site {name!r} is in the plate {plates[0]!r}: SubsetGibbs updates one subset for each site; give "
                "every subset a site of its own"
            )
        if site["scale"] is not None:
            raise ValueError(f"site {name!r} is scaled: SubsetGibbs draws from its distribution as it is")
        dist = site["fn"]
        base = dist.base_dist if isinstance(dist, Multihot) else dist
        if not isinstance(base, SubsetDistribution) or base.batch_shape:
            raise ValueError(
                f"site {name!r} has a {type(dist).__name__}; SubsetGibbs updates an NDPP or KNDPP without batch "
                "dimensions"
            )
        if self.fresh and isinstance(base.sampler, UpDown):
            raise ValueError(
                f"fresh draws must be exact, but site {name!r} has the sampler {base.sampler}; take Exact()"
            )
        return dist

    def _update(
        self, key: Array, values: Values, others: Values, args: tuple, kwargs: dict | None
    ) -> tuple[Values, Array]:
        """New values of all sites, and the mean probability of acceptance."""
        kwargs = kwargs or {}
        model = handlers.substitute(handlers.condition(self._model, others), others) if others else self._model
        model = handlers.seed(model, random.key(0))  # nothing is drawn: every site has its value
        accept_probs = []
        for name in self.sites:
            key, site_key = random.split(key)
            value, accept_prob = self._update_site(site_key, name, values, model, args, kwargs)
            values = {**values, name: value}
            accept_probs.append(accept_prob)
        return values, jnp.mean(jnp.stack(accept_probs))

    def _update_site(
        self, key: Array, name: str, values: Values, model: Callable, args: tuple, kwargs: dict
    ) -> tuple[Array, Array]:
        start = values[name]
        dist = self._distribution(handlers.trace(handlers.substitute(model, values)).get_trace(*args, **kwargs), name)
        base, items = _as_items(dist, start)
        n = base.num_items

        def as_value(subset: Array) -> Array:
            return (to_multihot(subset, n) if dist is not base else subset).astype(start.dtype)

        def log_likelihood(subset: Array) -> Array:
            substituted = {**values, name: as_value(subset)}
            log_probs, _ = compute_log_probs(model, args, kwargs, substituted)
            # The prior's own is not used; once this is compiled, it is not computed either.
            total = sum((value for site, value in log_probs.items() if site != name), jnp.zeros(()))
            return jnp.where(jnp.isnan(total), -jnp.inf, total)  # any other subset is better

        walk, _ = base.once_where_known(lambda: _walk_for_moves(lax.stop_gradient(base.target)))
        # Once in an update, not in every move: the kernel may depend on other sites.
        propose = self._proposal(base.prepare() if self.fresh else base, walk)

        def move(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            subset, current, total = carry
            propose_key, accept_key = random.split(random.fold_in(key, number))
            proposed, log_ratio = propose(propose_key, subset)
            proposed_likelihood = log_likelihood(proposed)
            log_accept = jnp.where(log_ratio > -jnp.inf, proposed_likelihood - current + log_ratio, -jnp.inf)
            accept_prob = jnp.exp(jnp.minimum(jnp.where(jnp.isnan(log_accept), -jnp.inf, log_accept), 0.0))
            accepted = random.uniform(accept_key) < accept_prob
            subset = jnp.where(accepted, proposed, subset)
            return subset, jnp.where(accepted, proposed_likelihood, current), total + accept_prob

        subset = items.astype(jnp.int32)
        current = log_likelihood(subset)
        carry = (subset, current, jnp.zeros((), current.dtype))
        subset, _, total = lax.fori_loop(0, self.num_moves, move, carry)
        return as_value(subset), total / self.num_moves

    def _proposal(self, base: SubsetDistribution, walk: Walk) -> Callable[[Array, Array], tuple[Array, Array]]:
        """``propose(key, subset)``: another subset, and the log of the Hastings ratio under the prior."""
        local = partial(local_move, base, walk)

        def fresh(key: Array, subset: Array) -> tuple[Array, Array]:
            drawn = base.sample(key).astype(subset.dtype)
            made = jnp.all(drawn >= 0)
            return jnp.where(made, drawn, subset), jnp.where(made, 0.0, -jnp.inf).astype(base.X.dtype)

        if base.max_size == 0:
            return lambda key, subset: (subset, jnp.zeros((), base.X.dtype))
        if self.fresh == 0:
            return local

        def mixed(key: Array, subset: Array) -> tuple[Array, Array]:
            choice_key, key = random.split(key)
            choice = random.uniform(choice_key) < self.fresh
            return lax.cond(choice, fresh, local, key, subset)

        return mixed
