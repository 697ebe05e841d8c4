"""How long the compiler may think: the package's own programs, compiled in a fraction of the usual time.

Nearly all the time of such a program goes into matrix products and LAPACK, which are compiled already. XLA's compiler
for CPUs spends most of its own on the small loops around them, and to little effect: preparation takes a tenth of a
second longer without it, and draws some 7 %, where compilation takes a quarter and half the time.

For a GPU the compiler writes dozens of kernels for each matrix product, and runs them beside the library's to find the
fastest. The library's are, for products as large as these: draws take as long without, and compilation a third.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
from numpyro.util import not_jax_tracer

from numpyro_ndpp.platforms import default_platform

# How hard the compiler tries, by how often a program runs: XLA's level of optimisation. Draws run most often of all.
LEVELS = {"once": 0, "often": 1, "draws": 1}
# No matrix products of the compiler's own.
FOR_GPU: dict[str, bool | int] = {"xla_gpu_enable_triton_gemm": False}
# What runs once runs often in a larger batch than this. Of preparation the compiler takes a second more then, and so do
# two thousand kernels of n = 200 and d = 10 without it.
_FEW = 512


def is_tracing() -> bool:
    """Whether JAX is tracing a function here: then even a constant is no number yet."""
    return not not_jax_tracer(jnp.zeros(()))


def _options(platform: str, runs: str) -> dict[str, bool | int]:
    if platform == "gpu":
        return FOR_GPU
    options: dict[str, bool | int] = {"xla_backend_optimization_level": LEVELS[runs]}
    if tuple(map(int, jaxlib.__version__.split(".")[:2])) < (0, 11):
        options["xla_cpu_use_fusion_emitters"] = False  # half the compiler's time; later versions have no choice
    return options


def _under_vmap(leaf: Any) -> tuple[Any, int]:
    """The array that vmap maps over, and the size of its batch, if ``leaf`` is its view of one.

    Outside jit, vmap runs programs as they come.
    """
    size = 1
    while hasattr(leaf, "batch_dim"):
        size *= 1 if leaf.batch_dim is None else leaf.val.shape[leaf.batch_dim]
        leaf = leaf.val
    return leaf, size


def known_platform(leaves: list[Any]) -> str | None:
    """Where these numbers lie, "cpu", "gpu" or "tpu", or will lie by default; None for what JAX traces."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return None
    platforms = {device.platform for leaf in leaves if isinstance(leaf, jax.Array) for device in leaf.devices()}
    platforms = platforms or {default_platform()}
    return platforms.pop() if len(platforms) == 1 else None


class Program:
    """A function as one program, compiled with as much effort as it is worth: what :func:`program` makes of it."""

    def __init__(self, function: Callable, runs: str, settings: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._runs, self._settings = function, runs, settings
        self._inside = jax.jit(function, **settings)
        self._alone: dict[tuple[str, str], Any] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._jitted(arguments, named)(*arguments, **named)

    def _jitted(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        leaves = [_under_vmap(leaf) for leaf in jax.tree.leaves((arguments, named))]
        platform = None if is_tracing() else known_platform([array for array, _ in leaves])
        if platform not in ("cpu", "gpu"):
            return self._inside
        is_large = any(size > _FEW for _, size in leaves)
        runs = "often" if self._runs == "once" and is_large else self._runs
        kind = platform, runs
        if kind not in self._alone:
            self._alone[kind] = jax.jit(self._function, compiler_options=_options(*kind), **self._settings)
        return self._alone[kind]

    def eval_shape(self, *arguments: Any) -> Any:
        """The shapes of what the program gives, from arguments or their shapes."""
        return self._jitted(arguments, {}).eval_shape(*arguments)

    def lower(self, *arguments: Any) -> jax.stages.Lowered:
        """What the compiler is given for arguments like these, or of these shapes. Later calls find what it makes.

        Threads may call what is compiled. They would trace anything else by settings of their own: those that a
        ``with`` statement makes for one thread, such as ``jax.enable_x64``, do not hold in others.
        """
        return self._jitted(arguments, {}).lower(*arguments)


def program(runs: str, **settings: Any) -> Callable[[Callable], Program]:
    """A function as one program, ``jax.jit(function, **settings)``, compiled with as much effort as it is worth.

    :param runs: "once", "often" or "draws". What runs once alone runs often in a large batch.

    Only what is compiled by itself can be told how. Inside what JAX traces this is a jitted function like others.
    """
    return lambda function: Program(function, runs, settings)


def compile_side_by_side(first: jax.stages.Lowered, second: Callable[[], jax.stages.Lowered]) -> None:
    """Compiles two programs on two cores; the second is traced while the first one is compiled."""
    with ThreadPoolExecutor(1) as thread:
        compiling = thread.submit(first.compile)
        second().compile()
        compiling.result()
