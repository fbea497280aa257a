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

    @property
    def session(self) -> Registered:
        """Has the registration that is in force."""
        ...


class Registered(Protocol):
    """The session with the metadata store."""

    broker_epoch: BrokerEpoch
