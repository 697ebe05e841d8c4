"""What must hold on eight devices, some things a run: python many_devices.py values:ordinary draws:skew:exact ...

Kernels of the table have ten items; here these are spread over 64 rows, the others zero, so that the tree has two
leaves on each device and most devices have items. Every comparison is with the same law on one device.
"""

import contextlib
import os
import re
import sys

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["NPROC"] = "32"  # eight devices share the threads that factorise (docs/explanation/numerics.md)

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from kernels import N, factors
from numpyro.infer import Predictive

from numpyro_ndpp import (
    KNDPP,
    NDPP,
    Cholesky,
    Contour,
    Exact,
    Rejection,
    SizedNDPP,
    SubsetGibbs,
    UpDown,
    learning,
    platforms,
    run_chains,
    to_multihot,
)
from numpyro_ndpp.devices import shard_rows
from numpyro_ndpp.learner import Learner, training_data
from numpyro_ndpp.learning import fit
from numpyro_ndpp.samplers import exact

ROWS = 64
LOGITS = np.log([0.1, 0.3, 0.3, 0.2, 0.1])  # of the sizes 0 to 4
DEVICES = Mesh(np.array(jax.devices()), ("items",))


def spread(name, rows=ROWS):
    """X (rows, d) and W of a kernel of the table, and the rows (10,) of its items."""
    X, W = factors(name)
    places = np.sort(np.random.default_rng(0).choice(rows, N, replace=False))
    whole = np.zeros((rows, X.shape[1]))
    whole[places] = X
    return whole, W, places


def on_devices(X, W, mesh=DEVICES):
    return shard_rows(X, mesh), jax.device_put(W, NamedSharding(mesh, PartitionSpec()))


def close(name, value, expected):
    np.testing.assert_allclose(np.asarray(value), np.asarray(expected), rtol=1e-10, atol=1e-10, err_msg=name)


def same(name, value, expected):
    np.testing.assert_array_equal(np.asarray(value), np.asarray(expected), err_msg=name)


# --- Values ----------------------------------------------------------------------------------------------------------


def values_of(X, W, subsets, places):
    """All that is computed of a law, by name. ``subsets`` are rows of item numbers, padded with the number of rows."""
    law, fixed = NDPP.from_factors(X, W), KNDPP.from_factors(X, W, 4)
    limited = NDPP.from_factors(X, W, min_size=1, max_size=5)
    given = law.condition(include=places[:2], exclude=places[2:3])
    sized = SizedNDPP.from_factors(X, W, LOGITS)
    pair = subsets[:, :2]

    def total(X, W, *logits):
        kind = SizedNDPP if logits else NDPP
        log_probs = kind.from_factors(X, W, *logits, validate_args=False).log_prob(subsets)
        return jnp.sum(jnp.where(log_probs > -jnp.inf, log_probs, 0.0))

    slope = jax.jit(jax.grad(total, (0, 1)))
    values = {f"gradient in {'XW'[i]}": part for i, part in enumerate(slope(X, W))}
    values |= {f"sized gradient in {'XW'[i]}": part for i, part in enumerate(slope(X, W, LOGITS))}
    given_sized = sized.condition(include=places[:1], exclude=places[2:3])
    for name, one in (
        ("", law),
        ("k ", fixed),
        ("limited ", limited),
        ("given ", given),
        ("sized ", sized),
        ("sized given ", given_sized),
    ):
        values |= {
            name + "log_prob": one.log_prob(subsets),
            name + "log_normalizer": one.log_normalizer,
            name + "size_log_prob": one.size_log_prob(),
            name + "inclusion_probs": one.inclusion_probs(),
        }
    values |= {
        "marginal_log_prob": law.marginal_log_prob(pair),
        "k marginal_log_prob": fixed.marginal_log_prob(pair),
        "sized marginal_log_prob": sized.marginal_log_prob(pair),
        "next_item_log_prob": law.next_item_log_prob(pair),
        "sized next_item_log_prob": sized.next_item_log_prob(pair),
        "greedy": law.greedy(4),
        "greedy with exchanges": law.greedy(4, num_exchanges=2),
        "greedy given": given.greedy(),
        "expected_proposals": Rejection().expected_proposals(law),
    }
    return values


def check_values(name):
    X, W, places = spread(name)
    rng = np.random.default_rng(1)
    subsets = [np.sort(rng.choice(places, size, replace=False)) for size in (1, 2, 2, 3, 4, 4, 6)]
    subsets = np.stack([np.pad(s, (0, 6 - len(s)), constant_values=ROWS) for s in subsets]).astype(np.int32)
    expected = values_of(jnp.asarray(X), jnp.asarray(W), subsets, places)
    for what, value in values_of(*on_devices(X, W), subsets, places).items():
        close(f"{name}: {what}", value, expected[what])


def check_padding():
    """61 rows do not divide by eight: three of zeros follow, which change nothing and are never drawn."""
    X, W, places = spread("ordinary", 61)
    subsets = np.array([[places[0], places[3]], [places[2], 61]], np.int32)
    law, padded = NDPP.from_factors(X, W), NDPP.from_factors(*on_devices(X, W), sampler=Exact())
    assert padded.num_items == 64
    close("log_prob", padded.log_prob(np.where(subsets == 61, 64, subsets)), law.log_prob(subsets))
    close("inclusion", padded.inclusion_probs()[:61], law.inclusion_probs())
    assert not np.any(padded.inclusion_probs()[61:])
    draws = np.asarray(padded.sample(random.key(0), (500,)))
    assert np.isin(draws, [*places, 64]).all()
    alone = NDPP.from_factors(np.pad(X, ((0, 3), (0, 0))), W, sampler=Exact())
    same("alone", draws, alone.sample(random.key(0), (500,)))


# --- Draws -----------------------------------------------------------------------------------------------------------


def laws(X, W, places, kind):
    """Laws with their samplers, by name."""
    if kind == "one":
        return {"Exact, as it is": NDPP.from_factors(X, W, sampler=Exact())}
    if kind == "exact":
        return {
            "Exact": NDPP.from_factors(X, W, sampler=Exact()),
            "Exact, limited": NDPP.from_factors(X, W, min_size=2, max_size=4, sampler=Exact()),
            "Exact, given": NDPP.from_factors(X, W, sampler=Exact()).condition(places[1:2], places[2:3]),
            "Exact, sized": SizedNDPP.from_factors(X, W, LOGITS, sampler=Exact()),
        }
    if kind == "bands":
        return {
            "Exact": NDPP.from_factors(X, W, sampler=Exact()),
            "Exact, sized, given": SizedNDPP.from_factors(X, W, LOGITS, sampler=Exact()).condition(places[1:2]),
        }
    if kind == "fixed":
        return {
            "Contour": KNDPP.from_factors(X, W, 4, sampler=Contour()),
            "Exact, given, fixed": KNDPP.from_factors(X, W, 4, sampler=Exact()).condition(places[1:2]),
        }
    if kind == "published":
        return {
            "Cholesky": NDPP.from_factors(X, W, sampler=Cholesky()),
            "Cholesky, fixed": KNDPP.from_factors(X, W, 4, sampler=Cholesky()),
            "Rejection": NDPP.from_factors(X, 0.5 * (W + W.T) + 0.1 * W, sampler=Rejection()),
        }
    return {
        "UpDown": NDPP.from_factors(X, W),
        "UpDown, fixed": KNDPP.from_factors(X, W, 4),
        "UpDown, sized": SizedNDPP.from_factors(X, W, LOGITS),
        "UpDown, published": KNDPP.from_factors(X, W, 4, sampler=UpDown(10, up="rejection", init="uniform")),
        "UpDown, given": NDPP.from_factors(X, W).condition(places[1:2], places[2:3]),
    }


@contextlib.contextmanager
def bands_of_sizes():
    """``Exact`` draws sizes that vary as on an accelerator."""
    platform, exact.platform = exact.platform, lambda: platforms._ACCELERATOR
    try:
        yield
    finally:
        exact.platform = platform


def check_bands(name):
    with bands_of_sizes():
        check_draws(name, "bands")


def check_draws(name, kind):
    X, W, places = spread(name)
    there = laws(*on_devices(X, W), places, kind)
    shape = (8,) if name == "near skew" else (40,)  # whose odd sizes are met once in many leaps over all devices
    for what, law in laws(jnp.asarray(X), jnp.asarray(W), places, kind).items():
        draws = law.sample(random.key(2), shape)
        same(f"{name}: {what}", there[what].sample(random.key(2), shape), draws)
        prepared = there[what].prepare()
        inside = jax.jit(lambda law, key: law.sample(key, shape))
        if what in ("Exact", "Contour"):
            same(f"{name}: {what} within jit", inside(prepared, random.key(2)), draws)
            same(f"{name}: {what} prepared within jit", inside(there[what], random.key(2)), draws)


def check_batch():
    """A batch of kernels, each with its rows over all devices."""
    X, W = (np.stack(parts) for parts in zip(*(spread(name)[:2] for name in ("ordinary", "near skew")), strict=True))
    rows = jax.device_put(X, NamedSharding(DEVICES, PartitionSpec(None, "items")))
    here, there = (NDPP.from_factors(features, W, sampler=Exact()) for features in (X, rows))
    draws = here.sample(random.key(0), (6,))
    same("batch", there.sample(random.key(0), (6,)), draws)
    close("batch", there.log_prob(draws), here.log_prob(draws))
    close("batch", there.inclusion_probs(), here.inclusion_probs())


def check_chains(name):
    X, W, _ = spread(name)
    for k in (None, 4):
        here, there = (
            NDPP.from_factors(*kernel) if k is None else KNDPP.from_factors(*kernel, k)
            for kernel in ((X, W), on_devices(X, W))
        )
        runs = [run_chains(law, random.key(0), 4, 10, progress_bar=False)["posterior"] for law in (here, there)]
        same(f"{name}: chains", runs[1]["subset"], runs[0]["subset"])
        close(f"{name}: log det", runs[1]["log_det"], runs[0]["log_det"])


def check_gibbs(name):
    X, W, _ = spread(name)

    def model(X, W, y):
        chosen = numpyro.sample("chosen", NDPP.from_factors(X, W, sampler=Exact(), validate_args=False))
        numpyro.sample("y", dist.Normal(jnp.sum(to_multihot(chosen, ROWS) * jnp.arange(ROWS)), 20.0), obs=y)

    updated = []
    for kernel in ((jnp.asarray(X), jnp.asarray(W)), on_devices(X, W)):
        start = NDPP.from_factors(*kernel).greedy()
        update = jax.jit(SubsetGibbs(model, "chosen", num_moves=20, fresh=0.2).gibbs_fn(*kernel, 100.0))
        values = []
        for i in range(5):
            start = update(rng_key=random.key(i), gibbs_sites={"chosen": start}, hmc_sites={})["chosen"]
            values.append(np.asarray(start))
        updated.append(np.stack(values))
    same(f"{name}: SubsetGibbs", updated[1], updated[0])


# --- Draws and chains in parallel ------------------------------------------------------------------------------------


def check_shares(name):
    """Draws over one axis, items over another, or all devices for draws: the same draws as on one device."""
    X, W, _ = spread(name)
    here = NDPP.from_factors(X, W, sampler=Exact()), KNDPP.from_factors(X, W, 4)
    expected = [law.sample(random.key(3), (21,)) for law in here]
    chains = run_chains(here[1], random.key(0), 5, 6, progress_bar=False)["posterior"]["subset"]
    for shape in ((8, 1), (2, 4)):
        mesh = Mesh(np.array(jax.devices()).reshape(shape), ("draws", "items"))
        kernel = on_devices(X, W, mesh)
        there = NDPP.from_factors(*kernel, sampler=Exact()), KNDPP.from_factors(*kernel, 4)
        for law, draws in zip(there, expected, strict=True):
            same(f"{name}: {shape}", law.sample(random.key(3), (21,)), draws)
        if shape == (2, 4):
            drawn = run_chains(there[1], random.key(0), 5, 6, progress_bar=False)["posterior"]["subset"]
            same(f"{name}: chains", drawn, chains)


def check_ambient_shares(name):
    """Within jit the ambient mesh has the draws. Each device makes its share, and nothing is exchanged but these."""
    X, W, _ = spread(name)
    law, key = NDPP.from_factors(X, W, sampler=Exact()).prepare(), random.key(3)
    draw = jax.jit(lambda law, key: law.sample(key, (64,)))
    expected = law.sample(key, (64,))
    with jax.set_mesh(Mesh(np.array(jax.devices()), ("draws",))):
        same(f"{name}: ambient", draw(law, key), expected)
        program = draw.lower(law, key).compile().as_text()
    assert len(found_collectives(program)) == 1, found_collectives(program)


def check_predictive(name):
    """Posterior draws over the devices: XLA splits what NumPyro vectorises."""
    X, W, _ = spread(name)

    def model():
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.1))
        numpyro.sample("chosen", NDPP.from_factors(scale * X, W, sampler=Exact(), validate_args=False))

    scales = np.exp(0.1 * np.random.default_rng(0).normal(size=16))
    by_draw = jax.device_put(scales, NamedSharding(Mesh(np.array(jax.devices()), ("draws",)), PartitionSpec("draws")))
    drawn = [
        Predictive(model, {"scale": values}, parallel=True)(random.key(0))["chosen"] for values in (scales, by_draw)
    ]
    same(f"{name}: Predictive", *drawn)


# --- Learning --------------------------------------------------------------------------------------------------------


def check_fit(folder, model="ndpp", num_items=61):
    """The kernel of one device; a run begun on four devices goes on on two, and ends on one."""
    num_items = int(num_items)
    rng = np.random.default_rng(0)
    baskets = [rng.choice(num_items, rng.integers(1, 5), replace=False) for _ in range(120)]
    settings = {"rank": 6, "batch_size": 20, "evaluate_every": 4, "progress_bar": False, "model": model}
    settings |= {"num_steps": 12, "checkpoint_every": 4}
    alone = fit(baskets, num_items, **settings)
    eight = fit(baskets, num_items, mesh=DEVICES, **settings)
    same_kernel(eight, alone)
    np.testing.assert_allclose(eight.history["validation"], alone.history["validation"], rtol=1e-4)
    path = os.path.join(folder, "fit.npz")
    for number in (4, 2, 1):
        mesh = Mesh(np.array(jax.devices()[:number]), ("items",))
        with stopped_after(None if number == 1 else 1):
            several = fit(baskets, num_items, mesh=mesh, checkpoint=path, **settings)
    same_kernel(several, alone)
    assert len(several.history["step"]) == 3


def same_kernel(result, expected):
    """To the rounding of a dozen steps in float32. Of D, D - Dᵀ counts: Adam makes steps of its diagonal's rounding."""
    for part in ("V", "B", "D"):
        value, wanted = getattr(result, part), getattr(expected, part)
        if part == "D":
            value, wanted = value - value.T, wanted - wanted.T
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-5, err_msg=part)


@contextlib.contextmanager
def stopped_after(number):
    """A fit that is interrupted after so many checkpoints; None: not at all."""
    written, write = [], learning.write_arrays

    def write_and_stop(*arguments):
        write(*arguments)
        written.append(arguments)
        if len(written) == number:
            raise KeyboardInterrupt

    learning.write_arrays = write_and_stop
    try:
        yield
    except KeyboardInterrupt:
        assert number is not None
    finally:
        learning.write_arrays = write


def check_learner():
    """Adam's state is an eighth on each device, and no program of a fit gathers an array of items."""
    num_items = 4096
    rng = np.random.default_rng(0)
    train = np.stack([np.sort(rng.choice(num_items, 3, replace=False)) for _ in range(40)]).astype(np.int32)
    settings = {"model": "ndpp", "rank": [4, 2], "num_items": num_items, "batch_size": 16, "alpha": 50.0, "beta": 30.0}
    settings |= {"learning_rate": 0.02, "num_steps": 10, "anchor": 1.0, "seed": 0, "min_size": 1}
    learner, data = Learner(settings, len(train), mesh=DEVICES), training_data(settings, train, DEVICES)
    state = learner.start()
    per_device = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state.optim_state))
    assert per_device <= 1.05 * sum(leaf.nbytes for leaf in jax.tree.leaves(state.optim_state)) / 8
    with jax.set_mesh(DEVICES):
        text = learner.programs.advance.lower(state, data, learner.numbers, 2).compile().as_text()
    assert_small("a step", found_collectives(text), num_items // 8)


# --- Programs --------------------------------------------------------------------------------------------------------

_COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def collectives(function, *arguments):
    """The collectives of a compiled program, each as its name and the shapes of its results."""
    return found_collectives(jax.jit(function).lower(*arguments).compile().as_text())


def found_collectives(text):
    return [(found[2], re.findall(r"\w+\[([\d,]*)\]", found[1])) for found in _COLLECTIVE.finditer(text)]


def assert_small(name, found, limit):
    """No axis of what is exchanged is as long as a device's share of the items, or of the leaves."""
    for kind, shapes in found:
        sizes = [int(size) for shape in shapes for size in shape.split(",") if size]
        assert max(sizes, default=0) < limit, f"{name}: {kind} of {shapes}"


def large(n, k=None, sampler=None):
    rng = np.random.default_rng(0)
    X, W = on_devices(rng.normal(size=(n, 4)), np.eye(4) + np.array(np.triu(np.ones((4, 4)), 1) - np.tri(4, k=-1)))
    settings = {} if sampler is None else {"sampler": sampler}
    return NDPP.from_factors(X, W, **settings) if k is None else KNDPP.from_factors(X, W, k, **settings)


def check_no_array_of_items_is_gathered():
    n = 4096
    law, fixed = large(n), large(n, 3)
    items = jnp.array([[0, 5], [700, 4095]])
    members = {
        "log_prob": lambda law: law.log_prob(items),
        "gradient": jax.grad(lambda law: law.log_prob(items).sum()),
        "size_log_prob": lambda law: law.size_log_prob(),
        "inclusion_probs": lambda law: law.inclusion_probs(),
        "marginal_log_prob": lambda law: law.marginal_log_prob(items),
        "next_item_log_prob": lambda law: law.next_item_log_prob(items),
        "condition": lambda law: law.condition([3], [4]).log_prob(items),
        "greedy": lambda law: law.greedy(3),
        "greedy with exchanges": lambda law: law.greedy(3, num_exchanges=1),
    }
    programs = {name: (function, law) for name, function in members.items()}
    key = jax.device_put(random.key(0), NamedSharding(DEVICES, PartitionSpec()))
    for one in (UpDown(), Exact(), Rejection(), Cholesky(), Contour()):
        drawn = (fixed if one == Contour() else law).with_sampler(one)
        programs[f"prepare by {one}"] = lambda law: law.prepared_state(), drawn
        programs[f"sample by {one}"] = lambda law, key: law.sample(key, (2,)), drawn.prepare(), key
    sized = SizedNDPP.from_factors(law.X, law.W, np.zeros(3))
    programs["sized log_prob"] = lambda law: law.log_prob(items), sized
    programs["sized gradient"] = jax.grad(lambda law: law.log_prob(items).sum()), sized
    programs["sized inclusion_probs"] = lambda law: law.inclusion_probs(), sized
    for name, program in programs.items():
        assert_small(name, collectives(*program), 64)
    with bands_of_sizes():
        drawn = law.with_sampler(Exact())
        assert_small("prepare bands", collectives(lambda law: law.prepared_state(), drawn), 64)
        assert_small("sample by bands", collectives(lambda law, key: law.sample(key, (2,)), drawn.prepare(), key), 64)


def check_collectives_do_not_grow_by_bands():
    with bands_of_sizes():
        check_collectives_do_not_grow([(None, Exact())])


def check_collectives_do_not_grow(
    samplers=((3, UpDown()), (None, UpDown()), (None, Exact()), (3, Contour()), (None, Rejection())),
):
    key = jax.device_put(random.key(0), NamedSharding(DEVICES, PartitionSpec()))
    for k, sampler in samplers:
        small, big = (
            collectives(lambda law, key: law.sample(key), large(n, k, sampler).prepare(), key)
            for n in (10_000, 1_000_000)
        )
        assert len(small) == len(big), f"{sampler}: {small} against {big}"
        assert 0 < len(big) < 20, f"{sampler}: {len(big)}"


def check_bytes():
    """X, the tree and what is prepared: an eighth on each device, and 5 % at the most for what all have."""
    n = 2**15
    for k, sampler in ((3, UpDown()), (None, Exact()), (3, Contour()), (None, Rejection()), (None, Cholesky())):
        there = large(n, k, sampler)
        X, W = jnp.asarray(np.asarray(there.X)), jnp.asarray(np.asarray(there.W))
        alone = NDPP.from_factors(X, W, sampler=sampler) if k is None else KNDPP.from_factors(X, W, k, sampler=sampler)
        whole = sum(leaf.nbytes for leaf in jax.tree.leaves(alone.prepared_state()))
        per_device = dict.fromkeys(jax.devices(), 0)
        for leaf in jax.tree.leaves(there.prepared_state()):
            for shard in leaf.addressable_shards:
                per_device[shard.device] += shard.data.nbytes
        assert max(per_device.values()) <= 1.05 * whole / 8, f"{sampler}: {per_device} of {whole}"


# --- Bad input -------------------------------------------------------------------------------------------------------


def check_bad_input():
    X, W, _ = spread("ordinary")

    def error(function, *arguments, **settings):
        try:
            function(*arguments, **settings)
        except (ValueError, TypeError) as raised:
            return str(raised)
        return "no error"

    columns = jax.device_put(X, NamedSharding(DEVICES, PartitionSpec(None, "items")))
    assert "X is sharded by columns" in error(NDPP.from_factors, columns, W)
    assert "V is sharded by columns" in error(NDPP, columns)
    assert "no axis 'rows': its axes are ('items',)" in error(shard_rows, X, DEVICES, "rows")
    assert "must be a jax.sharding.Mesh, got list" in error(shard_rows, X, [1])
    assert "must be a matrix" in error(shard_rows, X[0], DEVICES)
    two = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    both = jax.device_put(X, NamedSharding(two, PartitionSpec(("a", "b"))))
    assert "over several axes, ('a', 'b')" in error(NDPP.from_factors, both, W)
    explicit = jax.make_mesh((8,), ("items",), axis_types=(AxisType.Explicit,))
    rows = jax.device_put(X, NamedSharding(explicit, PartitionSpec("items")))
    within = jax.jit(lambda X: NDPP.from_factors(X, W).log_normalizer)
    assert "X is sharded over explicit axes" in error(within, rows)
    baskets = [[0, 1], [2]]
    assert "mesh has no axis 'items': its axes are ('a', 'b')" in error(fit, baskets, 4, rank=2, mesh=two)
    assert "mesh must be a jax.sharding.Mesh, got int" in error(fit, baskets, 4, rank=2, mesh=8)
    not_finite = shard_rows(np.where(np.arange(ROWS)[:, None] == 40, np.nan, X), DEVICES)
    assert "X must be finite, but has infinities or NaN" in error(NDPP.from_factors, not_finite, W)
    six = Mesh(np.array(jax.devices()[:6]), ("items",))
    rows = shard_rows(np.pad(X, ((0, 2), (0, 0))), six)
    law = NDPP.from_factors(rows, jax.device_put(W, NamedSharding(six, PartitionSpec())), sampler=Exact())
    close("six devices", law.log_normalizer, NDPP.from_factors(X, W).log_normalizer)
    assert "a power of two of devices along the axis 'items'" in error(law.sample, random.key(0))


def check_explicit_axes():
    """``jax.make_mesh`` has explicit axes by default; the features of a distribution leave them to the compiler."""
    X, W, _ = spread("ordinary")
    mesh = jax.make_mesh((8,), ("items",), axis_types=(AxisType.Explicit,))
    law = NDPP.from_factors(jax.device_put(X, NamedSharding(mesh, PartitionSpec("items"))), W, sampler=Exact())
    here = NDPP.from_factors(X, W, sampler=Exact())
    same("draws", law.sample(random.key(0), (5,)), here.sample(random.key(0), (5,)))
    # Within jit, where nobody sees where an array lies, the ambient mesh counts.
    with jax.set_mesh(DEVICES):
        drawn = jax.jit(lambda X: NDPP.from_factors(X, W, sampler=Exact()).sample(random.key(0), (5,)))
        rows = shard_rows(X, DEVICES)
        same("ambient", drawn(rows), here.sample(random.key(0), (5,)))
        assert "all-gather" not in drawn.lower(rows).as_text()


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for one in sys.argv[1:]:
        name, *arguments = one.split(":")
        globals()[f"check_{name}"](*arguments)
