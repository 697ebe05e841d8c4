"""Kernels of small integers, whose minors vanish exactly, against the enumeration of all subsets in integers.

    python tests/fuzz.py [--kernels 10000] [--seed 0] [--float32]

All kernels of a batch are one compilation. Every failure is printed as a line of code.
"""

import argparse
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_ndpp import KNDPP, NDPP, pad_subsets

N = 4
SUBSETS = [subset for size in range(N + 1) for subset in itertools.combinations(range(N), size)]
SIZES = np.array([len(subset) for subset in SUBSETS])
HOLDS = np.array([[item in subset for item in range(N)] for subset in SUBSETS])
SMALL = [index for index, subset in enumerate(SUBSETS) if len(subset) <= 3]  # larger ones are beyond the rank
# the law in code, its smallest and its largest size
LAWS = {
    "NDPP(V, B, D)": (0, 3),
    "NDPP(V, B, D, min_size=1)": (1, 3),
    "NDPP(V, B, D, max_size=2)": (0, 2),
    "NDPP(V, B, D, min_size=2)": (2, 3),
    "KNDPP(V, B, D, 1)": (1, 1),
    "KNDPP(V, B, D, 2)": (2, 2),
    "KNDPP(V, B, D, 3)": (3, 3),
}
TOLERANCE = {"float64": 1e-7, "float32": 2e-3}


def integer_kernels(number, seed):
    rng = np.random.default_rng(seed)
    shapes = {"V": (N, 1), "B": (N, 2), "D": (2, 2)}
    return tuple(
        rng.integers(-1 - (name == "D"), 2 + (name == "D"), (number, *shape)) for name, shape in shapes.items()
    )


def determinant(minors):
    """The determinants of integer matrices (..., k, k), by expansion: exact."""
    if minors.shape[-1] == 0:
        return np.ones(minors.shape[:-2], int)
    rest = [np.delete(minors[..., 1:, :], column, axis=-1) for column in range(minors.shape[-1])]
    return sum((-1) ** column * minors[..., 0, column] * determinant(rest[column]) for column in range(len(rest)))


def probabilities(V, B, D, low, high):
    """The sum of the minors of the sizes low to high (kernels,), and the probability of every subset (kernels, 2ⁿ)."""
    L = V @ V.swapaxes(1, 2) + B @ (D - D.swapaxes(1, 2)) @ B.swapaxes(1, 2)
    minors = np.stack([determinant(L[:, subset][:, :, subset]) for subset in map(list, SUBSETS)], axis=1)
    minors = minors * ((low <= SIZES) & (high >= SIZES))
    return minors.sum(axis=1), normalized(minors)


def normalized(weights):
    total = weights.sum(axis=1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1), 0.0)


def comparisons(code, V, B, D, dtype):
    """(what is called, its values for each kernel, the true ones), and what ``greedy`` found."""
    low, high = LAWS[code]
    total, exact = probabilities(V, B, D, low, high)
    names = {"V": V.astype(dtype), "B": B.astype(dtype), "D": D.astype(dtype), "NDPP": NDPP, "KNDPP": KNDPP}
    law = eval(code, names)
    padded = jnp.asarray(pad_subsets([SUBSETS[index] for index in SMALL], N, 3))
    marginals = np.stack([exact[:, HOLDS[:, list(subset)].all(axis=1)].sum(axis=1) for subset in SUBSETS], axis=1)
    scale = np.maximum(total, 1)
    yield ".log_normalizer", np.exp(law.log_normalizer) / scale, total / scale
    yield f".log_prob({padded.tolist()})", np.exp(law.log_prob(padded[:, None])).T, exact[:, SMALL]
    yield ".inclusion_probs()", law.inclusion_probs(), exact @ HOLDS
    called = f".marginal_log_prob({padded.tolist()})"
    yield called, np.exp(law.marginal_log_prob(padded[:, None])).T, marginals[:, SMALL]
    found = np.asarray(law.greedy())
    place = [SUBSETS.index(tuple(int(item) for item in row if item < N)) for row in found]
    is_right = np.where(total > 0, exact[np.arange(len(V)), place] > 0, SIZES[place] < max(low, 1))
    yield ".greedy()", is_right, np.ones(len(V), bool)
    given, rest = law.condition([0]), normalized(exact * HOLDS[:, 0])
    yield ".condition([0]).inclusion_probs()", given.inclusion_probs()[:, 1:], (rest @ HOLDS)[:, 1:]
    others = [index for index, subset in enumerate(SUBSETS) if 0 in subset and len(subset) - 1 <= given.max_size]
    values = [[item for item in SUBSETS[index] if item] for index in others]
    values = jnp.asarray(pad_subsets(values, N, given.max_size))
    yield ".condition([0]).log_prob(...)", np.exp(given.log_prob(values[:, None])).T, rest[:, others]


def failures(number, seed, dtype):
    """A line of code for every kernel and member that is wrong, with what came out."""
    V, B, D = integer_kernels(number, seed)
    lines = []
    for code in LAWS:
        for called, got, wanted in comparisons(code, V, B, D, dtype):
            got = np.asarray(got, float).reshape(number, -1)
            wanted = np.asarray(wanted, float).reshape(number, -1)
            wrong = ~(np.abs(got - wanted) < TOLERANCE[dtype]).all(axis=1)
            for kernel in np.flatnonzero(wrong):
                parts = ", ".join(
                    f"{name} = np.array({part[kernel].tolist()}, '{dtype}')"
                    for name, part in zip("VBD", (V, B, D), strict=True)
                )
                lines.append(f"{parts}; {code}{called}  # {got[kernel].tolist()} is {wanted[kernel].tolist()}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--float32", action="store_true")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.filterwarnings("ignore", "Out-of-support")
    number, at_once = 0, min(1000, arguments.kernels)
    for batch in range(-(-arguments.kernels // at_once)):
        lines = failures(at_once, (arguments.seed, batch), "float32" if arguments.float32 else "float64")
        number += len(lines)
        print(*lines, f"{(batch + 1) * at_once:,} kernels, {number} failures", sep="\n", flush=True)
    raise SystemExit(number > 0)


if __name__ == "__main__":
    main()
