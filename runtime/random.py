"""The only source of randomness. A `Random` is always passed in, so that a simulation can seed it."""

from __future__ import annotations

from random import Random, SystemRandom

__all__ = ["Random", "system_random"]


def system_random() -> Random:
    """Returns the operating system's randomness: unpredictable, for identifiers and jitter in a real broker."""
    return SystemRandom()
