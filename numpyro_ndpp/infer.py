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

A site in a plate has one subset for each member g. Their priors are independent. If the likelihood is a product of
factors that depend on one subset each, all are moved side by side, and each is accepted by its own factor,

.. math:: \text{likelihood}(S_1, \dots, S_m) = c \prod_g f_g(S_g) .

That this is so is proved from what JAX traces of the model (:mod:`numpyro_ndpp.separation`): to be in the same plate is
no proof. Where the proof fails the subsets are moved one after the other, each by the whole likelihood. Both are right.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, dtypes, lax, random
from numpyro import handlers
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import compute_log_probs
from numpyro.util import not_jax_tracer

from numpyro_ndpp.checks import finite_float, static_int
from numpyro_ndpp.latent import LatentSubsets, Propose
from numpyro_ndpp.samplers import UpDown
from numpyro_ndpp.separation import separated

__all__ = ["SubsetGibbs", "SubsetGibbsState"]

Values = dict[str, Array]


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
        A site in plates, or with a batch of kernels, has several subsets: values of shape (plates..., width).
    :param num_moves: how many moves an update proposes for every subset. Each evaluates the model once.
    :param fresh: the share of moves that propose a fresh draw from the prior. Its own sampler draws, and must be exact.
    :raises ValueError: for ``num_moves`` and ``fresh`` out of range. When a chain is set up, also for a site that is
        missing, observed, scaled (as in a plate that subsamples), masked, or no distribution of subsets, for fresh
        draws of an approximate sampler, and for a start that is no value of its site.

    Integrate weights out where you can. A subset that is updated beside sampled weights can hardly move: those that
    enter have weights that fit the data, and those outside have weights of the prior. With 15 covariates, some of them
    nearly copies of others, chains with sampled weights disagreed (R-hat 3.4). ``examples/variable_selection.py`` has
    both models.

    The subsets of a plate are updated side by side, ``num_moves`` evaluations of the model an update, where each has a
    likelihood of its own: sites in the same plate, as a rule. If a site joins them, or the likelihoods cannot be told
    apart, they are updated one after the other, ``num_moves`` evaluations for each. Write the likelihood along the
    plate: ``to_multihot(S, n)`` and sums over items keep subsets apart; indices such as ``S[group]`` do not.

    The state has an extra field, ``accept_prob``, the mean acceptance probability of an update over all moves and
    subsets: ``block_states.0.accept_prob`` if this is the first block. ``chain_method=jax.vmap`` runs chains side by
    side; NumPyro's ``Gibbs`` and ``HMCGibbs`` refuse "vectorized".

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

    One subset for each of three groups, updated side by side:

    >>> def grouped(seen):
    ...     with numpyro.plate("groups", 3):
    ...         chosen = numpyro.sample("chosen", NDPP(jnp.eye(4), jnp.zeros((4, 1)), jnp.zeros((1, 1))))
    ...         numpyro.sample("seen", dist.Normal(to_multihot(chosen, 4), 0.5).to_event(1), obs=seen)
    >>> update = SubsetGibbs(grouped, "chosen").gibbs_fn(jnp.ones((3, 4)))
    >>> empty = jnp.full((3, 4), 4)
    >>> update(rng_key=random.key(2), gibbs_sites={"chosen": empty}, hmc_sites={})["chosen"].shape
    (3, 4)
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
        latent = self._latent(rng_key, model_args, model_kwargs)
        if not init_params or set(init_params) != set(self.sites):
            given = sorted(init_params or {})
            raise ValueError(f"SubsetGibbs starts at values of its sites {list(self.sites)}, got {given}")
        values = {}
        for name in self.sites:
            subsets, value = latent[name], jnp.asarray(init_params[name], jnp.int32)
            if value.shape != subsets.shape:
                raise ValueError(f"site {name!r} must start at a value of shape {subsets.shape}, got {value.shape}")
            if not_jax_tracer(value) and not bool(subsets.contain(value)):
                raise ValueError(f"site {name!r} cannot start at {value.tolist()}, which is none of its values")
            values[name] = value
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

        :raises ValueError: for a site that is missing, observed, scaled, masked, or no distribution of subsets.
        """
        self._latent(random.key(0), model_args, model_kwargs)

        def update(rng_key: Array, gibbs_sites: Values, hmc_sites: Values) -> Values:
            values = {name: gibbs_sites[name] for name in self.sites}
            others = {name: value for name, value in gibbs_sites.items() if name not in self.sites}
            return self._update(rng_key, values, {**hmc_sites, **others}, model_args, model_kwargs)[0]

        return update

    # --- What both do ------------------------------------------------------------------------------------------------

    def _latent(self, key: Array, args: tuple, kwargs: dict | None) -> dict[str, LatentSubsets]:
        """What stands at the sites, from a trace of the model."""
        trace = handlers.trace(handlers.seed(self._model, key)).get_trace(*args, **(kwargs or {}))
        return {name: self._latent_at(trace, name) for name in self.sites}

    def _latent_at(self, trace: dict[str, Any], name: str) -> LatentSubsets:
        latent = [key for key, site in trace.items() if site["type"] == "sample" and not site["is_observed"]]
        site = trace.get(name)
        if site is None or site["type"] != "sample":
            raise ValueError(f"site {name!r} is not in the model; its latent sites are {latent}")
        if site["is_observed"]:
            raise ValueError(f"site {name!r} is observed; latent sites are {latent}")
        if site["scale"] is not None:
            raise ValueError(
                f"site {name!r} is scaled by {site['scale']}, as subsampling in a plate does; SubsetGibbs draws from "
                "its distribution as it is"
            )
        subsets = LatentSubsets.of(site["fn"])
        if subsets is None:
            raise ValueError(
                f"site {name!r} has a {type(site['fn']).__name__}; SubsetGibbs updates an NDPP or KNDPP, its multihot "
                "view, or a batch of them, neither masked nor made one event by to_event"
            )
        if self.fresh and isinstance(subsets.base.sampler, UpDown):
            raise ValueError(
                f"fresh draws must be exact, but site {name!r} has the sampler {subsets.base.sampler}; take Exact()"
            )
        return subsets

    def _update(
        self, key: Array, values: Values, others: Values, args: tuple, kwargs: dict | None
    ) -> tuple[Values, Array]:
        """New values of all sites, and the mean probability of acceptance."""
        kwargs = kwargs or {}
        if not jnp.issubdtype(key.dtype, dtypes.prng_key):
            key = random.wrap_key_data(key)
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
        trace = handlers.trace(handlers.substitute(model, values)).get_trace(*args, **kwargs)
        latent = self._latent_at(trace, name)
        proposals = latent.proposals(self.fresh)
        subsets = latent.items(start).astype(jnp.int32).reshape(latent.number, -1)

        def log_probs(subsets: Array) -> Values:
            substituted = {**values, name: latent.value(subsets).astype(start.dtype)}
            of_sites, _ = compute_log_probs(model, args, kwargs, substituted, sum_log_prob=False)
            # The prior's own is not used; once this is compiled, it is not computed either.
            return {site: jnp.asarray(value) for site, value in of_sites.items() if site != name}

        def total(subsets: Array) -> Array:
            return sum(map(jnp.sum, log_probs(subsets).values()), jnp.zeros(()))

        def update_one(subsets: Array, number: Array | int) -> tuple[Array, Array]:
            def total_with(subset: Array) -> Array:
                return total(subsets.at[number].set(subset))

            one_key = random.fold_in(key, number)
            subset, accept_prob = self._moves(one_key, subsets[number], proposals.for_one(number), total_with)
            return subsets.at[number].set(subset), accept_prob

        own = None
        if latent.number > 1:
            own = separated(log_probs, subsets.reshape(*latent.batch_shape, -1), len(latent.batch_shape))
        if own is not None:
            subsets, accept_prob = self._moves(key, subsets, proposals.for_all(), own)
        elif latent.number == 1:
            subsets, accept_prob = update_one(subsets, 0)
        else:
            subsets, accept_prob = lax.scan(update_one, subsets, jnp.arange(latent.number))
        return latent.value(subsets).astype(start.dtype), jnp.mean(accept_prob)

    def _moves(
        self, key: Array, subset: Array, propose: Propose, log_likelihood: Callable[[Array], Array]
    ) -> tuple[Array, Array]:
        """A subset (w,) after its moves, or several (m, w), and the mean acceptance probability of each.

        :param log_likelihood: what decides about each subset: () or (m,). NaN is impossible: any other is better.
        """

        def likelihood_of(subset: Array) -> Array:
            value = log_likelihood(subset)
            return jnp.where(jnp.isnan(value), -jnp.inf, value)

        def move(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            subset, current, total = carry
            propose_key, accept_key = random.split(random.fold_in(key, number))
            proposed, log_ratio = propose(propose_key, subset)
            proposed_likelihood = likelihood_of(proposed)
            # From one impossible subset to another the chain goes as the prior does, until it is out of there.
            gain = jnp.where(proposed_likelihood == current, 0.0, proposed_likelihood - current)
            log_accept = jnp.where(log_ratio > -jnp.inf, gain + log_ratio, -jnp.inf)
            accept_prob = jnp.exp(jnp.minimum(log_accept, 0.0)).astype(total.dtype)
            accepted = random.uniform(accept_key, accept_prob.shape) < accept_prob
            subset = jnp.where(accepted[..., None], proposed, subset)
            return subset, jnp.where(accepted, proposed_likelihood, current), total + accept_prob

        current = likelihood_of(subset)
        carry = (subset, current, jnp.zeros_like(current))
        subset, _, total = lax.fori_loop(0, self.num_moves, move, carry)
        return subset, total / self.num_moves
