"""No two batches of factorisations of one program can be in flight at once: read off what XLA compiled.

What may meet stands still on two cores (test_standing_still.py), and only now and then: a program is no test of it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_flight import pairs_in_flight

from numpyro_ndpp import KNDPP, NDPP, SizedNDPP

N, D = 30, 20
_rng = np.random.default_rng(0)
KERNEL = [jnp.asarray(_rng.normal(size=shape), jnp.float32) for shape in ((N, D // 2), (N, D // 2), (D // 2, D // 2))]
SETS = np.sort(np.stack([_rng.choice(N - 1, 5, replace=False) for _ in range(40)]), axis=1).astype(np.int32)
DISTRIBUTIONS = {
    "any size": lambda *kernel: NDPP(*kernel, validate_args=False),
    "not empty": lambda *kernel: NDPP(*kernel, min_size=1, validate_args=False),
    "limits": lambda *kernel: NDPP(*kernel, min_size=3, max_size=9, validate_args=False),
    "fixed size": lambda *kernel: KNDPP(*kernel, 5, validate_args=False),
    "free size": lambda *kernel: SizedNDPP(*kernel, jnp.zeros(11), validate_args=False),
    "given an item": lambda *kernel: NDPP(*kernel, min_size=1, validate_args=False).condition(jnp.array([N - 1])),
    "free size, given an item": lambda *kernel: DISTRIBUTIONS["free size"](*kernel).condition(jnp.array([N - 1])),
}
MEMBERS = {
    "log_prob": lambda dist: dist.log_prob(SETS),
    "marginal_log_prob": lambda dist: dist.marginal_log_prob(SETS[:, :2]),
    "next_item_log_prob": lambda dist: dist.next_item_log_prob(SETS[:, :2]),
    "inclusion_probs": lambda dist: dist.inclusion_probs(),
    "size_log_prob": lambda dist: dist.size_log_prob(),
}
QUICK = [("not empty", "log_prob"), ("not empty", "marginal_log_prob"), ("free size", "log_prob")]


def test_pairs_are_found():
    @jax.jit
    def both(A, B):
        return jnp.linalg.slogdet(A)[1] + jnp.linalg.slogdet(B)[1]

    @jax.jit
    def after_each_other(A, B):
        first = jnp.linalg.slogdet(A)[1]
        return first + jnp.linalg.slogdet(B * first[:, None, None])[1]

    A = jnp.ones((8, 5, 5))
    assert len(pairs_in_flight(both.lower(A, A).compile().as_text())) == 1
    assert pairs_in_flight(after_each_other.lower(A, A).compile().as_text()) == []


@pytest.mark.parametrize(
    ("name", "member"),
    [
        pytest.param(name, member, marks=[] if (name, member) in QUICK else pytest.mark.slow)
        for name in DISTRIBUTIONS
        for member in MEMBERS
    ],
)
def test_no_two_batches_meet(name, member):
    def total(*kernel):
        values = MEMBERS[member](DISTRIBUTIONS[name](*kernel))
        return jnp.sum(jnp.where(jnp.isfinite(values), values, 0.0))

    hlo = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2))).lower(*KERNEL).compile().as_text()
    assert "lapack" in hlo
    assert pairs_in_flight(hlo) == []
