"""What is padded is computed at its own width, by a switch that stays one within vmap."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from numpyro_ndpp.widths import at_own_width, narrowing_widths


def total_at(widths):
    """The sum over the first entries of x, as many as the width that was taken has, and that width."""
    return lambda size, x: at_own_width(lambda w: lambda x: jnp.array([x[:w].sum(), w]), widths, size, x)


@pytest.mark.parametrize(
    ("width", "smallest", "share"), [(100, 16, 0.4), (7, 16, 0.4), (1, 1, 0.4), (200, 32, 0.4), (0, 4, 0.25)]
)
def test_widths(width, smallest, share):
    widths = narrowing_widths(width, smallest, share)
    assert widths[-1] == width
    assert all(a < b for a, b in itertools.pairwise(widths))
    assert widths[0] <= smallest
    assert all(w > smallest for w in widths[1:])


@pytest.mark.parametrize("widths", [(5,), (2, 5), (1, 2, 5)])
@pytest.mark.parametrize("size", range(6))
def test_the_smallest_width_that_holds_the_size(widths, size):
    x = jnp.where(jnp.arange(5) < size, jnp.arange(5.0) + 1, 0.0)
    total, width = jax.jit(total_at(widths))(size, x)
    assert total == size * (size + 1) / 2
    assert width == min(w for w in widths if w >= size)


@pytest.mark.parametrize("widths", [(5,), (2, 5)])
def test_a_batch_has_one_width(widths):
    sizes, x = jnp.array([1, 2, 4]), jnp.ones((3, 5))
    taken = jax.vmap(total_at(widths))(sizes, x)[:, 1]
    np.testing.assert_array_equal(taken, [5, 5, 5])
    assert "select_n" not in str(jax.make_jaxpr(jax.vmap(total_at(widths)))(sizes, x))
    np.testing.assert_array_equal(
        jax.vmap(jax.vmap(total_at(widths)))(sizes[None, :2], x[None, :2])[0, :, 1], widths[:1] * 2
    )


@pytest.mark.parametrize("widths", [(5,), (2, 5)])
def test_within_conditions_and_loops_of_a_batch(widths):
    total, x = total_at(widths), jnp.arange(5.0)

    def conditional(flag, size):
        return lax.cond(flag, lambda: total(size, x), lambda: jnp.zeros(2))[1]

    flags, sizes = jnp.array([True, False]), jnp.array([1, 4])
    np.testing.assert_array_equal(jax.vmap(conditional)(flags, sizes), [5, 0])

    def loop(number):
        return lax.while_loop(
            lambda carry: carry[0] < number, lambda carry: (carry[0] + 1, total(carry[0], x)[1]), (0, 0.0)
        )[1]

    assert (jax.vmap(loop)(jnp.array([1, 2])) > 0).all()
    assert (
        jax.grad(lambda x: jax.vmap(lambda flag: lax.cond(flag, lambda: total(1, x)[0], lambda: 0.0))(flags).sum())(x)[
            0
        ]
        == 1
    )
