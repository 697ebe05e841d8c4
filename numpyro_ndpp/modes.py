"""The greedy subset of a distribution, with as many items as it may have or as one asks for."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.util import not_jax_tracer

from numpyro_ndpp.checks import static_int
from numpyro_ndpp.drawing import Drawn, compiled
from numpyro_ndpp.greedy import exchange, greedy_given, greedy_map
from numpyro_ndpp.target import Target, per_kernel

__all__ = ["HasMode"]


class HasMode(Drawn):
    """A distribution of subsets whose most probable one is searched for."""

    def greedy(self, k: int | None = None, *, num_exchanges: int = 0) -> Array:
        """Greedy MAP subset, increasing and padded, (..., k) or (..., max_size).

        :param k: how many items; None stops when no addition raises the determinant, within the distribution's own
            limits on the size.
        :param num_exchanges: how many times at the most to exchange one item for a better one afterwards.
        :return: the items; fewer than k if there is no way on, the rest is padding.
        :raises ValueError: for k out of range; beside included and excluded items less fit.

        O(n d) an item. The largest determinant itself is NP-hard to find.
        """
        if k is None:
            low, high = self.min_size, self.max_size
        else:
            low = high = self._greedy_size(k)
        if num_exchanges and self._pinned is not None:
            raise ValueError("num_exchanges must be 0 for a conditioned distribution")
        num_exchanges = static_int("num_exchanges", num_exchanges, 0, 2**31 - 1, "the largest")

        return self._greedy(low=low, high=high, has_limits=k is None, num_exchanges=num_exchanges)

    def _greedy_size(self, k: Any) -> int:
        """k, checked: as many as are left beside what is included and excluded."""
        num_excluded = 0
        if self._excluded is not None and not_jax_tracer(self._excluded):
            num_excluded = int((np.asarray(self._excluded) < self.num_items).sum(axis=-1).max(initial=0))
        most = min(self.num_items - num_excluded, self.rank) - self.num_certain
        beside = [f"{number} {what}" for number, what in ((self.num_certain, "included"), (num_excluded, "excluded"))]
        given = f" beside {' and '.join(beside)}" if self.num_certain + num_excluded else ""
        meaning = f"what is left of min(num_items={self.num_items}, rank={self.rank}){given}"
        return static_int("k", k, 0, max(0, most), meaning if given else meaning.removeprefix("what is left of "))

    @compiled("low", "high", "has_limits", "num_exchanges")
    def _greedy(self, *, low: int, high: int, has_limits: bool, num_exchanges: int) -> Array:
        def of_kernel(target: Target) -> Array:
            kernel, pinned = target.kernel, target.items
            if pinned.size:
                number = jnp.sum(pinned < self.num_items)
                limits = self.whole_sizes if has_limits else (low + number, high + number)
                return greedy_given(kernel, kernel.C, pinned, *limits, high)
            items = greedy_map(kernel, kernel.C, low, high)
            return exchange(kernel, items, num_exchanges) if num_exchanges and high else items

        return per_kernel(of_kernel, self.target, "(k)")

    @property
    def mode(self) -> Array:
        """``greedy()``: an approximation of the most probable subset."""
        return self.greedy()
