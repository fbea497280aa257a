"""What partitions see of the fence of their broker (`broker/lifecycle/fencing.py`)."""

from __future__ import annotations

from typing import Protocol

from lowtide.protocol.types import BrokerEpoch


class Fence(Protocol):
    """What can be seen of a broker's fence (`broker/lifecycle/fencing.py`) without a call, at each look for a partition."""

    epoch: BrokerEpoch
    """The registration under which it is down."""
    down_until_ms: int
    """Under that registration it is down until then, on the monotonic clock, at least."""

    def is_up(self) -> bool:
        """Whether the broker must not act now."""
        ...

    @property
    def registration(self) -> Registered:
        """The registration that is in force."""
        ...


class Registered(Protocol):
    """What the broker is registered as; `metadata/held_registration.py`."""

    broker_epoch: BrokerEpoch
