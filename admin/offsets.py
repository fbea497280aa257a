"""Offsets of partitions, by place or by time (ListOffsets): each partition's leader is asked, all partitions of a leader in one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import msgspec

from lowtide.admin.arguments import by_partition
from lowtide.admin.attempts import Attempts, Done, Outcome
from lowtide.admin.errors import AdminError, UnsupportedVersionError
from lowtide.admin.leaders import Leaders
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.types import BrokerId, LeaderEpoch, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle, Cluster
    from lowtide.admin.cluster_view import ClusterView
    from lowtide.admin.patience import Deadline

CONSUMER: Final = -1
"""In place of a replica id."""

TIMESTAMP_MAX: Final = 2**63 - 1


class OffsetSpec(IntEnum):
    """A place in a partition. The values are those that stand for it on the wire."""

    LATEST = -1
    """The high watermark, exclusive; the last stable offset for who reads committed records only."""
    EARLIEST = -2
    """The log start offset."""
    MAX_TIMESTAMP = -3
    """The record with the largest timestamp (KIP-734); on Kafka it may be one below the log start that is still on the disk."""
    EARLIEST_LOCAL = -4
    """The first offset that is on the broker's own disk (KIP-405)."""
    LATEST_TIERED = -5
    """The last offset in remote storage (KIP-1005)."""


_NEEDED: Final = {OffsetSpec.MAX_TIMESTAMP: 7, OffsetSpec.EARLIEST_LOCAL: 8, OffsetSpec.LATEST_TIERED: 9}
"""Versions of ListOffsets from which a place is known."""

_ISOLATION_SINCE: Final = 2


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A moment, in milliseconds since 1970-01-01 UTC.

    As a place in a partition: its first record that isn't older than this.
    """

    ms: int

    def __post_init__(self) -> None:
        if not 0 <= self.ms <= TIMESTAMP_MAX:
            message = f"a timestamp of {self.ms} ms: allowed is 0 and more"
            raise ValueError(message)

    @classmethod
    def of(cls, moment: datetime) -> Self:
        """A moment that says its time zone. Errors: ValueError for one that doesn't."""
        if moment.tzinfo is None:
            message = f"{moment} has no time zone: give it one, as datetime.now(timezone.utc) does"
            raise ValueError(message)
        return cls(round(moment.timestamp() * 1000))


class ListedOffset(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An offset that was asked for. `offset` is -1 where there is none, such as no record at or after a moment."""

    offset: Offset
    timestamp_ms: int
    """Of the record at `offset` where a record was looked for; else -1."""
    leader_epoch: LeaderEpoch


Place: TypeAlias = OffsetSpec | Timestamp


def checked_places(places: Mapping[TopicPartition, Any]) -> dict[TopicPartition, Place]:
    """The places. Errors: ValueError for what is none."""
    found = by_partition(places, "an OffsetSpec or a Timestamp")
    for partition, place in found.items():
        if not isinstance(place, int | Timestamp):
            message = f"{partition}: {place!r} is no place in a partition: allowed are OffsetSpec and Timestamp"
            raise ValueError(message)  # noqa: TRY004 - what can't be meant is a ValueError everywhere here
    return found


async def list_offsets(
    cluster: Cluster,
    places: Mapping[TopicPartition, Place],
    deadline: Deadline,
    *,
    read_committed: bool = False,
    view: ClusterView | None = None,
) -> dict[TopicPartition, ListedOffset | AdminError]:
    """The offset at a place of each partition, first by a `view` that is there already.

    See `AdminClient.list_offsets`.
    """
    places = checked_places(places)
    leaders = Leaders(cluster, deadline, view)

    async def send(
        broker_id: BrokerId, partitions: list[TopicPartition], _: int
    ) -> Mapping[TopicPartition, Outcome[ListedOffset]]:
        async with cluster.broker(broker_id, deadline) as handle:
            found: dict[TopicPartition, Outcome[ListedOffset]] = {}
            asked: dict[TopicPartition, int] = {}
            for partition in partitions:
                try:
                    asked[partition] = _timestamp_for(places[partition], handle)
                except UnsupportedVersionError as error:
                    found[partition] = error
            if asked:
                response = await handle.ask(
                    _request(asked, read_committed), at_least=_ISOLATION_SINCE if read_committed else 1
                )
                found |= _outcomes(response, leaders)
            return found

    attempts = Attempts[TopicPartition, ListedOffset](cluster, deadline, leaders.locate, send)
    await attempts.run(list(places))
    return attempts.results(lambda partition: f"{partition}: its {_name(places[partition])} offset")


def _name(place: Place) -> str:
    return (
        f"first offset at {place.ms} ms or later"
        if isinstance(place, Timestamp)
        else place.name.lower().replace("_", " ")
    )


def _timestamp_for(place: Place, handle: BrokerHandle) -> int:
    """What stands for the place on the wire. Errors: UnsupportedVersionError."""
    if isinstance(place, Timestamp):
        return place.ms
    handle.choose(ListOffsetsRequest, at_least=_NEEDED.get(place, 0))
    return int(place)


def _request(asked: Mapping[TopicPartition, int], read_committed: bool) -> ListOffsetsRequest:  # noqa: FBT001 named by its caller
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for partition, timestamp in asked.items():
        row = ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp)
        by_topic.setdefault(partition.topic, []).append(row)
    topics = [ListOffsetsTopic(name=name, partitions=rows) for name, rows in by_topic.items()]
    return ListOffsetsRequest(replica_id=CONSUMER, isolation_level=int(read_committed), topics=topics)


def _outcomes(response: Any, leaders: Leaders) -> dict[TopicPartition, Outcome[ListedOffset]]:
    found: dict[TopicPartition, Outcome[ListedOffset]] = {}
    for topic in response.topics:
        for row in topic.partitions:
            partition = TopicPartition(topic.name, row.partition_index)
            if row.error_code:
                found[partition] = leaders.on_error(partition, row.error_code, "its leader doesn't tell the offset")
            else:
                found[partition] = Done(
                    ListedOffset(offset=row.offset, timestamp_ms=row.timestamp, leader_epoch=row.leader_epoch)
                )
    return found
