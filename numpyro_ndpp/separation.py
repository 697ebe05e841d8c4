r"""Which entries of an array belong to which member of a batch: read off what JAX traces, not off names or numbers.

A function takes a batch x of shape (m₁, ..., mₖ, ...). Dimension i of the batch *lies along* axis a of a result if the
entry at p depends on the members with index pₐ in that dimension, and on no others. This is followed through the
operations of the function, one by one. A sum over the axis loses it. So does every operation without a rule here: the
answer "does not depend" or "lies along" is proved, whatever the numbers are; the answer "unknown" may be overcautious.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

__all__ = ["axes_of_batch", "separated"]

_Axes = tuple[int | None, ...]  # for every dimension of the batch the axis that it lies along; None where unknown
_Places = dict[int, int]  # where the axes of an operand are in the result


def axes_of_batch(function: Callable[[Array], Any], batch: Array, num_dims: int) -> Any:
    """For every array of ``function(batch)``, the axis that each dimension of the batch lies along; None where unknown.

    () for an array that does not depend on the batch.

    :param num_dims: how many leading dimensions of the batch count its members, at least one.

    The function is traced once and not run.

    >>> import jax.numpy as jnp
    >>> def function(x):
    ...     return {"own": x.sum(axis=1), "all": x.sum(axis=0), "none": jnp.ones(3), "turned": 2 * x.T}
    >>> axes_of_batch(function, jnp.zeros((3, 2)), 1)
    {'all': (None,), 'none': (), 'own': (0,), 'turned': (1,)}
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(batch)
    if traced.effects:  # what is written to memory, and read again, is not followed
        return jax.tree.map(lambda _: (None,) * num_dims, shapes)
    found = _follow(traced.jaxpr, [tuple(range(num_dims))])
    return jax.tree.unflatten(jax.tree.structure(shapes), [() if axes is None else axes for axes in found])


def separated(
    function: Callable[[Array], dict[str, Array]], batch: Array, num_dims: int
) -> Callable[[Array], Array] | None:
    """``own(batch)``: the sum (m,) of all entries of ``function(batch)`` that depend on each of m members.

    None unless it is proved that every entry depends on one member at the most. What depends on none is left out.

    >>> import jax.numpy as jnp
    >>> batch = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> own = separated(lambda x: {"a": x, "b": jnp.exp(x[:, 0]), "c": jnp.ones(5)}, batch, 1)
    >>> [f"{total:.2f}" for total in own(batch)]
    ['5.72', '27.09']
    >>> print(separated(lambda x: {"a": x, "b": x.sum(axis=0)}, batch, 1))
    None
    """
    axes = axes_of_batch(function, batch, num_dims)
    # Of a dimension of length one there is nothing to tell apart.
    long = [dim for dim in range(num_dims) if batch.shape[dim] > 1]
    along = {name: [each[dim] for dim in long] for name, each in axes.items() if each}
    if any(None in each for each in along.values()):
        return None

    def own(batch: Array) -> Array:
        results = function(batch)
        return sum((_own_sums(results[name], each) for name, each in along.items()), jnp.zeros(number))

    number = math.prod(batch.shape[:num_dims])
    return own


def _own_sums(array: Array, axes: list[int]) -> Array:
    """The sum (m,) for every member, the batch's dimensions along these axes."""
    rest = sorted(axes)
    sums = jnp.sum(array, axis=tuple(axis for axis in range(array.ndim) if axis not in rest))
    return jnp.transpose(sums, [rest.index(axis) for axis in axes]).ravel()


def _follow(jaxpr: Jaxpr, given: Sequence[_Axes | None]) -> list[_Axes | None]:
    """The axes of the results of a jaxpr by those of its arguments; None for what does not depend on the batch."""
    known: dict[Any, _Axes | None] = dict(zip(jaxpr.invars, given, strict=True))

    def read(variables: Iterable[Any]) -> list[_Axes | None]:
        return [None if isinstance(variable, Literal) else known.get(variable) for variable in variables]

    for equation in jaxpr.eqns:
        inputs = read(equation.invars)
        if any(axes is not None for axes in inputs):
            known.update(zip(equation.outvars, _through(equation, inputs), strict=True))
    return read(jaxpr.outvars)


def _through(equation: Any, inputs: list[_Axes | None]) -> list[_Axes | None]:
    """The axes of the results of an operation; some of the operands depend on the batch."""
    name, params, number = equation.primitive.name, equation.params, len(equation.outvars)
    if name == "optimization_barrier":
        return inputs
    if name in _CALLS:
        inner = params[_CALLS[name]]
        return _follow(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, inputs)
    if name == "custom_linear_solve":  # the solution is what its function "solve" makes of its constants and the rest
        lengths = params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        constants, rest = inputs[first : first + lengths.solve], inputs[sum(lengths) :]
        return _follow(params["jaxprs"].solve.jaxpr, [*constants, *rest])
    if name == "cond" and inputs[0] is None:
        branches = [_follow(branch.jaxpr, inputs[1:]) for branch in params["branches"]]
        return [_joined(axes) for axes in zip(*branches, strict=True)]
    if name in _RULES:
        places = _RULES[name](equation)
        moved = [
            None if axes is None else tuple(None if axis is None else place.get(axis) for axis in axes)
            for axes, place in zip(inputs, places, strict=True)
        ]
        return [_joined(moved)] * number
    return [_joined([axes and (None,) * len(axes) for axes in inputs])] * number


def _joined(many: Sequence[_Axes | None]) -> _Axes | None:
    """The axes of what depends on all of these."""
    dependent = [axes for axes in many if axes is not None]
    if not dependent:
        return None
    return tuple(each[0] if len(set(each)) == 1 else None for each in zip(*dependent, strict=True))


# --- Where axes go, one rule for a kind of operation ------------------------------------------------------------------


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def _same(variable: Any) -> _Places:
    return {axis: axis for axis in range(len(_shape(variable)))}


def _elementwise(equation: Any) -> list[_Places]:
    """An axis of length one may stand for any length; a scalar, beside larger arrays, for all entries."""
    shape = _shape(equation.outvars[0])
    return [
        {axis: axis for axis, length in enumerate(_shape(operand)) if length == shape[axis]}
        if len(_shape(operand)) == len(shape)
        else {}
        for operand in equation.invars
    ]


def _leading(num_core: int) -> Callable[[Any], list[_Places]]:
    """A function of the last dimensions, for each index of those before."""
    return lambda equation: [
        {axis: axis for axis in range(len(_shape(operand)) - num_core)} for operand in equation.invars
    ]


def _without(param: str, keep: bool) -> Callable[[Any], list[_Places]]:
    """Axes by their numbers in ``param`` are lost: gone, or, where they are kept, mixed."""

    def rule(equation: Any) -> list[_Places]:
        lost = equation.params[param]
        lost = tuple(lost) if isinstance(lost, Iterable) else (lost,)
        rest = [axis for axis in _same(equation.invars[0]) if axis not in lost]
        return [{axis: axis if keep else place for place, axis in enumerate(rest)} for _ in equation.invars]

    return rule


def _stack(equation: Any) -> list[_Places]:
    new = equation.params["axis"]
    return [{axis: axis + (axis >= new) for axis in _same(operand)} for operand in equation.invars]


def _broadcast(equation: Any) -> list[_Places]:
    operand, result = equation.invars[0], equation.outvars[0]
    pairs = enumerate(map(int, equation.params["broadcast_dimensions"]))
    stay = {axis: place for axis, place in pairs if _shape(operand)[axis] == _shape(result)[place]}
    return [stay, *({} for _ in equation.invars[1:])]


def _transpose(equation: Any) -> list[_Places]:
    return [{axis: place for place, axis in enumerate(equation.params["permutation"])}]


def _reshape(equation: Any) -> list[_Places]:
    """An axis stays one if it has its length, and as many entries before it."""
    before, after = _shape(equation.invars[0]), _shape(equation.outvars[0])
    places = {(math.prod(after[:place]), length): place for place, length in enumerate(after)}
    keys = {axis: (math.prod(before[:axis]), length) for axis, length in enumerate(before)}
    stay = {axis: places[key] for axis, key in keys.items() if key in places}
    if equation.params["dimensions"] is not None:  # the axes change their order first
        stay = {}
    return [stay, *({} for _ in equation.invars[1:])]


def _whole_axes(equation: Any) -> list[_Places]:
    """Parts of an array: axes that are taken whole stay."""
    operand, shape = equation.invars[0], _shape(equation.outvars[0])
    whole = {axis: axis for axis in _same(operand) if _shape(operand)[axis] == shape[axis]}
    return [whole, *({} for _ in equation.invars[1:])]


def _update_slice(equation: Any) -> list[_Places]:
    operand, update = equation.invars[:2]
    whole = {axis: axis for axis in _same(operand) if _shape(operand)[axis] == _shape(update)[axis]}
    return [_same(operand), whole, *({} for _ in equation.invars[2:])]


def _pad(equation: Any) -> list[_Places]:
    config = enumerate(equation.params["padding_config"])
    return [{axis: axis for axis, edges in config if tuple(edges) == (0, 0, 0)}, {}]


def _dot_general(equation: Any) -> list[_Places]:
    contracted, batches = equation.params["dimension_numbers"]
    result, place = [], len(batches[0])  # the axes of a batch come first, then the others of both operands
    for operand, gone, batch in zip(equation.invars, contracted, batches, strict=True):
        places = {axis: number for number, axis in enumerate(batch)}
        for axis in _same(operand):
            if axis not in gone and axis not in batch:
                places[axis] = place
                place += 1
        result.append(places)
    return result


def _gather(equation: Any) -> list[_Places]:
    operand, result, numbers = equation.invars[0], equation.outvars[0], equation.params["dimension_numbers"]
    outer = [axis for axis in _same(result) if axis not in numbers.offset_dims]  # one for every axis of the indices
    hidden = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    window = [axis for axis in _same(operand) if axis not in hidden]
    places = {
        axis: place
        for axis, place in zip(window, numbers.offset_dims, strict=True)
        if equation.params["slice_sizes"][axis] == _shape(operand)[axis]
    }
    for axis, index_axis in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        places[axis] = outer[index_axis]
    return [places, dict(enumerate(outer))]


def _scatter(equation: Any) -> list[_Places]:
    (operand, _, updates), numbers = equation.invars, equation.params["dimension_numbers"]
    batches = dict(zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True))
    hidden = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [axis for axis in _same(operand) if axis not in hidden]
    places = {
        axis: place
        for axis, place in zip(numbers.update_window_dims, window, strict=True)
        if _shape(updates)[axis] == _shape(operand)[place]
    }
    outer = [axis for axis in _same(updates) if axis not in numbers.update_window_dims]
    places |= {axis: batches[number] for number, axis in enumerate(outer) if number in batches}
    return [_same(operand), batches, places]


_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
}

_ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
    convert_element_type copy cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
    igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or
    polygamma population_count pow random_gamma_grad real reduce_precision regularized_incomplete_beta rem round rsqrt
    select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan
    tanh xor zeta
"""
_REDUCTIONS = "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin"

_RULES: dict[str, Callable[[Any], list[_Places]]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(_REDUCTIONS.split(), _without("axes", keep=False)),
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "split"], _without("axis", keep=True)),
    **dict.fromkeys(["scatter", *(f"scatter-{kind}" for kind in ("add", "sub", "mul", "min", "max"))], _scatter),
    **dict.fromkeys(["cholesky", "triangular_solve", "lu", "eigh", "svd"], _leading(2)),
    "lu_pivots_to_permutation": _leading(1),
    "sort": _without("dimension", keep=True),
    "concatenate": _without("dimension", keep=True),
    "rev": _without("dimensions", keep=True),
    "squeeze": _without("dimensions", keep=False),
    "unstack": _without("axis", keep=False),
    "stack": _stack,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "slice": _whole_axes,
    "dynamic_slice": _whole_axes,
    "dynamic_update_slice": _update_slice,
    "pad": _pad,
    "dot_general": _dot_general,
    "gather": _gather,
}
