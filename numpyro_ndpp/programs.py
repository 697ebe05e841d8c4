"""How long the compiler may think: the package's own programs, compiled in a fraction of the usual time on a CPU.

Nearly all the time of such a program goes into matrix products and LAPACK, which are compiled already. XLA's compiler
for CPUs spends most of its own on the small loops around them, and to little effect: preparation takes a tenth of a
second longer without it, and draws some 7 %, where compilation takes a quarter and half the time.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
from numpyro.util import not_jax_tracer

# How hard the compiler tries, by how often a program runs: XLA's level of optimisation. Draws run most often of all.
LEVELS = {"once": 0, "often": 1, "draws": 1}


def is_tracing() -> bool:
    """Whether JAX is tracing a function here: then even a constant is no number yet."""
    return not not_jax_tracer(jnp.zeros(()))


def _options(runs: str) -> dict[str, bool | int]:
    options: dict[str, bool | int] = {"xla_backend_optimization_level": LEVELS[runs]}
    if tuple(map(int, jaxlib.__version__.split(".")[:2])) < (0, 11):
        options["xla_cpu_use_fusion_emitters"] = False  # half the compiler's time; later versions have no choice
    return options


def _under_vmap(leaf: Any) -> Any:
    """The array that vmap maps over, if ``leaf`` is its view of one: outside jit, vmap runs programs as they come."""
    while hasattr(leaf, "batch_dim"):
        leaf = leaf.val
    return leaf


def are_known_on_cpu(leaves: list[Any]) -> bool:
    """Whether these are numbers, not what JAX traces, and those of them that are JAX's lie on a CPU."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return False
    platforms = {device.platform for leaf in leaves if isinstance(leaf, jax.Array) for device in leaf.devices()}
    return (platforms or {jax.default_backend()}) == {"cpu"}


@functools.cache
def _with_options(function: Callable, runs: str, num_static: int) -> Any:
    return jax.jit(function, static_argnums=tuple(range(num_static)), compiler_options=_options(runs))


def compiled_for(
    function: Callable, runs: str, static: tuple[Any, ...], arguments: tuple[Any, ...]
) -> Callable[..., Any]:
    """``function(*static, *arguments)``, compiled for arguments like these, which it takes.

    Threads may call it. They would trace anything else by settings of their own: those that a ``with`` statement makes
    for one thread, such as ``jax.enable_x64``, do not hold in others.
    """
    return _with_options(function, runs, len(static)).lower(*static, *arguments).compile()


def program(runs: str, **settings: Any) -> Callable[[Callable], Callable]:
    """A function as one program, ``jax.jit(function, **settings)``, compiled with as much effort as it is worth.

    :param runs: "once", "often" or "draws". What runs once alone runs often under vmap.

    Only what is compiled by itself can be told how. Inside what JAX traces this is a jitted function like others.
    """

    def decorate(function: Callable) -> Callable:
        inside = jax.jit(function, **settings)

        @functools.cache
        def alone(runs: str) -> Callable:
            return jax.jit(function, compiler_options=_options(runs), **settings)

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            leaves = jax.tree.leaves((arguments, named))
            arrays = [_under_vmap(leaf) for leaf in leaves]
            if is_tracing() or not are_known_on_cpu(arrays):
                return inside(*arguments, **named)
            is_batch = any(array is not leaf for array, leaf in zip(arrays, leaves, strict=True))
            return alone("often" if is_batch and runs == "once" else runs)(*arguments, **named)

        return call

    return decorate
