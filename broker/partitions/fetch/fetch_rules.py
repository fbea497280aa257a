"""The limits of one fetch, and the result of one pass over its partitions."""

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
    """The limits and the sender of one fetch."""

    api_version: int
    read_committed: bool
    is_follower: bool
    minimum_bytes: int
    maximum_bytes: int
    maximum_wait_ms: int
    replica_id: BrokerId = CONSUMER
    broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    rack: str = ""
    """The rack of a consumer, if the broker selects replicas by rack."""


class FetchOutcome(msgspec.Struct):
    """The result of one pass over the partitions. `noted` is the number of noted follower positions.

    `unsent` are bytes that count as sent with the answer: the records may be dropped, and read again after a wait.
    """

    answers: list[tuple[FetchTarget, PartitionData]]
    read_bytes: int
    ends_wait: bool
    waitable: int
    noted: int = 0
    unsent: dict[Traffic, int] | None = None

    def count_sent(self, rules: FetchRules) -> None:
        """Counts the `unsent` bytes: the answer is complete."""
        for traffic, size in (self.unsent or {}).items():
            if rules.is_follower:
                traffic.replication_bytes_out += size
            else:
                traffic.bytes_out += size
