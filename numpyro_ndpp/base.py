r"""What all laws of subsets have in common, whatever their parameters, and two views of them: conditioned and multihot.

A law is P(S) ∝ det L_S over the subsets of an allowed size that hold the items J, which are pinned (none, unless it was
conditioned). Its values are the other items, T = S∖J. A pinned law keeps its items rather than a conditional kernel,
which need not exist:

.. math:: \log P(T \mid J) = \log\det L_{J∪T} - \log\sum_{T'} \det L_{J∪T'} .

Everything is written for one kernel; batches of kernels and of subsets are dealt with here.
"""

import copy
import functools
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.batch_util import promote_batch_shape, vmap_over
from numpyro.distributions.util import lazy_property, validate_sample
from numpyro.util import not_jax_tracer

from numpyro_ndpp import normalizer, size_law
from numpyro_ndpp.checks import check_sampler, static_int
from numpyro_ndpp.constraints import finite_matrix, positive_semidefinite_part, subset
from numpyro_ndpp.greedy import exchange, greedy_given, greedy_map
from numpyro_ndpp.kernel import Pinned, gram, log_minors, log_next_probs, marginal_matrix, quadratic_forms
from numpyro_ndpp.linalg import with_derivatives_of
from numpyro_ndpp.programs import is_tracing, program
from numpyro_ndpp.samplers import Sampler, batching
from numpyro_ndpp.subsets import check_items, items_of_mask, to_multihot

__all__ = ["Conditioned", "Multihot", "Shape", "SubsetDistribution"]

Shape = tuple[int, ...]


def compiled(*static: str) -> Callable[[Callable], Callable]:
    """A method of a law as one program, by the names of its static arguments; inside what JAX traces, as it stands.

    Without it every operation would be a program of its own, to be compiled at its first call.
    """

    def decorate(method: Callable) -> Callable:
        compiled_method = program("often", static_argnames=static)(method)

        @functools.wraps(method)
        def call(self: "SubsetDistribution", *arguments: Any, **settings: Any) -> Any:
            if is_tracing():
                return method(self, *arguments, **settings)
            return compiled_method(self._bare(), *arguments, **settings)

        return call

    return decorate


def _broadcast_to(array: Array, shape: Shape) -> Array:
    return array if array.shape == shape else jnp.broadcast_to(array, shape)


def _prepare(sampler: Sampler, X: Array, W: Array, pinned: Array, min_size: int, max_size: int, width: int) -> Any:
    """What the sampler prepares for kernels X (..., n, d), W (..., d, d) and pinned items (..., j)."""

    def prepare(X: Array, W: Array, pinned: Array) -> Any:
        if pinned.size == 0:
            return sampler.prepare(X, W, min_size, max_size)
        return sampler.prepare(X, W, min_size, max_size, pinned, width)

    for _ in X.shape[:-2]:
        prepare = jax.vmap(prepare)
    return prepare(X, W, pinned)


# A law is prepared once. What it is given, and what a batch of kernels holds, may be others at every call.
_prepare_one, _prepare_many = (program(runs, static_argnums=(0, 4, 5, 6))(_prepare) for runs in ("once", "often"))


@partial(jax.jit, static_argnames=("sizes", "rank", "num_certain"))
def _log_sums(
    X: Array, W: Array, C: Array, subsets: Array, *, sizes: tuple[int, int], rank: int, num_certain: int
) -> Array:
    """The log-normaliser with each of the subsets (s, m) pinned."""
    log_sum = partial(normalizer.log_normalizer, W, C, sizes=sizes, rank=rank, num_certain=num_certain)
    return lax.map(lambda items: log_sum(pinned=Pinned.of(X, items)), subsets)


@jax.jit
def _grams(X: Array) -> Array:
    return jnp.vectorize(gram, signature="(n,d)->(d,d)")(X)


@jax.jit
def _without(X: Array, items: Array) -> Array:
    """Features X (..., n, d) with rows of zeros for the items (..., m)."""
    return jnp.vectorize(lambda X, items: X.at[items].set(0.0, mode="drop"), signature="(n,d),(m)->(n,d)")(X, items)


@jax.jit
def _sorted_together(subsets: Array, pinned: Array) -> Array:
    lead = lax.broadcast_shapes(subsets.shape[:-1], pinned.shape[:-1])
    subsets, pinned = (jnp.broadcast_to(part, lead + part.shape[-1:]) for part in (subsets, pinned))
    return jnp.sort(jnp.concatenate([subsets, pinned.astype(subsets.dtype)], axis=-1), axis=-1)


class SubsetDistribution(Distribution):
    """The law P(S) ∝ det L_S over the subsets of min_size to max_size items, L = X W Xᵀ."""

    reparametrized_params: ClassVar[list[str]] = []
    pytree_data_fields: tuple[str, ...] = ("_prepared",)
    pytree_aux_fields: tuple[str, ...] = ("min_size", "max_size", "sampler")
    has_enumerate_support = False

    X: Any
    W: Any
    min_size: int
    max_size: int
    sampler: Sampler
    _prepared: Any = None  # by prepare(); goes through jit
    _cached: Any = None  # by the first sample; does not

    def prepare(self) -> Self:
        """The same distribution with the sampler's preprocessing done and carried along.

        It is a pytree like any other distribution: passed to a jitted function, its tree and features are arguments of
        that function, and every call of :meth:`sample` in it does without the O(n d²) of the preprocessing. Outside jit
        :meth:`sample` keeps the preprocessing of its first call in any case.

        >>> import jax
        >>> from jax import random
        >>> from numpyro_ndpp import KNDPP
        >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(40, 2), (40, 2), (2, 2)]))
        >>> law = KNDPP(V, B, D, k=3).prepare()
        >>> jax.jit(lambda law, key: law.sample(key, (5,)))(law, random.key(3)).shape
        (5, 3)
        """
        prepared = copy.copy(self)
        prepared._prepared = self.prepared_state()
        return prepared

    def with_sampler(self, sampler: Sampler) -> Self:
        """The same distribution, drawn from by another sampler."""
        other = copy.copy(self)
        other.sampler, other._prepared, other._cached = check_sampler(sampler), None, None
        return other

    def prepared_state(self) -> Any:
        """What the sampler has prepared, each of its arrays with the batch's dimensions in front."""
        state = self._cached if self._prepared is None else self._prepared
        if state is not None:
            return state
        state, is_known = self.once_where_known(self._prepare_now)
        if is_known:
            self._cached = state
        return state

    def once_where_known(self, prepare: Callable[[], Any]) -> tuple[Any, bool]:
        """What ``prepare`` makes of the kernel, and whether it is known: then it is made once, within jit too."""
        if not is_tracing():
            return prepare(), all(map(not_jax_tracer, (self.X, self.W, self.pinned)))
        with jax.ensure_compile_time_eval():
            if all(map(not_jax_tracer, (self.X, self.W, self.pinned))):
                return prepare(), True
        return prepare(), False

    def _prepare_now(self) -> Any:
        X = _broadcast_to(self.X, (*self.batch_shape, self.num_items, self.rank))
        W = _broadcast_to(self.W, (*self.batch_shape, self.rank, self.rank))
        pinned = _broadcast_to(self.pinned, self.batch_shape + self.pinned.shape[-1:])
        # A draw has no derivative, and what leads to it need not carry one along.
        X, W = lax.stop_gradient((X, W))
        prepare = _prepare_many if self.batch_shape or pinned.size else _prepare_one
        return prepare(self.sampler, X, W, pinned, *self.whole_sizes, self.max_size)

    def sample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draws of shape ``sample_shape + batch_shape + event_shape``, int32, by the distribution's ``sampler``.

        A draw that cannot be made is -1 throughout: no subset of an allowed size has positive probability, or the
        sampler gave up. Outside jit a warning says how many there are, and why.

        :raises ValueError: outside jit, if no draw could be made.
        """
        if not hasattr(key, "dtype"):
            raise ValueError(f"key must be a JAX random key, got {key!r}")
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = random.wrap_key_data(key)
        num_draws, num_kernels = math.prod(sample_shape), math.prod(self.batch_shape)
        if num_draws * num_kernels == 0:
            return jnp.zeros(self.shape(tuple(sample_shape)), jnp.int32)
        state = self.prepared_state()
        if self.batch_shape:
            num_dims = len(self.batch_shape)
            states = jax.tree.map(lambda array: array.reshape(num_kernels, *array.shape[num_dims:]), state)
            draws = batching.sample(self.sampler, states, num_kernels, key, num_draws).swapaxes(0, 1)
        else:
            draws = batching.sample(self.sampler, state, None, key, num_draws)
        draws = draws.reshape(self.shape(tuple(sample_shape)))
        if not_jax_tracer(draws):
            self._check_draws(np.asarray(draws), state)
        return jax.device_put(draws) if isinstance(draws, np.ndarray) else draws

    def _check_draws(self, draws: np.ndarray, state: Any) -> None:
        """A warning if some of the draws (..., w) could not be made, a ValueError if none could."""
        if self.max_size == 0:  # a value without items cannot show it
            failed = np.broadcast_to(self.log_normalizer == -jnp.inf, draws.shape[:-1])
        else:
            failed = draws[..., 0] < 0
        if not failed.any():
            return
        if np.isnan(self.log_normalizer).any():
            reason = "the kernel has NaN"
        elif (self.log_normalizer == -jnp.inf).any():
            reason = "they have probability zero"
        else:
            reason = self.sampler.failure(state)
        drawn_by = f"of {self.sizes_in_words()} items could be drawn by {self.sampler} from this kernel: {reason}"
        if failed.all():
            raise ValueError(f"no subset {drawn_by}")
        warnings.warn(
            f"{failed.sum()} of {failed.size} draws are -1 throughout, because no subset {drawn_by}", stacklevel=3
        )

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: list[Any] | None = None) -> Array:
        """Exact, normalised log-probability of padded subsets of any width (..., m).

        One normaliser, O(n d² + d³) (and O(N d³) with limits on the size, N ≤ d + 4), serves all subsets; each takes
        O(m d² + m² d + m³) at about its own size m. -inf outside the support, with a gradient of zero.

        :raises TypeError: for values that are not integers.
        """
        value = value if isinstance(value, np.ndarray) else jnp.asarray(value)
        if not jnp.issubdtype(value.dtype, jnp.integer):
            raise TypeError(f"value must hold integer item numbers, got {value.dtype}; for 0/1 vectors use multihot()")
        if value.ndim == 0:
            raise ValueError("value must have one dimension at least: the items of a subset")
        return self._log_prob(value, self.log_normalizer)

    @compiled()
    def _log_prob(self, value: Array, log_normalizer: Array) -> Array:
        value = value.astype(jnp.promote_types(value.dtype, jnp.int32))  # may be too narrow for the number of items
        inside = self.contains(value)
        # No subset in the support is larger than max_size, so the columns beyond that are padding.
        subsets = jnp.where(inside[..., None], value, self.num_items)[..., : self.max_size].astype(jnp.int32)
        # One after the other: on a CPU two batches of factorisations at once may wait for each other forever.
        subsets, _ = lax.optimization_barrier((subsets, lax.stop_gradient(log_normalizer)))
        log_minor = self.log_minors(self.X, self.inner_block, self.with_pinned(subsets))
        possible = inside & (log_minor > -jnp.inf) & (log_normalizer != -jnp.inf)
        log_prob = jnp.where(possible, log_minor - jnp.where(possible, log_normalizer, 0.0), -jnp.inf)
        # Minor and normaliser have roundings of their own, which must not make more of a subset than certain.
        log_prob = with_derivatives_of(jnp.minimum(log_prob, 0.0), log_prob)
        # A kernel with NaN gives NaN.
        return jnp.where(jnp.isnan(log_normalizer), jnp.nan, log_prob)

    def _bare(self) -> Self:
        """The law alone, without what only draws need: what is compiled for one sampler serves all."""
        bare = copy.copy(self)
        bare.sampler = None  # type: ignore[assignment]  # nothing is drawn from it
        bare._prepared, bare._cached, bare._validate_args = None, None, False
        return bare

    def _of_subsets(self, function: Callable[..., Array], signature: str, subsets: Array, *kernels: Array) -> Array:
        """``function(*kernel, subsets (s, m)) -> (s, ...)``: subsets (..., m), broadcast with the batch of kernels."""
        num_batch_dims = len(self.batch_shape)
        subsets = subsets.reshape((1,) * (num_batch_dims + 1 - subsets.ndim) + subsets.shape)
        sample_dims = subsets.shape[: subsets.ndim - 1 - num_batch_dims]
        # Kernels in front, then all the subsets of one kernel: a kernel sees its subsets together.
        flat = subsets.reshape((math.prod(sample_dims), *subsets.shape[len(sample_dims) :]))
        by_kernel = jnp.moveaxis(flat, 0, num_batch_dims)
        values = jnp.vectorize(function, signature=signature)(*kernels, by_kernel)
        values = jnp.moveaxis(values, num_batch_dims, 0)
        return values.reshape(sample_dims + values.shape[1:])

    def log_minors(self, X: Array, K: Array, subsets: Array) -> Array:
        """log det L_S of subsets (..., m), their leading dimensions broadcast with the batch of kernels."""
        return self._of_subsets(log_minors, "(n,d),(e,e),(s,m)->(s)", subsets, X, K)

    def _per_kernel(self, function: Callable[..., Array], out: str) -> Array:
        """``function(X, W, C, pinned)`` of every kernel of the batch."""
        signature = f"(n,d),(d,e),(d,f),(j)->{out}"
        return jnp.vectorize(function, signature=signature)(self.X, self.W, self._gram, self.pinned)

    @property
    def pinned(self) -> Array:
        """The items (..., j), padded with n, that are in every subset beside its value."""
        return jnp.zeros(0, jnp.int32)

    @property
    def excluded(self) -> Array:
        """The items (..., m), padded with n, that are in no subset."""
        return jnp.zeros(0, jnp.int32)

    @property
    def whole_sizes(self) -> tuple[int, int]:
        """The smallest and largest size of a subset with its pinned items."""
        return self.min_size, self.max_size

    def contains(self, value: Array) -> Array:
        """Which of the values (..., m) are in the support of the kernel at hand, given items and all."""
        return self.support(value)

    def with_pinned(self, subsets: Array) -> Array:
        """The subsets (..., m) and the pinned items, increasing."""
        pinned = self.pinned
        if pinned.shape[-1] == 0:
            return subsets
        return _sorted_together(subsets, pinned)

    @property
    def inner_block(self) -> Array:
        """K (..., d₂, d₂) with W = Diag(I, K): the smaller it is, the less work a minor is."""
        return self.W

    @property
    def support(self) -> Any:
        """Increasing item numbers, filled up with n, of an allowed number."""
        return subset(self.num_items, self.min_size, self.max_size)

    @property
    def num_items(self) -> int:
        """The number n of items."""
        return self.X.shape[-2]

    @property
    def rank(self) -> int:
        """The number d of features, the largest rank that the kernel can have."""
        return self.X.shape[-1]

    @lazy_property
    def _gram(self) -> Array:
        return _grams(self.X)

    @property
    def _num_certain(self) -> int:
        """How many of the pinned items are known to be no padding."""
        return 0

    def _log_normalizer(self, W: Array, C: Array, pinned: Pinned) -> Array:
        rank = min(self.num_items, self.rank)
        return normalizer.log_normalizer(W, C, pinned, self.whole_sizes, rank, self._num_certain)

    @lazy_property
    def log_normalizer(self) -> Array:
        """log Σ det L_S over the support (batch shape): log det(I + L) without size limits, log e_k for size k."""
        return self._log_normalizers()

    @compiled()
    def _log_normalizers(self) -> Array:
        return self._per_kernel(lambda X, W, C, pinned: self._log_normalizer(W, C, Pinned.of(X, pinned)), "()")

    @compiled()
    def size_log_prob(self) -> Array:
        """log P(size = j) for j = 0 .. d, (..., d+1). O(d³); its derivatives cost O(d⁵)."""

        def of_kernel(X: Array, W: Array, C: Array, pinned: Array) -> Array:
            log_e = size_law.log_weights_of_sizes(W, C, Pinned.of(X, pinned), *self.whole_sizes)
            # What is impossible is for the normaliser to say. A size of probability zero is missing in the derivatives
            # of this sum, and is not in the normaliser's.
            log_normalizer = self._log_normalizer(W, C, Pinned.of(X, pinned))
            log_sum = with_derivatives_of(jax.nn.logsumexp(log_e), log_normalizer)
            log_probs = jnp.where((log_e > -jnp.inf) & (log_normalizer > -jnp.inf), log_e - log_sum, -jnp.inf)
            return jnp.where(jnp.isnan(log_normalizer), jnp.nan, log_probs)

        return self._per_kernel(of_kernel, "(s)")

    @compiled()
    def inclusion_probs(self) -> Array:
        r"""P(a ∈ S) for every item a, exact, (..., n). O(n d²) beyond the normaliser, O(n d) memory.

        The derivative of the log-normaliser in the logarithm of item a's quality: with G = ∂ log Z / ∂C it is
        :math:`x_a^\top G x_a`, for G = W (I + C W)⁻¹ without limits on the size.
        """

        def of_kernel(X: Array, W: Array, C: Array, pinned: Array) -> Array:
            log_sum, slope = jax.value_and_grad(self._log_normalizer, argnums=1)(W, C, Pinned.of(X, pinned))
            probs = quadratic_forms(X, slope)
            probs = with_derivatives_of(jnp.clip(probs, 0.0, 1.0), probs)
            # Beside items that are never there together nothing is.
            probs = jnp.where(log_sum == -jnp.inf, 0.0, jnp.where(jnp.isnan(log_sum), jnp.nan, probs))
            return probs.at[pinned].set(0.0, mode="drop")

        return self._per_kernel(of_kernel, "(n)")

    def marginal_log_prob(self, items: ArrayLike) -> Array:
        r"""log P(items ⊆ S), exact and differentiable, of padded sets of items (..., m).

        O(m² d + m³) a set where the size has no limits, :math:`\log\det (X Z X^\top)_{items}` with Z = W (I + C W)⁻¹;
        with limits O(N (d+m)³), N nodes on a circle. -inf for what is no subset of the items.

        :raises ValueError: outside jit, for items out of range or repeated.

        >>> import jax.numpy as jnp
        >>> from numpyro_ndpp import NDPP
        >>> law = NDPP(jnp.eye(3), jnp.zeros((3, 1)), jnp.zeros((1, 1)))
        >>> [f"{p:.2f}" for p in jnp.exp(law.marginal_log_prob(jnp.array([[0, 2], [1, 3]])))]
        ['0.25', '0.50']
        """
        items = check_items("items", items, self.num_items)
        are_all_there = not_jax_tracer(items) and bool((np.asarray(items) < self.num_items).all())
        return self._marginal_log_prob(items, num_certain=items.shape[-1] if are_all_there else 0)

    @compiled("num_certain")
    def _marginal_log_prob(self, items: Array, *, num_certain: int) -> Array:
        items, proper = self._clipped(items)
        together = self.with_pinned(items)
        (low, high), rank = self.whole_sizes, min(self.num_items, self.rank)
        if self._num_certain >= low and high == rank:
            Z = jnp.vectorize(marginal_matrix, signature="(d,d),(d,d)->(d,d)")(self.W, self._gram)
            pinned = self.log_minors(self.X, Z, self.with_pinned(jnp.zeros(0, jnp.int32)))
            log_joint = self.log_minors(self.X, Z, together)
        else:
            pinned = self.log_normalizer
            log_sums = partial(_log_sums, sizes=(low, high), rank=rank, num_certain=self._num_certain + num_certain)
            signature = "(n,d),(d,e),(d,f),(s,m)->(s)"
            log_joint = self._of_subsets(log_sums, signature, together, self.X, self.W, self._gram)
        possible = proper & (log_joint > -jnp.inf) & (pinned > -jnp.inf)
        log_prob = jnp.where(possible, log_joint, 0.0) - jnp.where(possible, pinned, 0.0)
        # Where the items are certain, rounding must not make them more than that, nor halve the derivative.
        log_prob = jnp.where(possible, with_derivatives_of(jnp.minimum(log_prob, 0.0), log_prob), -jnp.inf)
        return jnp.where(jnp.isnan(self.log_normalizer), jnp.nan, log_prob)

    def next_item_log_prob(self, items: ArrayLike) -> Array:
        r"""The log-probability of every item as the one more item that joins ``items`` (..., m): an array (..., n).

        .. math:: P(a \mid J) = \det L_{J∪a} \Big/ \sum_b \det L_{J∪b}

        -inf for the items that are in already. Where no item can join, because ``items`` is too large or no larger
        subset has a positive probability, -inf throughout. O(n m d) for m items. Differentiable, to any order.

        :raises ValueError: outside jit, for items out of range or repeated.

        >>> import jax.numpy as jnp
        >>> from numpyro_ndpp import NDPP
        >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])  # items 0 and 1 are alike: they repel
        >>> law = NDPP(V, jnp.zeros((3, 1)), jnp.zeros((1, 1)))
        >>> [f"{p:.2f}" for p in jnp.exp(law.next_item_log_prob(jnp.array([0])))]
        ['0.00', '0.01', '0.99']
        """
        return self._next_item_log_prob(check_items("items", items, self.num_items))

    @compiled()
    def _next_item_log_prob(self, items: Array) -> Array:
        items, proper = self._clipped(items)
        together = self.with_pinned(items)
        log_probs = self._of_subsets(log_next_probs, "(n,d),(d,e),(s,m)->(s,n)", together, self.X, self.W)
        room = jnp.sum(together < self.num_items, axis=-1) < self.whole_sizes[1]
        return jnp.where((room & proper)[..., None], log_probs, -jnp.inf)

    def _clipped(self, items: Array) -> tuple[Array, Array]:
        """Sets of items (..., m), increasing, and which are proper: no item twice, none pinned, all in range."""
        proper = jnp.all((items >= 0) & (items <= self.num_items), axis=-1)
        return jnp.clip(items, 0, self.num_items), proper & self._apart_from_pinned(items)

    def _apart_from_pinned(self, subsets: Array) -> Array:
        """Which of the subsets (..., m) hold none of the pinned items, and no item twice."""
        together = self.with_pinned(subsets)
        return jnp.all((together[..., 1:] > together[..., :-1]) | (together[..., 1:] >= self.num_items), axis=-1)

    def condition(self, include: ArrayLike | None = None, exclude: ArrayLike | None = None) -> "Conditioned":
        r"""The law of the *other* items T = S∖include, given that S holds all of ``include`` and none of ``exclude``.

        :param include: items (..., j), padded with n if the size of S may vary. A fixed size k shrinks by j.
        :param exclude: items (..., m), padded with n.
        :raises ValueError: outside jit, for an item out of range, repeated, or both included and excluded, and for more
            included items than a subset can have. For a fixed size also if ``include`` is padded.

        Values hold none of the included items. Conditioning twice is conditioning on both. What is included may have
        probability zero: then every subset has log-probability -inf, and :meth:`sample` raises.

        >>> import jax.numpy as jnp
        >>> from numpyro_ndpp import KNDPP
        >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
        >>> law = KNDPP(V, jnp.zeros((3, 1)), jnp.zeros((1, 1)), k=2).condition(include=[0])
        >>> law.event_shape
        (1,)
        >>> [f"{p:.2f}" for p in law.inclusion_probs()]
        ['0.00', '0.01', '0.99']
        """
        n, no_items = self.num_items, jnp.zeros(0, jnp.int32)
        include = check_items("include", no_items if include is None else include, n)
        exclude = check_items("exclude", no_items if exclude is None else exclude, n)
        excluded = _sorted_together(exclude, self.excluded)
        (low, high), num_new = self.whole_sizes, include.shape[-1]
        together = self.with_pinned(include)
        is_known = not_jax_tracer(include)
        padded = not is_known or bool((np.asarray(include) == n).any())
        counts = np.sum(np.asarray(include) < n, axis=-1) if is_known else None
        if low == high and num_new and padded and is_known:
            raise ValueError(
                f"include must have no padding where the size is fixed (it sets a shape), got {include.tolist()} for "
                f"{n} items"
            )
        largest = num_new  # a fixed size makes padding impossible
        if low < high and padded:
            largest = int(counts.max()) if counts is not None and counts.size else 0
        if self._num_certain + largest > high:
            raise ValueError(
                f"include has {largest} items"
                + (f" beside {self._num_certain} included before" if self._num_certain else "")
                + f", but subsets have at most {high}"
            )
        if all(map(not_jax_tracer, (include, excluded, together))):
            self._check_apart(np.asarray(excluded), np.asarray(together))
        # A fixed size makes padding impossible; else what is not seen may be padding.
        certain = num_new if low == high or not padded else int(counts.min()) if counts is not None else 0
        X = self.X
        if exclude.shape[-1]:
            X = _without(X, exclude)
        return Conditioned(
            X,
            self.W,
            together,
            excluded,
            whole_sizes=(low, high),
            num_certain=self._num_certain + certain,
            sampler=self.sampler,
            validate_args=self._validate_args,
        )

    def _check_apart(self, exclude: np.ndarray, together: np.ndarray) -> None:
        n = self.num_items
        repeated = (together[..., 1:] == together[..., :-1]) & (together[..., 1:] < n)
        if repeated.any():
            raise ValueError(f"include: item {int(together[..., 1:][repeated][0])} has been included already")
        both = (together[..., :, None] == exclude[..., None, :]) & (together < n)[..., :, None]
        if both.any():
            item = np.broadcast_to(together[..., :, None], both.shape)[both][0]
            raise ValueError(f"include and exclude both name item {int(item)}")

    def greedy(self, k: int | None = None, *, num_exchanges: int = 0) -> Array:
        """Greedy MAP subset, increasing and padded, (..., k) or (..., max_size).

        :param k: how many items; None stops when no addition raises the determinant, within the distribution's own
            limits on the size.
        :param num_exchanges: how many times at the most to exchange one item for a better one afterwards.
        :return: the items; fewer than k if there is no way on, the rest is padding.
        :raises ValueError: for k out of range.

        O(n d) an item. The largest determinant itself is NP-hard to find.
        """
        if k is None:
            low, high = self.min_size, self.max_size
        else:
            most = min(self.num_items, self.rank)
            low = high = static_int("k", k, 0, most, f"min(num_items={self.num_items}, rank={self.rank})")
        if num_exchanges and self.pinned.shape[-1]:
            raise ValueError("num_exchanges must be 0 for a conditioned law")
        num_exchanges = static_int("num_exchanges", num_exchanges, 0, 2**31 - 1, "the largest")

        return self._greedy(low=low, high=high, has_limits=k is None, num_exchanges=num_exchanges)

    @compiled("low", "high", "has_limits", "num_exchanges")
    def _greedy(self, *, low: int, high: int, has_limits: bool, num_exchanges: int) -> Array:
        def of_kernel(X: Array, W: Array, C: Array, pinned: Array) -> Array:
            if pinned.size:
                number = jnp.sum(pinned < self.num_items)
                limits = self.whole_sizes if has_limits else (low + number, high + number)
                return greedy_given(X, W, C, pinned, *limits, high)
            items = greedy_map(X, W, C, low, high)
            return exchange(X, W, items, num_exchanges) if num_exchanges and high else items

        return self._per_kernel(of_kernel, "(k)")

    @property
    def mode(self) -> Array:
        """``greedy()``: an approximation of the most probable subset."""
        return self.greedy()

    def with_expected_size(self, expected_size: ArrayLike) -> "SubsetDistribution":
        """The NDPP of the kernel rescaled so that the mean size is ``expected_size``, within the limits on the size.

        :param expected_size: a number between the smallest and the largest size, both exclusive; may be an array of
            the batch's shape, may be traced.
        :raises ValueError: outside jit, for a mean size out of these limits, and, unless validation is switched off,
            for one that no scale reaches.

        Differentiable in the parameters and in ``expected_size``.
        """
        low, high = self._ndpp_size_limits()
        expected_size = jnp.asarray(expected_size, self.X.dtype)
        concrete = not_jax_tracer(expected_size)
        if concrete and not ((np.asarray(expected_size) > low) & (np.asarray(expected_size) < high)).all():
            raise ValueError(f"expected_size must be between {low} and {high}, both exclusive, got {expected_size}")
        log_scale, reached = self._log_scales(expected_size, low=low, high=high)
        scaled = self._scaled_ndpp(
            jnp.exp(log_scale / 2)[..., None, None],
            min_size=low,
            max_size=high,
            sampler=self.sampler,
            validate_args=self._validate_args,
        )
        is_known = concrete and not_jax_tracer(log_scale) and self._validate_args
        if is_known and not (np.abs(np.asarray(reached) - np.asarray(expected_size)) < 1e-2).all():
            raise ValueError(f"expected_size is {expected_size}, but this kernel reaches no more than {reached}")
        return scaled

    @compiled("low", "high")
    def _log_scales(self, expected_size: Array, *, low: int, high: int) -> tuple[Array, Array]:
        """The logarithm of the scale at which every kernel has its expected size, and the size that it has there."""
        rank = min(self.num_items, self.rank)

        def of_kernel(W: Array, C: Array, size: Array) -> tuple[Array, Array]:
            log_scale = size_law.log_scale_of_mean_size(W, C, size, low, high, rank)
            mean = jax.grad(lambda u: normalizer.log_sum_esp(W, jnp.exp(u) * C, low, high, rank))(log_scale)
            return log_scale, lax.stop_gradient(mean)

        return jnp.vectorize(of_kernel, signature="(d,e),(d,f),()->(),()")(self.W, self._gram, expected_size)

    def multihot(self) -> "Multihot":
        """The same law over vectors of n zeros and ones."""
        return Multihot(self, validate_args=self._validate_args)

    def sizes_in_words(self) -> str:
        """The sizes that are allowed, for messages: "3", or "0 to 8"."""
        return str(self.min_size) if self.min_size == self.max_size else f"{self.min_size} to {self.max_size}"

    def _ndpp_size_limits(self) -> tuple[int, int]:
        return self.min_size, self.max_size

    def _scaled_ndpp(self, root: Array, **settings: Any) -> "SubsetDistribution":
        """The NDPP whose features are multiplied by ``root`` (..., 1, 1)."""
        raise NotImplementedError(f"{type(self).__name__} has no scale of its own: rescale the law, then condition it")


class Conditioned(SubsetDistribution):
    r"""The law of the other items given that some are in and others are out, as ``condition`` gives it.

    .. math:: P(T \mid J) = \det L_{J∪T} \Big/ \sum_{T'} \det L_{J∪T'}

    :param X, W: the kernel L = X W Xᵀ; the rows of excluded items are zero.
    :param include: the pinned items J (..., j), increasing and padded with n.
    :param exclude: the items (..., m) that are out, likewise.
    :param whole_sizes: the smallest and largest size of J∪T. Where they differ, ``include`` may be padding, and the
        event has room for as many items as J∪T: its shape depends on no value.
    :param num_certain: how many of the pinned items are known not to be padding.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "X": finite_matrix,
        "W": positive_semidefinite_part,
        "include": constraints.independent(constraints.nonnegative_integer, 1),
        "exclude": constraints.independent(constraints.nonnegative_integer, 1),
    }
    pytree_aux_fields: tuple[str, ...] = ("_sizes", "num_certain")

    def __init__(
        self,
        X: Array,
        W: Array,
        include: Array,
        exclude: Array,
        *,
        whole_sizes: tuple[int, int],
        num_certain: int,
        sampler: Sampler,
        validate_args: bool | None = None,
    ) -> None:
        self.X, self.W, self.include, self.exclude = X, W, include, exclude
        low, high = self._sizes = whole_sizes
        self.num_certain, num_pinned = num_certain, include.shape[-1]
        self.min_size, self.max_size = max(0, low - num_pinned), high - (num_pinned if low == high else 0)
        self.sampler = sampler
        batch_shape = lax.broadcast_shapes(X.shape[:-2], W.shape[:-2], include.shape[:-1], exclude.shape[:-1])
        super().__init__(batch_shape, (self.max_size,), validate_args=validate_args)

    @property
    def k(self) -> int | None:
        """The number of items where that is fixed."""
        return self.max_size if self.min_size == self.max_size else None

    @property
    def pinned(self) -> Array:
        return self.include

    @property
    def excluded(self) -> Array:
        return self.exclude

    @property
    def whole_sizes(self) -> tuple[int, int]:
        return self._sizes

    @property
    def _num_certain(self) -> int:
        return self.num_certain

    def sizes_in_words(self) -> str:
        low, high = self.min_size, self.whole_sizes[1] - self.num_certain
        return str(low) if low == high else f"{low} to {high}"

    def contains(self, value: Array) -> Array:
        low, high = self.whole_sizes
        whole = jnp.sum(value < self.num_items, axis=-1) + jnp.sum(self.include < self.num_items, axis=-1)
        return self.support(value) & (whole >= low) & (whole <= high) & self._apart_from_pinned(value)


@partial(jax.jit, static_argnums=1)
def _items_of_value(value: Array, width: int) -> Array:
    """Padded subsets (..., width) of vectors (..., n) of zeros and ones; -1 throughout for other vectors."""
    is_inside = jnp.all((value == 0) | (value == 1), axis=-1)
    return items_of_mask(jnp.where(is_inside[..., None], value.astype(jnp.int32), -1), width)


class Multihot(Distribution):
    """A subset distribution over vectors (..., n) of zeros and ones, as its ``multihot()`` gives it.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> law = NDPP(jnp.eye(3), jnp.zeros((3, 1)), jnp.zeros((1, 1)))
    >>> [f"{p:.3f}" for p in law.multihot().mean]
    ['0.500', '0.500', '0.500']
    >>> f"{jnp.exp(law.multihot().log_prob(jnp.array([1, 0, 1]))):.3f}"
    '0.125'
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("base_dist",)
    reparametrized_params: ClassVar[list[str]] = []
    support = constraints.independent(constraints.boolean, 1)
    base_dist: SubsetDistribution

    def __init__(self, base_dist: SubsetDistribution, *, validate_args: bool | None = None) -> None:
        self.base_dist = base_dist
        super().__init__(base_dist.batch_shape, (base_dist.num_items,), validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:
        return False

    def sample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draws of shape ``sample_shape + batch_shape + (n,)``, int32."""
        return to_multihot(self.base_dist.sample(key, sample_shape), self.base_dist.num_items)

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: list[Any] | None = None) -> Array:
        """Log-probability of vectors (..., n) of zeros and ones; -inf for one of a size that is not allowed."""
        value = value if isinstance(value, np.ndarray) else jnp.asarray(value)
        n = self.base_dist.num_items
        if value.shape[-1:] != (n,):
            raise ValueError(f"value must have one entry for each of the {n} items, got shape {value.shape}")
        # Where only the empty subset is allowed, there is room for an item all the same, to say that it is too many.
        return self.base_dist.log_prob(_items_of_value(value, max(1, self.base_dist.max_size)))

    @property
    def mean(self) -> Array:
        """The inclusion probabilities."""
        return self.base_dist.inclusion_probs()

    @property
    def variance(self) -> Array:
        """p (1 - p) of the inclusion probabilities p."""
        p = self.mean
        return p * (1 - p)

    @property
    def mode(self) -> Array:
        """The greedy MAP subset."""
        return to_multihot(self.base_dist.mode, self.base_dist.num_items)


def vmap_over_parameters(dist: SubsetDistribution, **axes: int | None) -> Any:
    # What was prepared for a batch of kernels has that batch in front.
    batched = any(axis is not None for axis in axes.values())
    return vmap_over.dispatch(Distribution)(dist, _prepared=0 if batched else None, **axes)


@vmap_over.register
def _vmap_over_conditioned(
    dist: Conditioned,
    X: int | None = None,
    W: int | None = None,
    include: int | None = None,
    exclude: int | None = None,
) -> Any:
    return vmap_over_parameters(dist, X=X, W=W, include=include, exclude=exclude)


@vmap_over.register
def _vmap_over_multihot(dist: Multihot, **axes: int | None) -> Any:
    return vmap_over.dispatch(Distribution)(dist, base_dist=vmap_over(dist.base_dist, **axes))


@promote_batch_shape.register
def _promote_batch_shape_multihot(dist: Multihot) -> Multihot:
    return Multihot(promote_batch_shape(dist.base_dist), validate_args=dist._validate_args)
