r"""NDPP and KNDPP, random subsets as NumPyro distributions: shapes, supports and batching.

Four siblings stand on one base, which knows a kernel only by its factors X and W and the law by its smallest and
largest size: ``NDPP`` and ``KNDPP`` take V, B, D; what ``from_factors`` returns takes X and W.
"""

import copy
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.batch_util import promote_batch_shape, vmap_over
from numpyro.distributions.util import lazy_property, validate_sample
from numpyro.util import not_jax_tracer

from numpyro_ndpp import polynomials
from numpyro_ndpp.constraints import positive_semidefinite_part, subset
from numpyro_ndpp.greedy import exchange, greedy_map
from numpyro_ndpp.kernel import gram, inner_matrix, log_minors, quadratic_forms
from numpyro_ndpp.samplers import UpDown
from numpyro_ndpp.subsets import items_of_mask, to_multihot

__all__ = ["KNDPP", "NDPP", "FactorKNDPP", "FactorNDPP", "Multihot"]

Shape = tuple[int, ...]


def _matrix_shape(name: str, shape: Shape) -> Shape:
    if len(shape) < 2:
        raise ValueError(f"{name} must be a matrix (or a batch of matrices), got shape {shape}")
    return shape[-2:]


def _broadcast_batch(**shapes: Shape) -> Shape:
    try:
        return lax.broadcast_shapes(*(shape[:-2] for shape in shapes.values()))
    except ValueError as error:
        given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"the batch dimensions of {given} do not broadcast") from error


def _shapes_of_parts(V: Shape, B: Shape, D: Shape) -> tuple[Shape, int, int]:
    """Batch shape, number of items and rank from the shapes of V, B, D."""
    n, d1 = _matrix_shape("V", V)
    n_b, d2 = _matrix_shape("B", B)
    if n != n_b:
        raise ValueError(f"V and B must have one row per item each, got V of shape {V} and B of shape {B}")
    if _matrix_shape("D", D) != (d2, d2):
        raise ValueError(f"D must be square with one row per column of B, got D of shape {D} and B of shape {B}")
    if n == 0 or d1 + d2 == 0:
        raise ValueError(f"V and B must have a row and a column at least, got V of shape {V} and B of shape {B}")
    return _broadcast_batch(V=V, B=B, D=D), n, d1 + d2


def _shapes_of_factors(X: Shape, W: Shape) -> tuple[Shape, int, int]:
    n, d = _matrix_shape("X", X)
    if _matrix_shape("W", W) != (d, d):
        raise ValueError(f"W must be square with one row per column of X, got W of shape {W} and X of shape {X}")
    if n == 0 or d == 0:
        raise ValueError(f"X must have a row and a column at least, got shape {X}")
    return _broadcast_batch(X=X, W=W), n, d


def _static_int(name: str, value: Any, low: int, high: int, meaning: str) -> int:
    """``value`` as a Python int between low and high, or a ValueError that says what is allowed."""
    try:
        number = operator.index(value)
    except (TypeError, jax.errors.JAXTypeError):
        raise ValueError(f"{name} must be a Python integer (it sets a shape), got {value!r}") from None
    if not low <= number <= high:
        raise ValueError(f"{name} must be between {low} and {meaning} = {high}, got {number}")
    return number


def _size_limits(min_size: Any, max_size: Any, n: int, d: int) -> tuple[int, int]:
    most = min(n, d)
    high = most if max_size is None else _static_int("max_size", max_size, 0, most, f"min(num_items={n}, rank={d})")
    return _static_int("min_size", min_size, 0, high, "max_size"), high


def _floating(*arrays: ArrayLike) -> tuple[Array, ...]:
    """The arrays in one floating type. Concrete ones stay concrete inside jit, so that they can be validated there."""
    with jax.ensure_compile_time_eval():
        converted = [jnp.asarray(array) for array in arrays]
        dtype = jnp.result_type(*converted)
        if not jnp.issubdtype(dtype, jnp.floating):
            dtype = jnp.result_type(float)
        return tuple(array.astype(dtype) for array in converted)


@partial(jax.jit, static_argnums=(0, 3, 4))
def _prepare(sampler: Any, X: Array, W: Array, min_size: int, max_size: int) -> Any:
    """What the sampler prepares for kernels X (..., n, d), W (..., d, d), with the same leading dimensions."""
    prepare = partial(sampler.prepare, min_size=min_size, max_size=max_size)
    for _ in X.shape[:-2]:
        prepare = jax.vmap(prepare)
    return prepare(X, W)


@partial(jax.jit, static_argnums=0)
def _sample_kernels(sampler: Any, states: Any, keys: Array) -> Array:
    """Subsets (kernels, draws, max_size) of several kernels, prepared, with keys (kernels, draws)."""
    if keys.shape[1] == 1:
        return jax.vmap(sampler.sample)(states, keys)
    # A sampler has as many draws of one kernel at a time as memory allows.
    return lax.map(lambda kernel: sampler.sample(*kernel), (states, keys))


class _SubsetDistribution(Distribution):
    """The law P(S) ∝ det L_S over the subsets of min_size to max_size items, L = X W Xᵀ."""

    reparametrized_params: ClassVar[list[str]] = []
    pytree_data_fields: tuple[str, ...] = ("_prepared",)
    pytree_aux_fields: tuple[str, ...] = ("min_size", "max_size", "sampler")
    has_enumerate_support = False

    X: Any
    W: Any
    min_size: int
    max_size: int
    sampler: Any
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
        prepared._prepared = self._state()
        return prepared

    def _state(self) -> Any:
        """What the sampler has prepared, each of its arrays with the batch's dimensions in front."""
        state = self._cached if self._prepared is None else self._prepared
        if state is not None:
            return state
        # Concrete parameters are prepared once, within jit too.
        with jax.ensure_compile_time_eval():
            X = jnp.broadcast_to(self.X, (*self.batch_shape, self.num_items, self.rank))
            W = jnp.broadcast_to(self.W, (*self.batch_shape, self.rank, self.rank))
            if not_jax_tracer(X) and not_jax_tracer(W):
                self._cached = _prepare(self.sampler, X, W, self.min_size, self.max_size)
                return self._cached
        return _prepare(self.sampler, X, W, self.min_size, self.max_size)

    def sample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draws of shape ``sample_shape + batch_shape + event_shape``, int32, by the distribution's ``sampler``.

        Under jit a draw that cannot be made is -1 throughout: no subset of an allowed size has positive probability, or
        the sampler gave up.

        :raises ValueError: outside jit, for a draw that cannot be made.
        """
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = random.wrap_key_data(key)
        num_draws, num_kernels = math.prod(sample_shape), math.prod(self.batch_shape)
        if num_draws * num_kernels == 0:
            return jnp.zeros(self.shape(tuple(sample_shape)), jnp.int32)
        keys, state = random.split(key, (num_kernels, num_draws)), self._state()
        if self.batch_shape:
            num_dims = len(self.batch_shape)
            states = jax.tree.map(lambda array: array.reshape(num_kernels, *array.shape[num_dims:]), state)
            draws = jnp.moveaxis(_sample_kernels(self.sampler, states, keys), 0, 1)
        else:
            draws = self.sampler.sample(state, keys[0])
        draws = draws.reshape(self.shape(tuple(sample_shape)))
        if not_jax_tracer(draws) and (draws < 0).any():
            failure = self.sampler.failure(state) if hasattr(self.sampler, "failure") else "they have probability zero"
            raise ValueError(
                f"no subset of {self._sizes_in_words()} items could be drawn by {self.sampler} from this kernel: "
                f"{failure}"
            )
        return draws

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: list[Any] | None = None) -> Array:
        """Exact, normalised log-probability of padded subsets of any width (..., m).

        One normaliser, O(n d² + d³) (and O(N d³) with limits on the size, N ≤ d + 4), serves all subsets; each takes
        O(m d² + m² d + m³) at about its own size m. -inf outside the support, with a gradient of zero.

        :raises TypeError: for values that are not integers.
        """
        value = jnp.asarray(value)
        if not jnp.issubdtype(value.dtype, jnp.integer):
            raise TypeError(f"value must hold integer item numbers, got {value.dtype}; for 0/1 vectors use multihot()")
        if value.ndim == 0:
            raise ValueError("value must have one dimension at least: the items of a subset")
        inside = self.support(value)
        # No subset in the support is larger than max_size, so the columns beyond that are padding.
        subsets = jnp.where(inside[..., None], value, self.num_items)[..., : self.max_size].astype(jnp.int32)
        log_minor = self._log_minors(subsets)
        log_normalizer = self.log_normalizer
        possible = inside & (log_minor > -jnp.inf) & (log_normalizer != -jnp.inf)
        return jnp.where(possible, log_minor - jnp.where(possible, log_normalizer, 0.0), -jnp.inf)

    def _log_minors(self, subsets: Array) -> Array:
        """log det L_S of subsets (..., m), their leading dimensions broadcast with the batch of kernels."""
        num_batch_dims = len(self.batch_shape)
        subsets = subsets.reshape((1,) * (num_batch_dims + 1 - subsets.ndim) + subsets.shape)
        sample_dims = subsets.shape[: subsets.ndim - 1 - num_batch_dims]
        # Kernels in front, then all the subsets of one kernel: a kernel sees its subsets together.
        flat = subsets.reshape((math.prod(sample_dims), *subsets.shape[len(sample_dims) :]))
        by_kernel = jnp.moveaxis(flat, 0, num_batch_dims)
        values = jnp.vectorize(log_minors, signature="(n,d),(e,e),(s,m)->(s)")(self.X, self._inner_block, by_kernel)
        return jnp.moveaxis(values, -1, 0).reshape(sample_dims + values.shape[:-1])

    def _per_kernel(self, function: Callable[..., Array], out: str) -> Array:
        """``function(X, W, C)`` of every kernel of the batch."""
        return jnp.vectorize(function, signature=f"(n,d),(d,e),(d,f)->{out}")(self.X, self.W, self._gram)

    @property
    def _inner_block(self) -> Array:
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
        return jnp.vectorize(gram, signature="(n,d)->(d,d)")(self.X)

    def _log_normalizer(self, W: Array, C: Array) -> Array:
        return polynomials.log_sum_esp(W, C, self.min_size, self.max_size, min(self.num_items, self.rank))

    @lazy_property
    def log_normalizer(self) -> Array:
        """log Σ det L_S over the support (batch shape): log det(I + L) without size limits, log e_k for size k."""
        return self._per_kernel(lambda X, W, C: self._log_normalizer(W, C), "()")

    def size_log_prob(self) -> Array:
        """log P(size = j) for j = 0 .. d, (..., d+1). O(d³); its derivatives cost O(d⁵)."""

        def of_kernel(X: Array, W: Array, C: Array) -> Array:
            log_e = polynomials.log_esps(W, C)
            log_e = polynomials.restrict_sizes(log_e, self.min_size, self.max_size)
            log_sum = jax.nn.logsumexp(log_e)
            return jnp.where(log_e > -jnp.inf, log_e - log_sum, -jnp.inf)

        return self._per_kernel(of_kernel, "(s)")

    def inclusion_probs(self) -> Array:
        r"""P(a ∈ S) for every item a, exact, (..., n). O(n d²) beyond the normaliser, O(n d) memory.

        The derivative of the log-normaliser in the logarithm of item a's quality: with G = ∂ log Z / ∂C it is
        :math:`x_a^\top G x_a`, for G = W (I + C W)⁻¹ without limits on the size.
        """

        def of_kernel(X: Array, W: Array, C: Array) -> Array:
            return quadratic_forms(X, jax.grad(self._log_normalizer, argnums=1)(W, C))

        return self._per_kernel(of_kernel, "(n)")

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
            low = high = _static_int("k", k, 0, most, f"min(num_items={self.num_items}, rank={self.rank})")
        num_exchanges = _static_int("num_exchanges", num_exchanges, 0, 2**31 - 1, "the largest")

        def of_kernel(X: Array, W: Array, C: Array) -> Array:
            items = greedy_map(X, W, C, low, high)
            return exchange(X, W, items, num_exchanges) if num_exchanges and high else items

        return self._per_kernel(of_kernel, "(k)")

    @property
    def mode(self) -> Array:
        """``greedy()``: an approximation of the most probable subset."""
        return self.greedy()

    def with_expected_size(self, expected_size: ArrayLike) -> "_SubsetDistribution":
        """The NDPP of the kernel rescaled so that the mean size is ``expected_size``, within the limits on the size.

        :param expected_size: a number between the smallest and the largest size, both exclusive; may be an array of
            the batch's shape, may be traced.
        :raises ValueError: outside jit, for a mean size that no scale reaches.

        Differentiable in the parameters and in ``expected_size``.
        """
        low, high = self._ndpp_size_limits()
        expected_size = jnp.asarray(expected_size, self.X.dtype)
        concrete = not_jax_tracer(expected_size)
        if concrete and not ((expected_size > low) & (expected_size < high)).all():
            raise ValueError(f"expected_size must be between {low} and {high}, both exclusive, got {expected_size}")

        def of_kernel(W: Array, C: Array, size: Array) -> Array:
            return polynomials.log_scale_of_mean_size(W, C, size, low, high, min(self.num_items, self.rank))

        log_scale = jnp.vectorize(of_kernel, signature="(d,e),(d,f),()->()")(self.W, self._gram, expected_size)
        scaled = self._scaled_ndpp(
            jnp.exp(log_scale / 2)[..., None, None],
            min_size=low,
            max_size=high,
            sampler=self.sampler,
            validate_args=self._validate_args,
        )
        if concrete and not_jax_tracer(log_scale) and self._validate_args:
            reached = jnp.sum(jnp.exp(scaled.size_log_prob()) * jnp.arange(self.rank + 1), axis=-1)
            if not (jnp.abs(reached - expected_size) < 1e-2).all():
                raise ValueError(f"expected_size is {expected_size}, but this kernel reaches no more than {reached}")
        return scaled

    def multihot(self) -> "Multihot":
        """The same law over vectors of n zeros and ones."""
        return Multihot(self, validate_args=self._validate_args)

    def _sizes_in_words(self) -> str:
        return str(self.min_size) if self.min_size == self.max_size else f"{self.min_size} to {self.max_size}"

    def _ndpp_size_limits(self) -> tuple[int, int]:
        return self.min_size, self.max_size

    def _scaled_ndpp(self, root: Array, **settings: Any) -> "_SubsetDistribution":
        """The NDPP whose features are multiplied by ``root`` (..., 1, 1)."""
        raise NotImplementedError


class _FixedSize(_SubsetDistribution):
    """Members that differ where the size is fixed."""

    pytree_aux_fields: tuple[str, ...] = ("k",)
    k: int

    def _ndpp_size_limits(self) -> tuple[int, int]:
        return 0, min(self.num_items, self.rank)


class _Parts(_SubsetDistribution):
    """Kernels given by V, B and D."""

    arg_constraints: ClassVar[dict[str, Any]] = {
        "V": constraints.real_matrix,
        "B": constraints.real_matrix,
        "D": constraints.real_matrix,
    }
    V: Any
    B: Any
    D: Any

    @lazy_property
    def X(self) -> Array:
        """The features [V B] (..., n, d), one row per item."""
        batch_shape = _broadcast_batch(V=self.V.shape, B=self.B.shape)
        V, B = (jnp.broadcast_to(part, batch_shape + part.shape[-2:]) for part in (self.V, self.B))
        return jnp.concatenate([V, B], axis=-1)

    @lazy_property
    def W(self) -> Array:
        """The inner matrix Diag(I, D - Dᵀ) (..., d, d)."""
        return jnp.vectorize(partial(inner_matrix, self.V.shape[-1]), signature="(d,d)->(e,e)")(self._inner_block)

    @property
    def _inner_block(self) -> Array:
        return self.D - jnp.swapaxes(self.D, -2, -1)

    @property
    def num_items(self) -> int:
        """The number n of items."""
        return self.V.shape[-2]

    @property
    def rank(self) -> int:
        """The number d of features, the largest rank that the kernel can have."""
        return self.V.shape[-1] + self.B.shape[-1]

    def _scaled_ndpp(self, root: Array, **settings: Any) -> "NDPP":
        return NDPP(self.V * root, self.B * root, self.D, **settings)


class _Factors(_SubsetDistribution):
    """Kernels given by X and W."""

    arg_constraints: ClassVar[dict[str, Any]] = {"X": constraints.real_matrix, "W": positive_semidefinite_part}

    def _scaled_ndpp(self, root: Array, **settings: Any) -> "FactorNDPP":
        return FactorNDPP(self.X * root, self.W, **settings)


class NDPP(_Parts):
    r"""Nonsymmetric determinantal point process: a random subset S of n items,

    .. math:: P(S) = \frac{\det L_S}{\det(I + L)}, \qquad L = V V^\top + B (D - D^\top) B^\top .

    V makes like items repel, as an ordinary DPP does; B and D add attraction. Any real values give a valid kernel.

    A value is a vector of item numbers, increasing, filled up with n: see :func:`~numpyro_ndpp.pad_subsets`.

    :param V: features (..., n, d₁) of the symmetric part.
    :param B: features (..., n, d₂) of the skew part.
    :param D: matrix (..., d₂, d₂), of which D - Dᵀ counts.
    :param min_size: smallest size; the law is the NDPP given that \|S\| is at least that. Default 0.
    :param max_size: largest size, likewise, and the length of the event. Default min(n, d₁ + d₂), above which every
        subset has probability zero.
    :param sampler: the sampler behind :meth:`sample`.
    :raises ValueError: for shapes that do not fit together, sizes that are not allowed, and, with validation on, for
        parameters that are not finite.

    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from numpyro_ndpp import NDPP
    >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])  # items 0 and 1 are alike: they repel
    >>> B = jnp.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])  # items 0 and 2 attract
    >>> D = jnp.array([[0.0, 2.0], [0.0, 0.0]])
    >>> law = NDPP(V, B, D)
    >>> baskets = jnp.array([[0, 1, 3], [0, 2, 3]])  # {0, 1} and {0, 2}; 3 is padding
    >>> print(np.exp(np.float64(law.log_prob(baskets))).round(3))
    [0.001 0.387]
    >>> print(np.float64(law.inclusion_probs()).round(3))
    [0.719 0.381 0.781]
    """

    def __init__(
        self,
        V: ArrayLike,
        B: ArrayLike,
        D: ArrayLike,
        *,
        min_size: int = 0,
        max_size: int | None = None,
        sampler: Any = UpDown(),
        validate_args: bool | None = None,
    ) -> None:
        self.V, self.B, self.D = _floating(V, B, D)
        shapes = self.V.shape, self.B.shape, self.D.shape
        _, n, d = _shapes_of_parts(*shapes)
        self.min_size, self.max_size = _size_limits(min_size, max_size, n, d)
        self.sampler = sampler
        batch_shape, event_shape = self.infer_shapes(*shapes, max_size=self.max_size)
        super().__init__(batch_shape, event_shape, validate_args=validate_args)

    @staticmethod
    def infer_shapes(V: Shape, B: Shape, D: Shape, max_size: int | None = None) -> tuple[Shape, Shape]:
        batch_shape, n, d = _shapes_of_parts(V, B, D)
        return batch_shape, (min(n, d) if max_size is None else max_size,)

    @staticmethod
    def from_factors(
        X: ArrayLike,
        W: ArrayLike,
        *,
        min_size: int = 0,
        max_size: int | None = None,
        sampler: Any = UpDown(),
        validate_args: bool | None = None,
    ) -> "FactorNDPP":
        """The NDPP of the kernel L = X W Xᵀ, for any W whose symmetric part is positive semidefinite up to rounding."""
        return FactorNDPP(X, W, min_size=min_size, max_size=max_size, sampler=sampler, validate_args=validate_args)


class FactorNDPP(_Factors):
    r"""The :class:`NDPP` of the kernel L = X W Xᵀ, as :meth:`numpyro_ndpp.NDPP.from_factors` gives it.

    :param X: features (..., n, d), one row per item.
    :param W: inner matrix (..., d, d) with W + Wᵀ positive semidefinite up to rounding.
    """

    def __init__(
        self,
        X: ArrayLike,
        W: ArrayLike,
        *,
        min_size: int = 0,
        max_size: int | None = None,
        sampler: Any = UpDown(),
        validate_args: bool | None = None,
    ) -> None:
        self.X, self.W = _floating(X, W)
        _, n, d = _shapes_of_factors(self.X.shape, self.W.shape)
        self.min_size, self.max_size = _size_limits(min_size, max_size, n, d)
        self.sampler = sampler
        batch_shape, event_shape = self.infer_shapes(self.X.shape, self.W.shape, max_size=self.max_size)
        super().__init__(batch_shape, event_shape, validate_args=validate_args)

    @staticmethod
    def infer_shapes(X: Shape, W: Shape, max_size: int | None = None) -> tuple[Shape, Shape]:
        batch_shape, n, d = _shapes_of_factors(X, W)
        return batch_shape, (min(n, d) if max_size is None else max_size,)


def _fixed_size(k: Any, n: int, d: int) -> int:
    return _static_int("k", k, 0, min(n, d), f"min(num_items={n}, rank={d})")


class KNDPP(_FixedSize, _Parts):
    r"""Nonsymmetric determinantal point process over the subsets of exactly k items,

    .. math:: P(S) = \frac{\det L_S}{e_k}, \quad |S| = k, \qquad L = V V^\top + B (D - D^\top) B^\top ,

    with e_k the k-th elementary symmetric polynomial of the eigenvalues of L.

    :param V, B, D: the kernel, as for :class:`NDPP`.
    :param k: the size, a Python integer from 0 to min(n, d₁ + d₂).
    :param sampler: the sampler behind :meth:`sample`.
    :raises ValueError: as for :class:`NDPP`, and for k out of range.

    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from numpyro_ndpp import KNDPP
    >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> B = jnp.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    >>> D = jnp.array([[0.0, 2.0], [0.0, 0.0]])
    >>> law = KNDPP(V, B, D, k=2)
    >>> print(np.exp(np.float64(law.log_prob(jnp.array([[0, 1], [0, 2], [1, 2]])))).round(3))
    [0.002 0.859 0.139]
    """

    def __init__(
        self,
        V: ArrayLike,
        B: ArrayLike,
        D: ArrayLike,
        k: int,
        *,
        sampler: Any = UpDown(),
        validate_args: bool | None = None,
    ) -> None:
        self.V, self.B, self.D = _floating(V, B, D)
        shapes = self.V.shape, self.B.shape, self.D.shape
        _, n, d = _shapes_of_parts(*shapes)
        self.k = self.min_size = self.max_size = _fixed_size(k, n, d)
        self.sampler = sampler
        batch_shape, event_shape = self.infer_shapes(*shapes, self.k)
        super().__init__(batch_shape, event_shape, validate_args=validate_args)

    @staticmethod
    def infer_shapes(V: Shape, B: Shape, D: Shape, k: int) -> tuple[Shape, Shape]:
        if isinstance(k, tuple):
            raise NotImplementedError("the event shape of a KNDPP is its k, which no shape tells")
        return _shapes_of_parts(V, B, D)[0], (k,)

    @staticmethod
    def from_factors(
        X: ArrayLike, W: ArrayLike, k: int, *, sampler: Any = UpDown(), validate_args: bool | None = None
    ) -> "FactorKNDPP":
        """The k-NDPP of the kernel L = X W Xᵀ, for any W whose symmetric part is positive semidefinite to rounding."""
        return FactorKNDPP(X, W, k, sampler=sampler, validate_args=validate_args)


class FactorKNDPP(_FixedSize, _Factors):
    """The :class:`KNDPP` of the kernel L = X W Xᵀ, as :meth:`numpyro_ndpp.KNDPP.from_factors` gives it.

    :param X, W: the kernel, as for :class:`FactorNDPP`.
    :param k: the size, a Python integer from 0 to min(n, d).
    """

    def __init__(
        self, X: ArrayLike, W: ArrayLike, k: int, *, sampler: Any = UpDown(), validate_args: bool | None = None
    ) -> None:
        self.X, self.W = _floating(X, W)
        _, n, d = _shapes_of_factors(self.X.shape, self.W.shape)
        self.k = self.min_size = self.max_size = _fixed_size(k, n, d)
        self.sampler = sampler
        batch_shape, event_shape = self.infer_shapes(self.X.shape, self.W.shape, self.k)
        super().__init__(batch_shape, event_shape, validate_args=validate_args)

    @staticmethod
    def infer_shapes(X: Shape, W: Shape, k: int) -> tuple[Shape, Shape]:
        if isinstance(k, tuple):
            raise NotImplementedError("the event shape of a KNDPP is its k, which no shape tells")
        return _shapes_of_factors(X, W)[0], (k,)


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
    base_dist: _SubsetDistribution

    def __init__(self, base_dist: _SubsetDistribution, *, validate_args: bool | None = None) -> None:
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
        value = jnp.asarray(value)
        n = self.base_dist.num_items
        if value.shape[-1:] != (n,):
            raise ValueError(f"value must have one entry for each of the {n} items, got shape {value.shape}")
        mask = jnp.where(self.support(value)[..., None], value, -1)
        items = items_of_mask(mask, self.base_dist.max_size)
        return self.base_dist.log_prob(items)

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


def _vmap_over(dist: _SubsetDistribution, **axes: int | None) -> Any:
    # What was prepared for a batch of kernels has that batch in front.
    batched = any(axis is not None for axis in axes.values())
    return vmap_over.dispatch(Distribution)(dist, _prepared=0 if batched else None, **axes)


@vmap_over.register
def _vmap_over_parts(dist: _Parts, V: int | None = None, B: int | None = None, D: int | None = None) -> Any:
    return _vmap_over(dist, V=V, B=B, D=D)


@vmap_over.register
def _vmap_over_factors(dist: _Factors, X: int | None = None, W: int | None = None) -> Any:
    return _vmap_over(dist, X=X, W=W)


@vmap_over.register
def _vmap_over_multihot(dist: Multihot, **axes: int | None) -> Any:
    return vmap_over.dispatch(Distribution)(dist, base_dist=vmap_over(dist.base_dist, **axes))


@promote_batch_shape.register
def _promote_batch_shape_multihot(dist: Multihot) -> Multihot:
    return Multihot(promote_batch_shape(dist.base_dist), validate_args=dist._validate_args)
