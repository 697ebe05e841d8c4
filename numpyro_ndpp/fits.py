"""A learned kernel with its catalogue: in files, as a distribution, and asked what belongs into a basket."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax import random

from numpyro_ndpp.catalogue import item_names, numbers_of_items
from numpyro_ndpp.checkpoints import read_arrays, write_arrays
from numpyro_ndpp.checks import static_int
from numpyro_ndpp.distributions import KNDPP, NDPP
from numpyro_ndpp.samplers import Exact
from numpyro_ndpp.sized import SizedNDPP
from numpyro_ndpp.subsets import pad_subsets, unpad_subsets

__all__ = ["Fit"]

_HISTORY = "history_"
_WIDTH = 8  # baskets are padded to multiples of this, so that few programs are compiled
_MOST_SHOWN = 3


class Fit(NamedTuple):
    """A learned kernel, the names of its items, and how it was learned.

    ``V`` (n, d₁), ``B`` (n, d₂) and ``D`` (d₂, d₂) are the kernel's parts, as in :class:`~numpyro_ndpp.NDPP`.
    """

    V: np.ndarray
    B: np.ndarray
    D: np.ndarray
    history: dict[str, np.ndarray]
    """One number for each evaluation.

    - ``step``: the steps of SVI until then.
    - ``loss``: minus the log density of the model, data and prior, in nats per basket learned from; the mean over the
      steps since the last evaluation.
    - ``validation``: the mean log-likelihood of the held-out baskets, in nats per basket.
    - ``price``: what rejections cost a kernel of ``"ondpp"``, in nats per basket; zero for others. The best evaluation
      has the largest ``validation - price``.
    - ``seconds``: the time since the last evaluation, compilation included.
    """
    settings: dict[str, Any]
    """The settings of the fit, those by default too. ``rank`` is a list, the columns of V and of B; ``data`` is a
    fingerprint of the baskets."""
    items: list[str] | None = None
    """The name of every item, or None if they were not known."""
    size_logits: np.ndarray | None = None
    """The logarithms of the probabilities of all sizes, for model ``"sized"``, else None."""

    def __repr__(self) -> str:
        n, columns, settings = len(self.V), self.V.shape[1] + self.B.shape[1], self.settings
        names = "" if self.items is None else f" ({', '.join(self.items[:_MOST_SHOWN])}, ...)"
        text = f"{settings.get('model', 'ndpp')} of {n} items{names}, rank {columns}"
        if settings.get("min_size"):
            text += ", baskets not empty"
        if len(self.history.get("step", ())):
            score = np.nan_to_num(self.history["validation"] - self.history["price"], nan=-np.inf)
            text += f", {self.history['step'][-1]} steps in {self.history['seconds'].sum():.0f} s"
            text += f", log-likelihood {self.history['validation'][np.argmax(score)]:.2f} per held-out basket"
        return f"<Fit: {text}>"

    def distribution(self, **settings: Any) -> NDPP | SizedNDPP:
        """The learned :class:`~numpyro_ndpp.NDPP` or :class:`~numpyro_ndpp.SizedNDPP`, ``settings`` such as a sampler.

        Its ``min_size`` is that of the fit, unless another one is given.

        >>> import numpy as np
        >>> Fit(np.eye(3), np.zeros((3, 0)), np.zeros((0, 0)), {}, {"min_size": 1}).distribution().min_size
        1
        """
        settings = {"min_size": self.settings.get("min_size", 0)} | settings
        if self.size_logits is not None:
            return SizedNDPP(self.V, self.B, self.D, self.size_logits, **settings)
        return NDPP(self.V, self.B, self.D, **settings)

    def recommend(
        self, basket: Iterable[str | int], num: int = 10, *, exclude: Iterable[str | int] = ()
    ) -> list[tuple[str, float]]:
        r"""The likeliest items to join a basket, with their exact probabilities, the likeliest first.

        .. math:: P(a \mid J) = \det L_{J∪a} \Big/ \sum_{b \notin J ∪ E} \det L_{J∪b}

        for the basket J and the excluded items E: given that one more item joins, and none of E. O(n m d) for m items.
        The first call compiles for some seconds.

        :param basket: items by name or by number; it may be empty.
        :param num: how many to return; fewer, if fewer can join.
        :param exclude: items that are not to be recommended.
        :return: pairs of a name and a probability; a number as text where items have no names.
        :raises ValueError: for an unknown name (the message has the nearest ones), a name of several items, a number
            out of range, an item twice, a ``num`` below 1, and a basket that no item can join.
        :raises TypeError: for a text in place of a list, and for what is neither a name nor a number.

        >>> import numpy as np
        >>> V = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])  # tea and coffee are alike: they repel
        >>> fitted = Fit(V, np.zeros((3, 0)), np.zeros((0, 0)), {}, {}, ["tea", "coffee", "bread"])
        >>> [(name, round(probability, 2)) for name, probability in fitted.recommend(["tea"])]
        [('bread', 0.99), ('coffee', 0.01)]
        """
        num, n = static_int("num", num, 1), len(self.V)
        given, left_out = self._numbers("basket", basket), self._numbers("exclude", exclude)
        padded = pad_subsets([given], n, -(-len(given) // _WIDTH) * _WIDTH)
        probs = np.exp(np.asarray(self.distribution().next_item_log_prob(padded)[0], np.float64))
        probs[left_out] = 0.0
        if not probs.sum() > 0:
            raise ValueError(
                f"basket: no item that is not excluded can join these {len(given)}; a basket has at most "
                f"{min(n, self.distribution().rank)} items, and some have probability zero"
            )
        probs /= probs.sum()
        best = [int(item) for item in np.argsort(-probs, kind="stable")[:num] if probs[item] > 0]
        return [(self._name(item), float(probs[item])) for item in best]

    def complete(
        self, basket: Iterable[str | int], size: int | None = None, *, num: int = 10, seed: int = 0
    ) -> list[list[str]]:
        """Draws of whole baskets that hold the given items: exact and independent.

        They come from the learned distribution, given these items, and given the size if there is one. Preprocessing
        takes O(n d²), and a draw of k items O(k d³); the first call compiles for some seconds.

        :param basket: items by name or by number; it may be empty.
        :param size: how many items a whole basket has, the given ones included. None: it varies as it does in the
            learned distribution.
        :param num: how many baskets to draw.
        :param seed: the seed of the draws.
        :return: baskets as lists of names (numbers as text where items have no names), the given items first. Draws
            that could not be made are left out, with a warning.
        :raises ValueError: for items as in :meth:`recommend`, a ``size`` below the number of given items or above the
            rank, a ``num`` below 1, and items that are in no basket of positive probability.
        :raises TypeError: as in :meth:`recommend`.

        >>> import numpy as np
        >>> V = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # tea and coffee are never together
        >>> fitted = Fit(V, np.zeros((3, 0)), np.zeros((0, 0)), {}, {}, ["tea", "coffee", "bread"])
        >>> fitted.complete(["tea"], 2, num=2)
        [['tea', 'bread'], ['tea', 'bread']]
        """
        n, num = len(self.V), static_int("num", num, 1)
        seed = static_int("seed", seed, 0, 2**63 - 1, "2**63 - 1")
        given = self._numbers("basket", basket)
        dist: NDPP | SizedNDPP | KNDPP = self.distribution(sampler=Exact())
        if size is not None:
            most = min(n, dist.rank)
            size = static_int("size", size, len(given), most, "the most items that a basket can have")
            dist = KNDPP(self.V, self.B, self.D, size, sampler=Exact())
        if given:
            dist = dist.condition(include=np.array(given))
        rows = np.asarray(dist.sample(random.key(seed), (num,)))
        drawn = unpad_subsets(rows[(rows >= 0).all(axis=1)], n)
        return [[self._name(item) for item in [*given, *others]] for others in drawn]

    def save(self, path: str | Path) -> None:
        """Write an npz file, whole or not at all: the kernel, its history, settings and names.

        :raises OSError: if it cannot be written; a file of that name stays as it was.
        """
        write_arrays(path, self.arrays(), self.settings)

    @classmethod
    def load(cls, path: str | Path) -> "Fit":
        """What :meth:`save` wrote. Nothing is unpickled. A file of an earlier version has no names.

        :raises ValueError: for any other file.
        """
        return cls.of_arrays(*read_arrays(path, ("V", "B", "D")))

    def arrays(self) -> dict[str, np.ndarray]:
        """What goes into a file, without the settings."""
        history = {_HISTORY + name: row for name, row in self.history.items()}
        names = {} if self.items is None else {"items": np.array(item_names(self.items), dtype=np.str_)}
        sizes = {} if self.size_logits is None else {"size_logits": self.size_logits}
        return {"V": self.V, "B": self.B, "D": self.D} | history | names | sizes

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> "Fit":
        """What :meth:`arrays` gave."""
        history = {name.removeprefix(_HISTORY): arrays[name] for name in arrays if name.startswith(_HISTORY)}
        names = [str(name) for name in arrays["items"]] if "items" in arrays else None
        return cls(arrays["V"], arrays["B"], arrays["D"], history, settings, names, arrays.get("size_logits"))

    def _numbers(self, name: str, given: Iterable[str | int]) -> list[int]:
        return numbers_of_items(name, given, len(self.V), self.items)

    def _name(self, item: int) -> str:
        return str(item) if self.items is None else self.items[item]
