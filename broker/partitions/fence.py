"""The part of the broker's fence (`broker/lifecycle/fencing.py`) that partitions read."""

from __future__ import annotations

from typing import Protocol

from lowtide.protocol.types import BrokerEpoch


class Fence(Protocol):
    """A broker's fence. The fields are read without a call at each lookup of a partition."""

    epoch: BrokerEpoch
    """The registration under which the fence is down."""
    down_until_ms: int
    """The monotonic time until which it is down at least, under that registration."""

    def is_up(self) -> bool:
        """Returns whether the broker must not act now."""
        ...

    @property
    def registration(self) -> Registered:
        """The current registration."""
        ...


class Registered(Protocol):
    """The broker's registration; see `metadata/held_registration.py`."""

    broker_epoch: BrokerEpoch
