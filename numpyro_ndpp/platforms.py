"""What depends on the hardware: one table, a column for CPUs and one for accelerators.

A program is traced before it is known where its arrays lie, so the platform is that of JAX's default device.
"""

from typing import Any, NamedTuple

import jax

__all__ = ["Platform", "default_platform", "platform"]


class Platform(NamedTuple):
    """Sizes and ways that are fastest on a kind of hardware."""

    is_cpu: bool
    minor_chunk_bytes: int
    """Rows of a chunk of subsets, gathered at once and again in the backward pass: within a cache, or very many."""
    num_groups: int
    """Subsets sorted by size are cut into about so many groups, each computed at its own width."""
    smallest_group: int
    """No group is smaller than this. An accelerator waits for the width of each, so it has fewer of them."""
    circle_chunk_bytes: int
    """Matrices that are factorised at once: as soon as a chunk has none that counts, a CPU is done."""
    slow_eigenvalues: bool
    """Whether eigenvalues of a general matrix take as long as many determinants."""
    draw_chunk_bytes: int
    """What draws side by side take together: within a cache, or as many as fill an accelerator."""
    draws_alone: bool
    """Whether draws of varying length are made one after the other, so that none waits for a longer one."""
    chains_side_by_side: int
    """More chains at a time gain nothing on a CPU."""


_CPU = Platform(
    is_cpu=True,
    minor_chunk_bytes=3 * 2**20,
    num_groups=24,
    smallest_group=8,
    circle_chunk_bytes=2 * 2**20,
    slow_eigenvalues=False,
    draw_chunk_bytes=16 * 2**20,
    draws_alone=True,
    chains_side_by_side=256,
)
_ACCELERATOR = Platform(
    is_cpu=False,
    minor_chunk_bytes=256 * 2**20,
    num_groups=8,
    smallest_group=512,
    circle_chunk_bytes=2**30,
    slow_eigenvalues=True,
    draw_chunk_bytes=4 * 2**30,
    draws_alone=False,
    chains_side_by_side=2**31 - 1,
)


def default_platform() -> str:
    """Where arrays lie by default: "cpu", "gpu" or "tpu"."""
    device: Any = jax.config.values["jax_default_device"]
    return jax.default_backend() if device is None else getattr(device, "platform", device)


def platform() -> Platform:
    """The table's column for JAX's default device."""
    return _CPU if default_platform() == "cpu" else _ACCELERATOR
