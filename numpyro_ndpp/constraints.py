"""The supports of subset distributions, and the constraints on a kernel's matrices, as NumPyro constraints."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions.constraints import ParameterFreeConstraint, real_matrix, real_vector
from numpyro.distributions.transforms import Transform, biject_to
from numpyro.util import not_jax_tracer

from numpyro_ndpp.devices import is_spread
from numpyro_ndpp.programs import known_platform

__all__ = ["finite_matrix", "log_weights", "positive_semidefinite_part", "subset"]


def _namespace(x: Any) -> Any:
    """NumPy for known values: it compiles nothing."""
    return np if not_jax_tracer(x) else jnp


class _Subset(ParameterFreeConstraint):
    """Padded subsets: increasing item numbers below ``num_items``, then ``num_items`` up to any width.

    It depends on static numbers only, not on a distribution's parameters, so mixtures may have it.
    """

    is_discrete = True
    event_dim = 1

    def __init__(self, num_items: int, min_size: int, max_size: int) -> None:
        self.num_items, self.min_size, self.max_size = num_items, min_size, max_size

    def __call__(self, x: Any) -> ArrayLike:
        xp = _namespace(x)
        x = xp.asarray(x)
        if jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize < 4:
            x = x.astype(xp.int32)  # num_items may be too large for a narrow type
        in_range = ((x >= 0) & (x <= self.num_items)).all(axis=-1)
        before, after = x[..., :-1], x[..., 1:]
        increasing = ((before < after) | (after == self.num_items)).all(axis=-1)
        size = (x < self.num_items).sum(axis=-1)
        return in_range & increasing & (size >= self.min_size) & (size <= self.max_size)

    def feasible_like(self, prototype: ArrayLike) -> jax.Array:
        """The first ``min_size`` items: the empty set if that is allowed, items 0 .. k-1 for a fixed size k."""
        items = jnp.arange(jnp.shape(prototype)[-1])
        value = jnp.where(items < self.min_size, items, self.num_items).astype(jnp.result_type(prototype))
        return jnp.broadcast_to(value, jnp.shape(prototype))

    def tree_flatten(self) -> tuple[Any, Any]:
        return (), ((), dict(vars(self)))

    def eq(self, other: object, static: bool = False) -> ArrayLike:
        return isinstance(other, _Subset) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"Subset(num_items={self.num_items}, min_size={self.min_size}, max_size={self.max_size})"


class _PositiveSemidefinitePart(ParameterFreeConstraint):
    """Square matrices W with W + Wᵀ positive semidefinite up to rounding: then every minor of X W Xᵀ is ≥ 0."""

    event_dim = 2

    def __call__(self, x: Any) -> ArrayLike:
        xp = _namespace(x)
        x = xp.asarray(x)
        finite = xp.isfinite(x).all(axis=(-2, -1))
        safe = xp.where(finite[..., None, None], x, 0.0)
        smallest = xp.linalg.eigvalsh(safe + xp.swapaxes(safe, -2, -1))[..., :1].min(axis=-1, initial=0.0)
        norm = xp.sqrt((safe * safe).sum(axis=(-2, -1)))
        # A product such as AᵀA carries a few eps of its norm per column.
        tolerance = 16 * x.shape[-1] * xp.finfo(safe.dtype).eps
        return finite & (smallest >= -tolerance * norm)

    def feasible_like(self, prototype: ArrayLike) -> jax.Array:
        return jnp.broadcast_to(jnp.eye(jnp.shape(prototype)[-1]), jnp.shape(prototype))

    def __repr__(self) -> str:
        return "PositiveSemidefinitePart()"


class _FiniteMatrix(ParameterFreeConstraint):
    """Real matrices without infinities and NaN."""

    event_dim = 2

    def __call__(self, x: Any) -> ArrayLike:
        is_here = known_platform([x]) == "cpu" and not is_spread(x)
        return np.isfinite(np.asarray(x)).all(axis=(-2, -1)) if is_here else _is_finite(x)

    def feasible_like(self, prototype: ArrayLike) -> jax.Array:
        return jnp.zeros_like(prototype)

    def __repr__(self) -> str:
        return "FiniteMatrix()"


@jax.jit
def _is_finite(x: jax.Array) -> jax.Array:
    return jnp.isfinite(x).all(axis=(-2, -1))


@biject_to.register(_FiniteMatrix)
def _(constraint: _FiniteMatrix) -> Transform:
    return biject_to(real_matrix)


class _LogWeights(ParameterFreeConstraint):
    """Logarithms of weights, vectors of one entry at least: no NaN, not +inf, and one weight that is not zero."""

    event_dim = 1

    def __call__(self, x: Any) -> ArrayLike:
        xp = _namespace(x)
        x = xp.asarray(x)
        return (x < xp.inf).all(axis=-1) & (x > -xp.inf).any(axis=-1)

    def feasible_like(self, prototype: ArrayLike) -> jax.Array:
        return jnp.zeros_like(prototype)

    def __repr__(self) -> str:
        return "LogWeights()"


@biject_to.register(_LogWeights)
def _(constraint: _LogWeights) -> Transform:
    return biject_to(real_vector)


subset = _Subset
log_weights = _LogWeights()
finite_matrix = _FiniteMatrix()
positive_semidefinite_part = _PositiveSemidefinitePart()
