"""Draws of a distribution of subsets: the sampler's preparation, kept where it can be, and draws that failed."""

import copy
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.util import not_jax_tracer

from numpyro_ndpp.checks import static_int
from numpyro_ndpp.draw_shares import by_cores, in_shares, mesh_of_draws, num_core_shares
from numpyro_ndpp.of_kernels import OfKernels
from numpyro_ndpp.parameters import Shape
from numpyro_ndpp.programs import Program, compile_side_by_side, is_tracing, known_platform, program
from numpyro_ndpp.samplers.base import Sampler, check_sampler
from numpyro_ndpp.target import Target
from numpyro_ndpp.widths import power_of_two

__all__ = ["Drawn", "compiled"]


# What was compiled side by side: to ask JAX again takes as long as a draw from a small kernel.
_COMPILED: set[Any] = set()


def _prepare(sampler: Sampler, num_batch_dims: int, target: Target) -> Any:
    prepare = sampler.prepare
    for _ in range(num_batch_dims):
        prepare = jax.vmap(prepare)
    return prepare(target)


# A kernel is prepared once. What is pinned, and what a batch of kernels holds, may be others at every call.
_prepare_one, _prepare_many = (program(runs, static_argnums=(0, 1))(_prepare) for runs in ("once", "often"))


@program("draws", static_argnums=(0, 1, 2, 3))
def _sample(
    sampler: Sampler, length: int, num_kernels: int | None, mesh: Any, states: Any, key: Array, number: Array
) -> Array:
    """Subsets (length, w) of one kernel, or (kernels, length, w).

    :param mesh: that whose axis "draws" shares the draws of one kernel; None: no sharing.
    """
    if num_kernels is None:
        keys = random.split(key, length)
        if mesh is not None:
            return in_shares(mesh, sampler.sample, states, keys, number)
        return sampler.sample(states, keys, number)
    keys = jax.vmap(lambda key: random.split(key, length))(random.split(key, num_kernels))
    if length == 1:
        return jax.vmap(lambda state, keys: sampler.sample(state, keys, number))(states, keys)
    # A sampler has as many draws of one kernel at a time as memory allows.
    return lax.map(lambda kernel: sampler.sample(kernel[0], kernel[1], number), (states, keys))


def _is_on_one_device(states: Any, key: Array) -> bool:
    """Whether draws are of one device, and each of its own key: within vmap keys of other kinds than JAX's are not.

    Programs over several devices wait for each other, and have to start in one order everywhere.
    """
    leaves = jax.tree.leaves((states, key))
    if is_tracing() or not all(map(not_jax_tracer, leaves)) or random.key_impl(key) != "threefry2x32":
        return False
    return all(len(leaf.devices()) == 1 for leaf in leaves if isinstance(leaf, Array)) and jax.process_count() == 1


@program("draws", static_argnums=(0, 1, 2))
def _share(
    sampler: Sampler, length: int, num_shares: int, state: Any, key: Array, share: Array, number: Array
) -> Array:
    """The draws ``share``, ``share + num_shares``, ... (length / num_shares, w) of those that :func:`_sample` makes."""
    keys = random.split(key, length).reshape(-1, num_shares)[:, share]
    return sampler.sample(state, keys, (number - share + num_shares - 1) // num_shares)


def _program_of_draws(
    sampler: Sampler, states: Any, num_kernels: int | None, key: Array, num_draws: int, mesh: Any, on_one_cpu: bool
) -> tuple[Program, tuple[Any, ...]]:
    """The program that draws, and its arguments: :func:`_sample`, or :func:`_share` where cores share the draws.

    The number of draws is rounded up to a power of two for what is compiled; only as many as were asked for are made.
    """
    length = power_of_two(num_draws)
    may_share = on_one_cpu and num_kernels is None and mesh is None and sampler.may_share_cores(states)
    num_shares = num_core_shares(length) if may_share else 1
    if num_shares > 1:
        return _share, (sampler, length, num_shares, states, key, np.int32(0), np.int32(num_draws))
    return _sample, (sampler, length, num_kernels, mesh, states, key, num_draws)


def _draws(
    sampler: Sampler, states: Any, num_kernels: int | None, key: Array, num_draws: int, mesh: Any = None
) -> Array | np.ndarray:
    """Subsets (draws, w) of one kernel (None), or (kernels, draws, w) of several, prepared by the sampler."""
    on_one_cpu = _is_on_one_device(states, key) and known_platform(jax.tree.leaves((states, key))) == "cpu"
    drawing, arguments = _program_of_draws(sampler, states, num_kernels, key, num_draws, mesh, on_one_cpu)
    if drawing is _share:
        num_shares, run = arguments[2], drawing.lower(*arguments).compile()
        return by_cores(lambda share: run(states, key, np.int32(share), arguments[-1]), num_shares)[:num_draws]
    drawn = drawing(*arguments)
    if not_jax_tracer(drawn):
        drawn = np.asarray(drawn)  # a slice of a JAX array would be a program for each number of draws
    return drawn[:num_draws] if num_kernels is None else drawn[:, :num_draws]


def _checked_shape(sample_shape: Any) -> Shape:
    """The shape as a tuple; a list is one too."""
    if not isinstance(sample_shape, (tuple, list)):
        example = f", such as ({sample_shape},)" if isinstance(sample_shape, (int, np.integer)) else ""
        raise TypeError(f"sample_shape must be a tuple of integers{example}, got {sample_shape!r}")
    return tuple(static_int("sample_shape's entries", number, 0) for number in sample_shape)


def compiled(*static: str) -> Callable[[Callable], Callable]:
    """A method as one program, by the names of its static arguments; inside what JAX traces, as it stands.

    Without it every operation would be a program of its own, to be compiled at its first call.
    """

    def decorate(method: Callable) -> Callable:
        compiled_method = program("often", static_argnames=static)(method)

        @functools.wraps(method)
        def call(self: "Drawn", *arguments: Any, **settings: Any) -> Any:
            if is_tracing():
                return method(self, *arguments, **settings)
            return compiled_method(self.bare(), *arguments, **settings)

        return call

    return decorate


class Drawn(OfKernels):
    """A distribution of subsets that a :class:`~numpyro_ndpp.samplers.Sampler` draws from."""

    pytree_data_fields: tuple[str, ...] = ("_prepared",)

    log_normalizer: Any
    _prepared: Any = None  # by prepare(); goes through jit
    _cached: Any = None  # by the first sample; does not

    def bare(self) -> Self:
        """The distribution without what only draws need: what is compiled for one sampler serves all."""
        bare = copy.copy(self)
        bare.sampler = None  # type: ignore[assignment]  # nothing is drawn from it
        bare._prepared, bare._cached, bare._validate_args = None, None, False
        return bare

    def prepare(self) -> Self:
        """The same distribution with the sampler's preprocessing done and carried along.

        It is a pytree like any other distribution: passed to a jitted function, its tree and features are arguments of
        that function, and every call of :meth:`sample` in it does without the O(n d²) of the preprocessing. Outside jit
        :meth:`sample` keeps the preprocessing of its first call in any case.

        >>> import jax
        >>> from jax import random
        >>> from numpyro_ndpp import KNDPP
        >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(40, 2), (40, 2), (2, 2)]))
        >>> ndpp = KNDPP(V, B, D, k=3).prepare()
        >>> jax.jit(lambda ndpp, key: ndpp.sample(key, (5,)))(ndpp, random.key(3)).shape
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
        """What ``prepare`` makes of the target, and whether it is known: then it is made once, within jit too."""
        if not is_tracing():
            return prepare(), self._is_known()
        with jax.ensure_compile_time_eval():
            if self._is_known():
                return prepare(), True
        return prepare(), False

    def _is_known(self) -> bool:
        return all(map(not_jax_tracer, jax.tree.leaves(self.target)))

    def _whole_target(self) -> Target:
        """The target, each of its arrays with the batch's dimensions in front."""
        # A draw has no derivative, and what leads to it need not carry one along.
        return lax.stop_gradient(self.target.broadcast_to(self.batch_shape))

    def _program_of_preparation(self) -> Program:
        return _prepare_many if self.batch_shape or self.target.items.size else _prepare_one

    def _prepare_now(self) -> Any:
        return self._program_of_preparation()(self.sampler, len(self.batch_shape), self._whole_target())

    def _states_of_kernels(self, state: Any) -> Any:
        """What was prepared for a batch, each of its arrays with the number of the kernel in front."""
        num_dims, number = len(self.batch_shape), math.prod(self.batch_shape)
        return jax.tree.map(lambda array: array.reshape(number, *array.shape[num_dims:]), state)

    def _compile_side_by_side(self, num_kernels: int | None, key: Array, num_draws: int) -> None:
        """Compiles what prepares and what draws on two cores: by itself JAX compiles the second once the first has run.

        Only for one device. What is compiled is found by the calls that follow, unless arrays are bound to it.
        """
        leaves, structure = jax.tree.flatten((self.target, key))
        kinds = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        call = self.sampler, self.batch_shape, power_of_two(num_draws), structure, kinds
        if call in _COMPILED or not _is_on_one_device(self.target, key):
            return
        if any(getattr(leaf, "committed", False) for leaf in leaves):
            return
        _COMPILED.add(call)
        prepare, on_one_cpu = self._program_of_preparation(), known_platform(leaves) == "cpu"
        arguments = self.sampler, len(self.batch_shape), jax.eval_shape(self._whole_target)

        def draws() -> jax.stages.Lowered:
            states = prepare.eval_shape(*arguments)
            if self.batch_shape:
                states = jax.eval_shape(self._states_of_kernels, states)
            drawing, of_draws = _program_of_draws(self.sampler, states, num_kernels, key, num_draws, None, on_one_cpu)
            return drawing.lower(*of_draws)

        compile_side_by_side(prepare.lower(*arguments), draws)

    def sample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draws of shape ``sample_shape + batch_shape + event_shape``, int32, by the distribution's ``sampler``.

        Where the features lie on a mesh with an axis "draws", or that is the ambient mesh, each device along it makes
        its share; the draws are those of one device.

        A draw that cannot be made is -1 throughout: no subset of an allowed size has positive probability, or the
        sampler gave up. Outside jit a warning says how many there are, and why.

        :raises ValueError: outside jit, if no draw could be made.
        :raises TypeError: for a ``sample_shape`` that is no tuple of integers: five draws are ``(5,)``.
        """
        sample_shape = _checked_shape(sample_shape)
        if not hasattr(key, "dtype"):
            raise ValueError(f"key must be a JAX random key, got {key!r}")
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = random.wrap_key_data(key)
        num_draws, num_kernels = math.prod(sample_shape), math.prod(self.batch_shape) if self.batch_shape else None
        if num_draws == 0 or num_kernels == 0:
            return jnp.zeros(self.shape(sample_shape), jnp.int32)
        mesh = None if self.batch_shape else mesh_of_draws(self.shards, self.target.kernel.X, num_draws)
        if self._cached is None and self._prepared is None and mesh is None:
            self._compile_side_by_side(num_kernels, key, num_draws)
        state = self.prepared_state()
        states = self._states_of_kernels(state) if self.batch_shape else state
        draws = _draws(self.sampler, states, num_kernels, key, num_draws, mesh)
        draws = draws.swapaxes(0, 1) if self.batch_shape else draws
        draws = draws.reshape(self.shape(sample_shape))
        if not_jax_tracer(draws):
            self._check_draws(np.asarray(draws), state)
        return jax.device_put(draws) if isinstance(draws, np.ndarray) else draws

    def _check_draws(self, draws: np.ndarray, state: Any) -> None:
        """A warning if some of the draws (..., w) could not be made, a ValueError if none could."""
        if self.target.width == 0:  # a value without items cannot show it
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

    def sizes_in_words(self) -> str:
        """The sizes that are allowed, for messages: "3", or "0 to 8"."""
        (low, high), num_pinned = self.target.sizes, self.target.items.shape[-1]
        low, high = max(0, low - num_pinned), high - self.target.num_certain
        return str(low) if low == high else f"{low} to {high}"
