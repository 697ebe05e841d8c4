"""Latent subsets in plates: posteriors against enumeration, and what is known of whose likelihood is whose.

The draws are the last values of independent chains, which makes the rate of false alarms known. With C draws the total
variation from their law has a mean of at most Σ √(p (1 - p) / C) / 2, and it is t above its mean with a probability of
at most exp(-2 C t²) (McDiarmid): one draw changes it by 1/C. ``total_variation`` checks that this is below one in a
thousand at the limit of 0.05. States that expect less than 5 draws are put together.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax, random
from kernels import all_subsets
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, Gibbs, HMCGibbs

from numpyro_ndpp import KNDPP, NDPP, Cholesky, SubsetGibbs, infer, pad_subsets, to_multihot
from numpyro_ndpp.separation import axes_of_batch, separated

n, NUM_GROUPS = 6, 3
NOISE, LIMIT, FALSE_ALARMS = 0.6, 0.05, 1e-3
RNG = np.random.default_rng(55)
V, B, D = (RNG.normal(size=(NUM_GROUPS, *shape)) for shape in [(n, 2), (n, 2), (2, 2)])
V = 0.7 * V
SEEN = jnp.array([[0.0, 1.3, -0.1, 0.3, -0.5, 0.9], [-0.1, -0.3, -0.3, 1.2, 1.1, 0.3], [-0.6, 0.5, 0.6, 1.7, 0.0, 0.8]])
SUM_SEEN = jnp.array([0.2, 1.0, 0.3, 1.3, 0.9, 2.1])
LAWS = {
    "one kernel": lambda: KNDPP(V[0], B[0], D[0], k=2),
    "kernel per group": lambda: KNDPP(V, B, D, k=2),
    "multihot": lambda: KNDPP(V, B, D, k=2).multihot(),
    "any size": lambda: NDPP(V, B, D, max_size=2),
    "given items": lambda: KNDPP(V, B, D, k=3).condition(include=[[5], [3], [1]]),
    "exact": lambda: KNDPP(V, B, D, k=2, sampler=Cholesky()),
}


def in_plate(level, masks):
    """The log-likelihood of each group."""
    return dist.Normal(level * masks, NOISE).log_prob(SEEN).sum(-1)


def joining(level, masks):
    """That of all groups together."""
    return dist.Normal(level * masks.sum(-2), NOISE).log_prob(SUM_SEEN).sum(-1)


def model(name, joined=False, has_level=False):
    level = numpyro.sample("level", dist.Normal(1, 0.2)) if has_level else 1.0
    law = LAWS[name]()
    with numpyro.plate("groups", NUM_GROUPS):
        S = numpyro.sample("S", law)
        masks = S if S.shape[-1] == n else to_multihot(S, n)
        if not joined:
            numpyro.factor("seen", in_plate(level, masks))
    if joined:
        # a site in the plate, too: its entries are those of the groups
        numpyro.factor("seen", 0.5 * in_plate(level, masks))
        numpyro.factor("sum", joining(level, masks))


def exact_posterior(name, joined, has_level):
    """The probabilities (2ⁿ, 2ⁿ, 2ⁿ) of the masks of the three groups, as numbers: enumeration, and quadrature."""
    subsets = all_subsets(n, 0, 2)
    padded = pad_subsets(subsets, n, 2)
    law = getattr(LAWS[name](), "base_dist", LAWS[name]())
    log_prior = jnp.broadcast_to(jax.jit(law.log_prob)(padded[:, None]), (len(subsets), NUM_GROUPS))
    masks = to_multihot(padded, n)
    levels = jnp.linspace(0.2, 1.8, 41) if has_level else jnp.ones(1)
    a, b, c = jnp.meshgrid(*[jnp.arange(len(subsets))] * NUM_GROUPS, indexing="ij")

    def log_joint(level):
        own = jax.vmap(lambda mask: in_plate(level, mask))(masks)  # (subsets, groups)
        of_group = log_prior + (0.5 if joined else 1.0) * own
        total = of_group[a, 0] + of_group[b, 1] + of_group[c, 2] + dist.Normal(1, 0.2).log_prob(level)
        return total + joining(level, masks[jnp.stack([a, b, c], axis=-1)]) if joined else total

    log_posterior = jax.nn.logsumexp(lax.map(log_joint, levels), axis=0)
    probs = np.asarray(jax.nn.softmax(log_posterior.ravel())).reshape(log_posterior.shape)
    numbers = masks @ (1 << np.arange(n))
    posterior = np.zeros([1 << n] * NUM_GROUPS)
    posterior[np.ix_(numbers, numbers, numbers)] = probs
    return posterior


def total_variation(values, posterior):
    """Between the last values of chains, the joint law of all groups, and its enumeration."""
    masks = np.asarray(values if values.shape[-1] == n else to_multihot(values, n))
    places = np.ravel_multi_index(tuple((masks @ (1 << np.arange(n))).T), posterior.shape)
    num_draws, posterior = len(masks), posterior.ravel()
    frequencies = np.bincount(places, minlength=posterior.size) / num_draws
    assert (frequencies[posterior == 0] == 0).all()
    rare = num_draws * posterior < 5
    frequencies, posterior = (np.append(each[~rare], each[rare].sum()) for each in (frequencies, posterior))
    spread = 0.5 * np.sqrt(posterior * (1 - posterior) / num_draws).sum()
    assert spread < LIMIT
    assert math.exp(-2 * num_draws * (LIMIT - spread) ** 2) < FALSE_ALARMS
    return 0.5 * np.abs(frequencies - posterior).sum()


@pytest.fixture
def ways(monkeypatch):
    """Whether the subsets of a site were updated side by side, for every time that it was asked."""
    found = []

    def spy(*arguments):
        own = separated(*arguments)
        found.append("side by side" if own else "one by one")
        return own

    monkeypatch.setattr(infer, "separated", spy)
    return found


def last_values(block, num_chains, num_updates):
    """The last values (chains, groups, ...) of chains from one start, and the mean acceptance probability."""
    start = handlers.trace(handlers.seed(block.model, 0)).get_trace()["S"]["value"]
    state = block.init(random.key(0), 0, {"S": start}, (), None)

    def update(state, _):
        state = block.sample(state, (), None)
        return state, state.accept_prob

    def chain(key):
        state_, accept_probs = lax.scan(update, state._replace(rng_key=key), length=num_updates)
        return state_.z["S"], accept_probs.mean()

    values, accept_probs = jax.jit(jax.vmap(chain))(random.split(random.key(1), num_chains))
    return values, accept_probs.mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "joined", "fresh", "num_updates"),
    [
        ("one kernel", False, 0.0, 8),
        ("multihot", True, 0.0, 8),
        ("one kernel", True, 0.0, 40),
        ("kernel per group", False, 0.0, 8),
        ("multihot", False, 0.0, 8),
        ("any size", False, 0.0, 40),
        ("any size", True, 0.0, 40),
        ("given items", False, 0.0, 40),
        ("given items", True, 0.0, 40),
        ("exact", False, 0.3, 8),
        ("exact", True, 0.3, 8),
    ],
)
def test_posterior_equals_enumeration(name, joined, fresh, num_updates, ways):
    block = SubsetGibbs(lambda: model(name, joined), "S", num_moves=5, fresh=fresh)
    values, accept_prob = last_values(block, 10_000, num_updates)
    assert set(ways) == {"one by one" if joined else "side by side"}
    assert 0.1 < accept_prob < 0.9
    assert total_variation(values, exact_posterior(name, joined, False)) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("joined", [False, True], ids=["in the plate", "joined"])
@pytest.mark.parametrize("way", ["Gibbs", "HMCGibbs"])
def test_posterior_beside_nuts_equals_enumeration(way, joined, ways):
    """Many short chains side by side, of which each gives one draw."""

    def with_level():
        model("kernel per group", joined, has_level=True)

    block, nuts = SubsetGibbs(with_level, "S", num_moves=5), NUTS(with_level, max_tree_depth=2)
    kernel = HMCGibbs(nuts, block.gibbs_fn(), ["S"]) if way == "HMCGibbs" else Gibbs([(block, ["S"]), (nuts, None)])
    chains = {"num_chains": 10_000, "chain_method": jax.vmap, "progress_bar": False}
    mcmc = MCMC(kernel, num_warmup=20, num_samples=1, **chains)
    mcmc.run(random.key(2))
    assert set(ways) == {"one by one" if joined else "side by side"}
    posterior = exact_posterior("kernel per group", joined, True)
    assert total_variation(mcmc.get_samples()["S"], posterior) < LIMIT


# --- Shapes and acceptance -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nested_plates_and_the_acceptance_rate(ways):
    """Four subsets, a kernel for each row. One has no other value that is possible; all moves of the others count."""
    start = jnp.array([[[0, 1], [2, 3]], [[0, 4], [1, 5]]])

    def nested():
        with numpyro.plate("columns", 2), numpyro.plate("rows", 2):
            S = numpyro.sample("S", KNDPP(V[:2, None], B[:2, None], D[:2, None], k=2, sampler=Cholesky()))
            is_start = jnp.all(start == S, axis=-1)
            numpyro.factor("stay", jnp.where(is_start | ~jnp.array([[True, False], [False, False]]), 0.0, -jnp.inf))

    block = SubsetGibbs(nested, "S", num_moves=1)
    state = block.init(random.key(0), 0, {"S": start}, (), None)
    update = jax.jit(jax.vmap(lambda key: block.sample(state._replace(rng_key=key), (), None)))
    after = update(random.split(random.key(0), 50))
    assert set(ways) == {"side by side"}
    assert after.z["S"].shape == (50, 2, 2, 2)
    assert (after.z["S"][:, 0, 0] == start[0, 0]).all()
    changed = (after.z["S"] != start).any(axis=(0, -1))
    assert changed.tolist() == [[False, True], [True, True]]
    # its own moves count 0, or 1 where the same subset was proposed
    assert set(np.round(np.asarray(after.accept_prob), 6)) <= {0.75, 1.0}
    assert after.accept_prob.min() == 0.75


@pytest.mark.slow
def test_bad_start():
    block = SubsetGibbs(lambda: model("one kernel"), "S")
    with pytest.raises(ValueError, match=r"site 'S' must start at a value of shape \(3, 2\), got \(2,\)"):
        block.init(random.key(0), 0, {"S": jnp.array([0, 1])}, (), None)
    with pytest.raises(ValueError, match="site 'S' cannot start at"):
        block.init(random.key(0), 0, {"S": jnp.array([[0, 1], [1, 0], [2, 3]])}, (), None)


def subsampled():
    with numpyro.plate("groups", 3, subsample_size=2):
        numpyro.sample("S", LAWS["one kernel"]().with_sampler(Cholesky()))


def one_event():
    numpyro.sample("S", LAWS["exact"]().to_event(1))


@pytest.mark.parametrize(
    ("bad_model", "message"),
    [
        (subsampled, "site 'S' is scaled by 1.5, as subsampling in a plate does"),
        (one_event, "site 'S' has a Independent; .* neither masked nor made one event by to_event"),
    ],
)
def test_bad_sites(bad_model, message):
    with pytest.raises(ValueError, match=message):
        SubsetGibbs(bad_model, "S").gibbs_fn()


# --- Whose likelihood is whose ---------------------------------------------------------------------------------------

X = random.normal(random.key(0), (3, 4, n))
LOWER = jnp.tril(jnp.ones((n, n)))


def marginal_likelihood(x):
    chosen = X * x[:, None]
    covariance = jnp.eye(4) + chosen @ chosen.swapaxes(1, 2)
    return dist.MultivariateNormal(0, covariance).log_prob(jnp.ones((3, 4)))


FUNCTIONS = {
    "normal": (lambda x: dist.Normal(x, 1.0).to_event(1).log_prob(SEEN), (0,)),
    "categorical": (lambda x: dist.Categorical(logits=x).log_prob(jnp.array([1, 0, 4])), (0,)),
    "weights integrated out": (marginal_likelihood, (0,)),
    "solve": (lambda x: jax.vmap(lambda a: jnp.linalg.solve(jnp.eye(n) + jnp.outer(a, a), a))(x), (0,)),
    "log det": (lambda x: jax.vmap(lambda a: jnp.linalg.slogdet(jnp.eye(n) + jnp.outer(a, a))[1])(x), (0,)),
    "rows by number": (lambda x: jax.vmap(lambda x, a: a[x.astype(int)])(x, X[:, 0]), (0,)),
    "masks": (lambda x: to_multihot(x.astype(int), n), (0,)),
    "behind": (lambda x: jnp.einsum("ij,gj->ig", LOWER, x), (1,)),
    "stacked": (lambda x: jnp.stack([x, 2 * x], axis=0), (1,)),
    "cut and joined": (lambda x: jnp.concatenate([x[:, :2], jnp.sort(x[:, 2:], axis=1)], axis=1), (0,)),
    "padded": (lambda x: jnp.pad(jnp.cumsum(x, axis=1), ((0, 0), (1, 2))).reshape(3, 3, 3), (0,)),
    "choice by none": (lambda x: lax.cond(X[0, 0, 0] > 0, jnp.sin, jnp.cos, x), (0,)),
    "nothing": (lambda x: jnp.zeros_like(x), ()),
    # not along an axis, or not known to be
    "turned round": (lambda x: x[::-1], (None,)),
    "shifted": (lambda x: jnp.roll(x, 1, axis=0), (None,)),
    "padded before": (lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:3], (None,)),
    "sum": (lambda x: x - x.sum(axis=0), (None,)),
    "one for all": (lambda x: jnp.ones((3, n)) * x[0], (None,)),
    "by number": (lambda x: x[jnp.array([0, 0, 2])], (None,)),
    "written elsewhere": (lambda x: jnp.zeros((3, n)).at[jnp.array([1, 2, 0])].set(x), (None,)),
    "product": (lambda x: jnp.ones((3, 3)) @ x, (None,)),
    "choice by one": (lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), (None,)),
    "flat": (lambda x: x.reshape(-1), (None,)),
    "sorted": (lambda x: jnp.sort(x, axis=0), (None,)),
    "running": (lambda x: jnp.cumsum(x, axis=0), (None,)),
    "loop": (lambda x: lax.fori_loop(0, 2, lambda _, y: y + y[::-1], x), (None,)),
    "another's index": (lambda x: X[:, 0][:, x[0].astype(int)], (None,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_axes_that_members_lie_along(name):
    """As expected; and where it is said that they do, another member changes nothing."""
    function, expected = FUNCTIONS[name]
    x = jnp.asarray(np.random.default_rng(1).integers(0, 3, (3, n)).astype(float))
    assert axes_of_batch(function, x, 1) == expected
    if expected == (None,):
        return
    before = function(x)
    for member in range(3):
        after = function(x.at[member].add(1.0))
        same = before == after if expected == () else jnp.moveaxis(before == after, expected[0], 0)
        others = same if expected == () else jnp.delete(same, member, axis=0)
        assert others.all()


def test_effects_are_not_followed():
    def function(x):
        jax.debug.callback(lambda value: None, x[0, 0])
        return x

    assert axes_of_batch(function, jnp.zeros((3, n)), 1) == (None,)
