"""Random kernels against the enumeration of all subsets: every member of every law, in one compiled program each.

    NUMPYRO_NDPP_TESTS=quick python tests/fuzz.py [--kernels 10000] [--seed 0] [--float32]

Most of the time is compilation: "quick" leaves XLA's optimisation out, which takes a third of the time.

Kernels are of small integers, whose minors vanish exactly, of quarters, of quarters with repeated rows and parallel
columns, and of real numbers. The minors of all but the last are enumerated without rounding, so that what is zero is
known. Every failure is printed as a line of code.

A kernel is near the rounding limit if one of its minors is positive, but small beside the terms it is the sum of, or
in float32 if the sum of all minors that a law allows is (``is_near_rounding``). Of such a kernel less is asked: no NaN,
no probability above 1.001, nothing impossible drawn.
"""

import argparse
import itertools
import multiprocessing
import os
import warnings
from dataclasses import dataclass
from functools import cache, partial

import conftest  # noqa: F401 - 64 bits, and how XLA compiles
import jax
import jax.numpy as jnp
import numpy as np

from numpyro_ndpp import KNDPP, NDPP, Cholesky, Exact, Rejection, SizedNDPP, UpDown, pad_subsets
from numpyro_ndpp.samplers.bands import prepare_bands

N = 4
SHAPES = {"V": (N, 1), "B": (N, 2), "D": (2, 2)}
RANK = 3
SUBSETS = [subset for size in range(N + 1) for subset in itertools.combinations(range(N), size)]
SIZES = np.array([len(subset) for subset in SUBSETS])
HOLDS = np.array([[item in subset for item in range(N)] for subset in SUBSETS])
SMALL = [index for index, subset in enumerate(SUBSETS) if len(subset) <= RANK]  # larger ones are beyond the rank
# the law in code, its smallest and its largest size
LAWS = {
    "NDPP(V, B, D)": (0, 3),
    "NDPP(V, B, D, min_size=1)": (1, 3),
    "NDPP(V, B, D, max_size=2)": (0, 2),
    "NDPP(V, B, D, min_size=2)": (2, 3),
    "KNDPP(V, B, D, 1)": (1, 1),
    "KNDPP(V, B, D, 2)": (2, 2),
    "KNDPP(V, B, D, 3)": (3, 3),
    "SizedNDPP(V, B, D, [0, 1, -1, 0])": (0, 3),
}
LOGITS = np.array([0, 1, -1, 0])  # of the sizes of the last one
# what is called on the law before its members: which items are in, which are out
GIVEN = {"": ((), ()), ".condition([0])": ((0,), ()), ".condition([1], [3])": ((1,), (3,))}
JOINED = ((), (0,), (1, 2))  # the sets that a next item joins
TOLERANCE = {"float64": 1e-7, "float32": 2e-3}
# A minor is the difference of terms as large as the product of the lengths of its rows. One that is smaller than so
# many units of rounding over the tolerance, relative to that, has fewer digits than are asked for.
ROUNDING_UNITS = 16
# The same of a sum of minors, which is a determinant det(I + t W C), and of its derivatives, the inclusion
# probabilities, which have more roundings. In double precision all sums have the digits that are asked for.
ROUNDING_UNITS_OF_SUMS = {"float64": 0, "float32": 64}
RADII = np.logspace(-6, 6, 49)  # the t that are looked at; the middle one is 1


@dataclass(frozen=True)
class ByBands(Exact):
    """Exact draws of sizes that vary, as an accelerator makes them."""

    def prepare(self, target):
        return prepare_bands(target)


SAMPLERS = {
    "UpDown": UpDown(),
    "Exact": Exact(),
    "Cholesky": Cholesky(),
    "Rejection": Rejection(100),
    "ByBands": ByBands(),
}
NUM_DRAWS = 8
KINDS = ("integers", "quarters", "repeated", "reals")


# --- Kernels, and the truth about them -------------------------------------------------------------------------------


def random_kernels(kind, number, seed):
    """V, B, D, each (number, ...)."""
    rng = np.random.default_rng(seed)
    if kind == "reals":
        return [rng.normal(size=(number, *shape)) for shape in SHAPES.values()]
    units, most = (1, 1) if kind == "integers" else (4, 8)
    V, B, D = (
        rng.integers(-most - (name == "D"), most + 1 + (name == "D"), (number, *shape)) / units
        for name, shape in SHAPES.items()
    )
    if kind == "repeated":
        # Most rows of B are those of item 0, whose columns may be parallel; V is often zero.
        which = rng.integers(0, 3, (number, N, 1)) // 2 * np.arange(N)[:, None]
        B = np.take_along_axis(B, which, axis=1)
        B = np.where(rng.random((number, 1, 1)) < 0.5, B[..., :1] * rng.integers(-1, 2, (number, 1, 2)), B)
        V = V * rng.integers(0, 2, V.shape)
    return [V, B, D]


def determinants(matrices):
    """The determinants of matrices (..., k, k), by expansion: exact for small integers and quarters in float64."""
    if matrices.shape[-1] == 0:
        return np.ones(matrices.shape[:-2])
    rest = [np.delete(matrices[..., 1:, :], column, axis=-1) for column in range(matrices.shape[-1])]
    return sum((-1) ** column * matrices[..., 0, column] * determinants(rest[column]) for column in range(len(rest)))


def all_minors(V, B, D):
    """det L_S of every subset (kernels, 2ⁿ); none is negative, and none beyond the rank is positive."""
    L = V @ V.swapaxes(1, 2) + B @ (D - D.swapaxes(1, 2)) @ B.swapaxes(1, 2)
    minors = np.stack([determinants(L[:, subset][:, :, subset]) for subset in map(list, SUBSETS)], axis=1)
    return np.maximum(minors, 0) * (SIZES <= RANK)


def is_near_rounding(V, B, D, minors, dtype, code, given):
    """Which kernels (c,) have a positive minor or a sum of them with fewer digits than are asked for."""
    X = np.concatenate([V, B], axis=2)
    images = np.concatenate([V, B @ (D - D.swapaxes(1, 2))], axis=2)
    lengths = np.linalg.norm(X, axis=2) * np.linalg.norm(images, axis=2)
    scale = np.stack([np.prod(lengths[:, list(subset)], axis=1) for subset in SUBSETS], axis=1)
    limit = np.finfo(dtype).eps / TOLERANCE[dtype]
    has_small = ((minors > 0) & (minors < ROUNDING_UNITS * limit * scale)).any(axis=1)
    return has_small | (cancellation(V, B, D, minors, code, given) * ROUNDING_UNITS_OF_SUMS[dtype] * limit > 1)


def cancellation(V, B, D, minors, code, given):
    """How much larger than the sum of the minors of a law the terms are that a determinant has them from (c,).

    The sum of those of size k is the coefficient of tᵏ in det(I + t W C), whose terms are at most the product of the
    lengths of its rows or columns. It is read off at the t where that is smallest; at 1 where all sizes are allowed.
    They are large beside the sum where W C is nearly nilpotent, as it is where columns of B are parallel.
    """
    (low, high), (include, exclude) = LAWS[code], GIVEN[given]
    is_in = ~np.isin(np.arange(N), exclude)
    X = np.concatenate([V, B], axis=2) * is_in[:, None]
    W = np.zeros((len(V), RANK, RANK))
    W[:, 0, 0], W[:, 1:, 1:] = 1, D - D.swapaxes(1, 2)
    C = X.swapaxes(1, 2) @ X
    lengths = np.sqrt(np.diagonal(C, axis1=1, axis2=2))
    lengths = np.where(lengths > 0, lengths, 1)
    # The columns of X are brought to one length.
    M = W * lengths[:, :, None] * lengths[:, None] @ (C / (lengths[:, :, None] * lengths[:, None]))
    matrices = np.eye(RANK) + RADII[:, None, None, None] * M
    terms = np.minimum(*(np.prod(np.linalg.norm(matrices, axis=axis), axis=2) for axis in (2, 3)))
    weights = minors * HOLDS[:, include].all(axis=1) * ~HOLDS[:, exclude].any(axis=1)
    sizes = np.arange(low, high + 1)
    sums = np.stack([weights @ (size == SIZES) for size in sizes], axis=1)
    if code.startswith("SizedNDPP"):  # each size on its own
        terms = np.min(terms[:, :, None] * RADII[:, None, None] ** -sizes.astype(float), axis=0)
    else:
        sums = sums.sum(axis=1, keepdims=True)
        if (low, high) == (0, RANK):
            terms = terms[len(RADII) // 2, :, None]
        else:
            powers = np.max(RADII[:, None] ** -sizes.astype(float), axis=1)
            terms = np.min(terms * powers[:, None], axis=0)[:, None]
    return np.max(np.where(sums > 0, terms / np.where(sums > 0, sums, 1), 0), axis=1)


def has_rare_sizes(weights):
    """Which kernels (c,) have a size of less than a thousandth, whatever number the kernel is multiplied with."""
    of_sizes = np.stack([weights @ (size == SIZES) for size in range(RANK + 1)], axis=1)
    scales = np.logspace(-8, 8, 161)[:, None, None] ** np.arange(RANK + 1)
    best = np.max(of_sizes * scales / np.maximum((of_sizes * scales).sum(axis=2, keepdims=True), 1e-300), axis=0)
    return ((of_sizes > 0) & (best < 1e-3)).any(axis=1)


def normalized(weights):
    total = weights.sum(axis=1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1), 0.0)


def place_of(subset):
    return SUBSETS.index(tuple(sorted(subset)))


def weights_of(code, minors):
    """The weights (kernels, 2ⁿ) of all subsets in a law, by their minors."""
    low, high = LAWS[code]
    if code.startswith("SizedNDPP"):
        of_sizes = np.stack([minors @ (size == SIZES) for size in range(RANK + 1)], axis=1)
        factors = np.exp(LOGITS) / np.where(of_sizes > 0, of_sizes, 1)
        minors = minors * factors[:, np.minimum(SIZES, RANK)]
    return minors * ((low <= SIZES) & (high >= SIZES))


def truth(V, B, D, code, given):
    """What every member should give, for all kernels; and the probability of every whole subset (kernels, 2ⁿ)."""
    (include, exclude), (_, high) = GIVEN[given], LAWS[code]
    minors = all_minors(V, B, D)
    weights = weights_of(code, minors) * HOLDS[:, include].all(axis=1) * ~HOLDS[:, exclude].any(axis=1)
    probs = normalized(weights)
    others = [item for item in range(N) if item not in include]
    # Where sizes have a law of their own, what is left of all weights is a probability.
    whole = weights_of(code, minors) if code.startswith("SizedNDPP") else weights
    scale = np.maximum(whole.sum(axis=1), 1)
    yield "log_normalizer", weights.sum(axis=1) / scale, lambda value: np.exp(value) / scale
    yield "log_prob", probs[:, [place_of((*include, *subset)) for subset in values_of(include)]], np.exp
    inclusion = probs @ HOLDS
    inclusion[:, list(include)] = 0
    yield "inclusion_probs", inclusion, np.asarray
    yield "multihot.log_prob", probs[:, [place_of((*include, *subset)) for subset in values_of(include)]], np.exp
    sizes = np.stack([probs @ (size + len(include) == SIZES) for size in range(RANK + 1)], axis=1)
    yield "size_log_prob", sizes, np.exp
    together = [HOLDS[:, list(subset)].all(axis=1) for subset in values_of(include)]
    yield "marginal_log_prob", np.stack([probs @ there for there in together], axis=1), np.exp
    for joined in JOINED:
        if set(joined) & {*include, *exclude}:
            continue
        allowed = len(joined) + len(include) < high
        free = [item for item in others if item not in joined and item not in exclude]
        joint = np.zeros((len(V), N))
        joint[:, free] = minors[:, [place_of((*include, *joined, item)) for item in free]] * allowed
        yield f"next_item_log_prob {joined}", normalized(joint), np.exp


def values_of(include):
    """The subsets of other items that a value may be."""
    return [subset for subset in SUBSETS if not set(subset) & set(include) and len(subset) <= RANK - len(include)]


# --- What the package says -------------------------------------------------------------------------------------------


@cache
def programs(code, given, samplers):
    """A program for every member, each for a batch of kernels (c, ...).

    Not one program for all: two batches of factorisations at once may wait for each other forever. A member keeps its
    own apart, but not from those of another.
    """
    include, exclude = map(list, GIVEN[given])
    values = pad_subsets(values_of(include), N, RANK)
    masks = np.array([[item in subset for item in range(N)] for subset in values_of(include)], np.int32)
    members = {
        "log_normalizer": lambda law, key: law.log_normalizer,
        "log_prob": lambda law, key: law.log_prob(values[:, None]).T,
        "inclusion_probs": lambda law, key: law.inclusion_probs(),
        "multihot.log_prob": lambda law, key: law.multihot().log_prob(masks[:, None]).T,
        "size_log_prob": lambda law, key: law.size_log_prob(),
        "marginal_log_prob": lambda law, key: law.marginal_log_prob(values[:, None]).T,
        "greedy": lambda law, key: law.greedy(),
    }
    for joined in JOINED:
        if not set(joined) & {*include, *exclude}:
            items = np.array(joined, np.int32)
            members[f"next_item_log_prob {joined}"] = lambda law, key, items=items: law.next_item_log_prob(items)
    for name in samplers:
        members[f"sample by {name}"] = partial(_sample, SAMPLERS[name])

    def compiled(member):
        @jax.jit
        def of_kernels(V, B, D, key):
            law = eval(code, {"V": V, "B": B, "D": D, "NDPP": NDPP, "KNDPP": KNDPP, "SizedNDPP": SizedNDPP})
            return member(law.condition(include, exclude) if given else law, key)

        return of_kernels

    return {name: compiled(member) for name, member in members.items()}


def _sample(sampler, law, key):
    law.sampler = sampler
    return jnp.moveaxis(law.sample(key, (NUM_DRAWS,)), 0, 1)


def places(subsets, include):
    """The place of every padded subset of others (c, w) in the list of all; -1 for what is no subset."""
    found = np.full(len(subsets), -1)
    for number, row in enumerate(np.asarray(subsets)):
        items = [int(item) for item in row if item < N]
        if all(item >= 0 for item in items) and len({*items, *include}) == len(items) + len(include):
            found[number] = place_of((*items, *include))
    return found


def comparisons(code, given, V, B, D, dtype, samplers):
    """(the member, its values for each kernel, the true ones, and the kernels (c,) for which it is wrong)."""
    (low, high), (include, exclude) = LAWS[code], GIVEN[given]
    parts = [part.astype(dtype) for part in (V, B, D)]
    compiled = programs(code, given, samplers)
    members = {name: np.asarray(program(*parts, jax.random.key(0))) for name, program in compiled.items()}
    # Of real numbers the kernel is what is left of them in the type.
    exact = [part.astype(float) for part in parts]
    of_all_subsets = all_minors(*exact)
    is_near = is_near_rounding(*exact, of_all_subsets, dtype, code, given)
    for member, wanted, as_probs in truth(*exact, code, given):
        got = np.asarray(as_probs(members[member]), float)
        wrong = ~(np.abs(got - wanted) < TOLERANCE[dtype]).reshape(len(V), -1).all(axis=1)
        # A sum of minors is no probability, unless the law of the size is free.
        most = np.inf if member == "log_normalizer" and not code.startswith("SizedNDPP") else 1.001
        never = ~(got < most).reshape(len(V), -1).all(axis=1)  # NaN too
        yield member, got, wanted, np.where(is_near, never, wrong)
    of_all_sizes = of_all_subsets * HOLDS[:, list(include)].all(axis=1) * ~HOLDS[:, list(exclude)].any(axis=1)
    minors = of_all_sizes * ((low <= SIZES) & (high >= SIZES))
    is_possible = minors.sum(axis=1) > 0
    kernels = np.arange(len(V))
    greedy = places(members["greedy"], include)
    least = max(low, 1)
    is_padded = SIZES[greedy] < max(least, len(include) + 1)
    is_right = np.where(is_possible, minors[kernels, greedy] > 0, is_padded) | (is_near & is_padded)
    yield "greedy", members["greedy"], is_possible, ~is_right
    for name in samplers:
        drawn = members[f"sample by {name}"]
        at = places(drawn.reshape(len(V) * NUM_DRAWS, drawn.shape[-1]), include).reshape(len(V), NUM_DRAWS)
        failed = (drawn == -1).all(axis=-1) if drawn.shape[-1] else np.repeat(~is_possible[:, None], NUM_DRAWS, 1)
        in_support = (at >= 0) & (np.take_along_axis(minors, np.maximum(at, 0), 1) > 0)
        # Rejection may give up, as may the sweeps of Cholesky if a size is rare at every scale of the kernel, and all
        # samplers where what is allowed is near rounding.
        may_fail = (is_near | (name == "Rejection") | ((name == "Cholesky") & has_rare_sizes(of_all_sizes)))[:, None]
        is_right = np.where(is_possible[:, None], in_support | (failed & may_fail), failed)
        yield f"sample by {name}", drawn, is_possible, ~is_right.all(axis=1)


def failures(V, B, D, dtype="float64", laws=tuple(LAWS), givens=tuple(GIVEN), samplers=("Cholesky",)):
    """A line of code for every kernel and member that is wrong, with what came out."""
    lines = []
    for code, given in itertools.product(laws, givens):
        for member, got, wanted, wrong in comparisons(code, given, V, B, D, dtype, samplers):
            for kernel in np.flatnonzero(wrong):
                parts = ", ".join(
                    f"{name} = np.array({part[kernel].tolist()}, '{dtype}')"
                    for name, part in zip("VBD", (V, B, D), strict=True)
                )
                lines.append(f"{parts}; {code}{given}  # {member}: {got[kernel].tolist()} is {wanted[kernel].tolist()}")
    return lines


def check_law(law, arguments):
    """The failures of one law, printed as they are met, and their number."""
    warnings.filterwarnings("ignore", "Out-of-support")
    dtype, at_once, number = "float32" if arguments.float32 else "float64", min(500, arguments.kernels), 0
    samplers = tuple(name for name in SAMPLERS if name != "ByBands" or not law.startswith("KNDPP"))
    for batch in range(-(-arguments.kernels // at_once)):
        kernels = random_kernels(KINDS[batch % len(KINDS)], at_once, (arguments.seed, batch))
        lines = failures(*kernels, dtype, laws=(law,), samplers=samplers)
        number += len(lines)
        print(*lines, f"{law}, {dtype}: {(batch + 1) * at_once:,} kernels, {number} failures", sep="\n", flush=True)
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--float32", action="store_true")
    arguments = parser.parse_args()
    # A process for every core, and a law for every process: each compiles its own programs.
    with multiprocessing.get_context("spawn").Pool(min(os.cpu_count() or 1, len(LAWS))) as pool:
        number = sum(pool.imap_unordered(partial(check_law, arguments=arguments), LAWS))
    print(f"{arguments.kernels:,} kernels, {len(LAWS)} laws, {number} failures")
    raise SystemExit(number > 0)


if __name__ == "__main__":
    main()
