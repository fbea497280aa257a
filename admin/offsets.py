"""Lists offsets of partitions by place or by time. Each leader gets one request about all its partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import msgspec

from lowtide.admin.arguments import by_partition
from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import AdminCall, AdminClientBase, by_topic, partition_rows
from lowtide.admin.errors import AdminError, UnsupportedVersionError
from lowtide.admin.leaders import LeaderFinder
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.types import BrokerId, LeaderEpoch, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle
    from lowtide.admin.cluster_view import ClusterView

CONSUMER: Final = -1
"""Stands for a replica id."""

TIMESTAMP_MAX: Final = 2**63 - 1


class OffsetSpec(IntEnum):
    """A place in a partition. The values are those of the protocol."""

    LATEST = -1
    """The high watermark, exclusive; with `read_committed` the last stable offset."""
    EARLIEST = -2
    """The log start offset."""
    MAX_TIMESTAMP = -3
    """The record with the largest timestamp (KIP-734). Kafka may return a record below the log start."""
    EARLIEST_LOCAL = -4
    """The first offset on the broker's own disk (KIP-405)."""
    LATEST_TIERED = -5
    """The last offset in remote storage (KIP-1005)."""


_NEEDED: Final = {OffsetSpec.MAX_TIMESTAMP: 7, OffsetSpec.EARLIEST_LOCAL: 8, OffsetSpec.LATEST_TIERED: 9}
"""The first version of ListOffsets that has a place."""

_ISOLATION_SINCE: Final = 2


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A time in milliseconds since 1970-01-01 UTC. As a place: the first record with this timestamp or a later one."""

    ms: int

    def __post_init__(self) -> None:
        if not 0 <= self.ms <= TIMESTAMP_MAX:
            raise ValueError(f"timestamp {self.ms} ms is out of range: it must be 0 or more")

    @classmethod
    def of(cls, moment: datetime) -> Self:
        """Returns the timestamp of a time with a time zone. Errors: ValueError without one."""
        if moment.tzinfo is None:
            raise ValueError(f"{moment} has no time zone: add one, as in datetime.now(timezone.utc)")
        return cls(round(moment.timestamp() * 1000))


class ListedOffset(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A listed offset; -1 if there is none, such as no record at or after a time."""

    offset: Offset
    timestamp_ms: int
    """The timestamp of the record at `offset`, or -1 if the place is no record."""
    leader_epoch: LeaderEpoch


Place: TypeAlias = OffsetSpec | Timestamp


def _checked(places: Mapping[TopicPartition, Any]) -> dict[TopicPartition, Place]:
    """Returns the places. Errors: ValueError for one that is neither an OffsetSpec nor a Timestamp."""
    found = by_partition(places, "an OffsetSpec or a Timestamp")
    for partition, place in found.items():
        if not isinstance(place, int | Timestamp):
            raise ValueError(  # noqa: TRY004
                f"{partition}: {place!r} is not a place in a partition: it must be an OffsetSpec or a Timestamp"
            )
    return found


async def list_offsets(
    client: AdminClientBase,
    places: Mapping[TopicPartition, Place],
    *,
    read_committed: bool = False,
    timeout: float | None = None,
) -> dict[TopicPartition, ListedOffset | AdminError]:
    """Returns the offset at an `OffsetSpec` or a `Timestamp` (the first record from then on) of each partition."""
    return await offsets_at(client.call(timeout), places, read_committed=read_committed)


async def offsets_at(
    call: AdminCall,
    places: Mapping[TopicPartition, Place],
    *,
    read_committed: bool = False,
    view: ClusterView | None = None,
) -> dict[TopicPartition, ListedOffset | AdminError]:
    """Lists offsets as part of a call. The first attempt finds the leaders in `view`, if there is one."""
    places = _checked(places)
    leaders = LeaderFinder(call, view)

    async def send(
        broker_id: BrokerId, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[ListedOffset]]:
        async with call.cluster.broker(broker_id, call.deadline) as handle:
            found: dict[TopicPartition, Outcome[ListedOffset]] = {}
            rows: dict[TopicPartition, ListOffsetsPartition] = {}
            for key in partitions:
                try:
                    timestamp = _timestamp_for(places[key], handle)
                    rows[key] = ListOffsetsPartition(partition_index=key.partition, timestamp=timestamp)
                except UnsupportedVersionError as error:
                    found[key] = error
            if not rows:
                return found
            topics = [ListOffsetsTopic(name=name, partitions=some) for name, some in by_topic(rows).items()]
            request = ListOffsetsRequest(replica_id=CONSUMER, isolation_level=int(read_committed), topics=topics)
            response = await handle.ask(request, at_least=_ISOLATION_SINCE if read_committed else 1)
        for key, row in partition_rows(response.topics):
            if row.error_code:
                found[key] = leaders.on_error(key, row.error_code, "its leader returned no offset")
            else:
                listed = ListedOffset(offset=row.offset, timestamp_ms=row.timestamp, leader_epoch=row.leader_epoch)
                found[key] = Done(listed)
        return found

    return await call.each(places, leaders.locate, send, lambda key: f"{key}: its {_name(places[key])} offset")


def _name(place: Place) -> str:
    if isinstance(place, Timestamp):
        return f"first offset at {place.ms} ms or later"
    return place.name.lower().replace("_", " ")


def _timestamp_for(place: Place, handle: BrokerHandle) -> int:
    """Returns the protocol's number for a place. Errors: UnsupportedVersionError."""
    if isinstance(place, Timestamp):
        return place.ms
    handle.choose(ListOffsetsRequest, at_least=_NEEDED.get(place, 0))
    return int(place)


async def ends_of(
    client: AdminClientBase, partitions: Iterable[TopicPartition], *, timeout: float | None = None
) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, Offset]]:
    """Returns the log starts and the high watermarks of partitions, except of those whose leaders do not answer."""
    keys = list(partitions)
    found = []
    for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
        listed = await list_offsets(client, dict.fromkeys(keys, spec), timeout=timeout)
        found.append({key: each.offset for key, each in listed.items() if isinstance(each, ListedOffset)})
    return found[0], found[1]
