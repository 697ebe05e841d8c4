"""What a first call costs: how many programs are compiled, and how large they are. And: one key, one draw."""

import contextlib
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import factors

from numpyro_ndpp import KNDPP, NDPP, Cholesky, Contour, Exact, Rejection, SizedNDPP, UpDown, pad_subsets
from numpyro_ndpp.kernel import Kernel
from numpyro_ndpp.programs import program
from numpyro_ndpp.target import Target

LAWS = {
    "UpDown": lambda X, W: NDPP.from_factors(X, W, sampler=UpDown(num_steps=3)),
    "UpDown, one size": lambda X, W: KNDPP.from_factors(X, W, 3, sampler=UpDown()),
    "Exact": lambda X, W: NDPP.from_factors(X, W, sampler=Exact()),
    "Contour": lambda X, W: KNDPP.from_factors(X, W, 3, sampler=Contour()),
    "Cholesky": lambda X, W: NDPP.from_factors(X, W, sampler=Cholesky()),
    "Rejection": lambda X, W: NDPP.from_factors(X, W, sampler=Rejection()),
}


@contextlib.contextmanager
def compilations():
    """A list that grows by one with every program that is compiled: the name of the thread that compiles it."""
    found = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


# Of the walk test_core_shares.py and test_updown.py have draws, eager and under jit.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "Exact" else pytest.mark.slow) for name in LAWS]
)
def test_one_key_one_draw(name):
    """Eager, under jit, within vmap over keys, prepared or not, and among more draws."""
    X, W = factors("ordinary")
    law, key = LAWS[name](X, W), jax.random.key(3)
    draws = np.asarray(law.sample(key, (6,)))
    np.testing.assert_array_equal(law.sample(key, (8,))[:6], draws)
    np.testing.assert_array_equal(jax.jit(lambda law, key: law.sample(key, (6,)))(law.prepare(), key), draws)
    keys = jax.random.split(key, 3)
    one_by_one = np.stack([law.sample(key) for key in keys])
    np.testing.assert_array_equal(jax.vmap(law.prepare().sample)(keys), one_by_one)
    assert (law.log_prob(draws) > -jnp.inf).all()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("UpDown", "Exact") else pytest.mark.slow) for name in LAWS]
)
def test_other_keys_kernels_and_numbers_of_draws_compile_nothing(name):
    """Up to the next power of two. A law of another kernel has to be prepared, by the program that is there."""
    first, second = (LAWS[name](*factors(kernel)) for kernel in ("ordinary", "zero rows"))
    first.sample(jax.random.key(0), (6,))
    with compilations() as found:
        first.sample(jax.random.key(1), (6,))
        first.sample(jax.random.key(2), (7,))
        first.sample(jax.random.key(2), (8,))
        second.sample(jax.random.key(3), (5,))
    assert len(found) == 0


@pytest.mark.slow
@pytest.mark.parametrize("of", ["a batch", "given items", "free sizes", "a device", "a device by name"])
def test_what_is_compiled_ahead_is_found(of, caplog):
    """Preparation and draws are compiled once each, whether side by side or, for arrays bound to a device, not."""
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(53, 4)).astype(np.float32), np.eye(4, dtype=np.float32)
    if of.startswith("a device"):
        X = jax.device_put(X, jax.devices()[0] if of == "a device by name" else None)
    if of == "a batch":
        X = np.stack([X, 2 * X, X])
    law = SizedNDPP.from_factors(X, W, np.zeros(5), sampler=Exact()) if of == "free sizes" else NDPP.from_factors(X, W)
    law = law.condition([3]) if of == "given items" else law
    jax.config.update("jax_log_compiles", True)
    try:
        with compilations() as threads:
            law.sample(jax.random.key(0), (3,))
    finally:
        jax.config.update("jax_log_compiles", False)
    done = re.findall(r"Finished XLA compilation of jit\((_prepare|_sample|_share)\)", caplog.text)
    assert sorted(name.replace("share", "sample") for name in done) == ["_prepare", "_sample"]
    assert len(set(threads)) == (1 if of == "a device by name" else 2)


def test_a_first_call_compiles_few_programs():
    """NumPyro's look at the parameters, what joins V and B, preparation and draw; not one for every operation."""
    rng = np.random.default_rng(0)
    V, B, D = (rng.normal(size=shape).astype(np.float32) for shape in [(51, 3), (51, 4), (4, 4)])
    with compilations() as found:
        law = NDPP(V, B, D)
    checks, key = len(found), jax.random.key(0)
    with compilations() as found:
        law.sample(key, (3,))
    assert len(found) <= 8
    assert len(set(found)) == 2  # draws are compiled beside preparation
    baskets = np.asarray(pad_subsets([[1, 2], [3]], 51))
    with compilations() as found:
        law.log_prob(baskets)
    assert len(found) <= 3
    with compilations() as found:
        law.next_item_log_prob(np.array([1, 2]))
    assert len(found) <= 3
    assert checks <= 20


def lines(function, *arguments):
    return len(jax.jit(function).lower(*arguments).as_text().splitlines())


# Lines of the lowered program: preparation, and many draws. Before, the draws of an NDPP had 3,000 at each of five
# widths by the walk and 9,000 by the contour. Now the walk has two widths in its one program,
# and of its preparation some 200 lines are for minors that decide where a greedy run ends.
@pytest.mark.parametrize(
    ("sampler", "k", "of_preparation", "of_draws"),
    [
        (UpDown(), None, 2900, 3000),
        (UpDown(), 10, 2100, 2000),
        (Exact(), None, 700, 2000),
        (Contour(), 10, 2800, 2400),
    ],
)
def test_programs_are_short(sampler, k, of_preparation, of_draws):
    X, W = jax.ShapeDtypeStruct((10_000, 100), jnp.float32), jax.ShapeDtypeStruct((100, 100), jnp.float32)
    low, high = (0, 100) if k is None else (k, k)

    def prepare(X, W):
        return sampler.prepare(Target.of(Kernel.of(X, W), low, high))

    state, keys = jax.eval_shape(prepare, X, W), jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 64))
    assert lines(prepare, X, W) < of_preparation
    assert lines(sampler.sample, state, keys) < of_draws


def test_a_program_does_not_grow_with_the_number_of_items_or_stages():
    def of_tree(n):
        X, W = jax.ShapeDtypeStruct((n, 20), jnp.float32), jax.ShapeDtypeStruct((20, 20), jnp.float32)
        walk = jax.eval_shape(lambda X, W: UpDown().prepare(Target.of(Kernel.of(X, W), 5, 5)), X, W)
        return lines(UpDown().sample, walk, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4)))

    def of_stages(k):
        X, W = jax.ShapeDtypeStruct((500, 60), jnp.float32), jax.ShapeDtypeStruct((60, 60), jnp.float32)
        state = jax.eval_shape(lambda X, W: Contour().prepare(Target.of(Kernel.of(X, W), k, k)), X, W)
        return lines(Contour().sample, state, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4)))

    assert abs(of_tree(10**6) - of_tree(10**3)) < 100
    assert abs(of_stages(50) - of_stages(20)) < 100


@pytest.mark.parametrize("runs", ["once", "often"])
def test_a_program_is_a_function_like_any_other(runs):
    """Options can be given to what is compiled by itself alone: within jit and derivatives it goes without."""

    @program(runs, static_argnames="power")
    def polynomial(x, power):
        return jnp.sum(x**power)

    x = jnp.arange(3.0)
    assert polynomial(x, power=2) == polynomial(np.arange(3.0), power=2) == 5.0
    assert jax.jit(lambda x: polynomial(x, power=2) + 1)(x) == 6.0
    np.testing.assert_array_equal(jax.grad(polynomial)(x, power=3), 3 * x**2)
    np.testing.assert_array_equal(jax.vmap(lambda x: polynomial(x, power=2))(jnp.ones((4, 3))), np.full(4, 3.0))
    np.testing.assert_array_equal(
        jax.vmap(jax.grad(lambda x: polynomial(x, power=2)))(jnp.ones((4, 3))), 2 * np.ones((4, 3))
    )
    np.testing.assert_array_equal(
        jax.grad(lambda x: jax.vmap(lambda y: polynomial(y * x, power=2))(x).sum())(x), 20 * x
    )
