"""The limits of one fetch, and what one pass over its partitions has read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.broker.partitions.fetch.fetch_session import CONSUMER
from lowtide.protocol.types import BrokerEpoch, BrokerId
from lowtide.replication.follower_state import UNKNOWN_BROKER_EPOCH

if TYPE_CHECKING:
    from lowtide.broker.partitions.fetch.fetch_session import FetchTarget
    from lowtide.protocol.messages.fetch import PartitionData
    from lowtide.replication.topic_traffic import Traffic


class FetchRules(msgspec.Struct, kw_only=True):
    """The limits of one fetch, and who asks."""

    api_version: int
    read_committed: bool
    is_follower: bool
    minimum_bytes: int
    maximum_bytes: int
    maximum_wait_ms: int
    replica_id: BrokerId = CONSUMER
    broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    rack: str = ""
    """The rack that a consumer would like to read in, where the broker looks for that."""


class FetchOutcome(msgspec.Struct):
    """What one pass over the partitions read. `noted`: of how many a follower's position was taken over.

    `unsent`: bytes that count as sent only with the answer, for what was read may be dropped, and read again after a wait.
    """

    answers: list[tuple[FetchTarget, PartitionData]]
    read_bytes: int
    ends_wait: bool
    waitable: int
    noted: int = 0
    unsent: dict[Traffic, int] | None = None

    def count_sent(self, rules: FetchRules) -> None:
        """The answer is given: what is `unsent` counts."""
        for traffic, size in (self.unsent or {}).items():
            if rules.is_follower:
                traffic.replication_bytes_out += size
            else:
                traffic.bytes_out += size
