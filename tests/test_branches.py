"""A condition stays one within vmap: what no member of a batch needs is not computed."""

import jax
import jax.numpy as jnp
import numpy as np
from kernels import PARTS, factors

from numpyro_ndpp import NDPP
from numpyro_ndpp.branches import where_needed


def slow_double(needed, x):
    return where_needed(needed, lambda: 2 * x, x)


def double_or_computed(needed, x):
    return where_needed(needed, lambda: 2 * x, lambda: jnp.sqrt(x) ** 2)


def test_each_member_has_its_own():
    needed, x = jnp.array([True, False, True]), jnp.arange(3.0)
    for function in (jax.vmap(slow_double), jax.jit(jax.vmap(slow_double)), jax.vmap(double_or_computed)):
        np.testing.assert_array_equal(function(needed, x), [0.0, 1.0, 4.0])
    np.testing.assert_array_equal(jax.vmap(jax.vmap(slow_double))(needed[None], x[None])[0], [0.0, 1.0, 4.0])
    np.testing.assert_array_equal(jax.vmap(slow_double, (None, 0))(jnp.asarray(True), x), 2 * x)
    assert slow_double(jnp.asarray(False), 3.0) == 3.0


def test_it_stays_a_condition_on_all_members():
    jaxpr = jax.make_jaxpr(jax.vmap(slow_double))(jnp.zeros(4, bool), jnp.zeros(4))
    (condition,) = [equation for equation in jaxpr.eqns if equation.primitive.name == "cond"]
    assert condition.invars[0].aval.shape == ()


def test_what_is_there_otherwise_is_computed_on_its_branch_alone():
    jaxpr = jax.make_jaxpr(double_or_computed)(jnp.asarray(False), 3.0)
    assert "sqrt" not in [equation.primitive.name for equation in jaxpr.eqns]
    assert double_or_computed(jnp.asarray(False), 4.0) == 4.0


def test_greedy_subsets_of_a_batch_are_those_of_its_members():
    """Kernels whose runs need single items, pairs and repairs, side by side."""
    X, W = (np.stack(parts) for parts in zip(*(factors(name) for name in PARTS if same_shape(name)), strict=True))
    together = NDPP.from_factors(X, W).greedy(4)
    alone = [NDPP.from_factors(*kernel).greedy(4) for kernel in zip(X, W, strict=True)]
    np.testing.assert_array_equal(together, np.stack(alone))


def same_shape(name):
    return [part.shape for part in factors(name)] == [part.shape for part in factors("ordinary")]


def test_sums_of_a_batch_are_those_of_its_members():
    """Kernels whose sums need a circle beside some that need one determinant, with their derivatives."""
    X, W = factors("ordinary")
    scales = jnp.array([0.01, 10.0])  # small kernels are mostly empty: then e_0 cannot be subtracted

    def log_normalizer(scale):
        return NDPP.from_factors(scale * X, W, min_size=1, validate_args=False).log_normalizer

    together = jax.jit(jax.vmap(jax.value_and_grad(log_normalizer)))(scales)
    alone = [jax.jit(jax.value_and_grad(log_normalizer))(scale) for scale in scales]
    np.testing.assert_allclose(together, np.transpose(alone), rtol=1e-12)
