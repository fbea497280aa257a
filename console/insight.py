"""Data that only Lowtide's brokers return; pages leave them out for other brokers.

ApiVersions does not list these requests (docs/adr/0008-requests-of-our-own.md), and other brokers close the connection.
A session tries once whether the brokers know them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowtide.admin.errors import AdminError, UnsupportedVersionError, code_name
from lowtide.admin.group_offsets import CommittedOffset
from lowtide.admin.observation import PartitionSegments, ReplicaHistory
from lowtide.admin.retained import known
from lowtide.console.answers import sentence_of
from lowtide.protocol.messages.describe_deletes import DescribeDeletesResponse
from lowtide.protocol.messages.describe_health import DescribeHealthResponse
from lowtide.protocol.types import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.console.sessions import ConsoleSession
    from lowtide.protocol.messages.describe_deletes import AwaitedFollower, DeleteOrigin, FinishedDelete, WaitingDelete
    from lowtide.protocol.messages.describe_health import LoopLagHistogram
    from lowtide.protocol.messages.describe_segments import DescribedReplica, RetentionBoundary

SEGMENTS_MAX: Final = 400
"""How many segments a picture shows, the oldest first."""

GROUPS_MAX: Final = 50
"""How many groups' offsets a picture shows."""

DELETES_MAX: Final = 1_000
QUANTILE: Final = 0.99

T = TypeVar("T")


async def asked_lowtide(
    session: ConsoleSession, ask: Callable[[AdminClient], Awaitable[Mapping[Any, T | AdminError]]]
) -> dict[Any, T | AdminError]:
    """Returns the answers of Lowtide's brokers; none from other brokers, or if the user may not ask."""
    if session.work.speaks_lowtide is False:
        return {}
    try:
        answers = dict(await ask(session.client))
    except AdminError as error:
        if isinstance(error, UnsupportedVersionError) and session.work.speaks_lowtide is None:
            session.work.speaks_lowtide = False
        return {}
    unknown = [each for each in answers.values() if isinstance(each, UnsupportedVersionError)]
    if answers and len(unknown) == len(answers) and session.work.speaks_lowtide is None:
        session.work.speaks_lowtide = False
        return {}
    session.work.speaks_lowtide = session.work.speaks_lowtide or len(unknown) < len(answers) or None
    return answers


# ---------------------------------------------------------------------- segments
async def segments_of(
    session: ConsoleSession,
    partitions: Collection[TopicPartition],
    segments_max: int,
    delete_offsets: Mapping[TopicPartition, Offset] | None = None,
) -> dict[TopicPartition, PartitionSegments]:
    """Returns the segments of partitions whose leaders return them, with what deletes to these offsets would free."""
    answers = await asked_lowtide(
        session,
        lambda client: client.describe_segments(partitions, segments_max=segments_max, delete_offsets=delete_offsets),
    )
    return {key: each for key, each in answers.items() if isinstance(each, PartitionSegments)}


async def segments_page(session: ConsoleSession, key: TopicPartition) -> dict[str, Any]:
    """Returns the picture of a partition."""
    found = (await segments_of(session, [key], SEGMENTS_MAX)).get(key)
    if found is None:
        return {"known": False}
    retained = found.described.retained
    return {
        "known": True,
        "now_ms": found.checked_at_ms,
        "next_check_ms": known(found.next_check_at_ms),
        "log_start": known(retained.log_start_offset),
        "high_watermark": known(retained.high_watermark),
        "last_stable": known(found.described.last_stable_offset),
        "log_end": known(retained.log_end_offset),
        "left_out": max(0, retained.segment_count - len(found.described.segments)),
        "segments": [
            {
                "base": each.base_offset,
                "end": each.end_offset,
                "bytes": each.size_bytes,
                "bytes_below": each.bytes_below_start,
                "first_ms": known(each.first_timestamp),
                "last_ms": known(each.largest_timestamp),
                "active": each.is_active,
            }
            for each in found.described.segments
        ],
        "groups": await _committed(session.client, key),
        "boundaries": [_boundary(each) for each in found.described.boundaries],
    }


def _boundary(each: RetentionBoundary) -> dict[str, Any]:
    return {"reason": each.reason, "offset": known(each.offset), "limit": known(each.limit), "group": each.group_id}


async def _committed(client: AdminClient, key: TopicPartition) -> list[dict[str, Any]]:
    """Returns the committed offsets of the visible groups for a partition."""
    try:
        names = list((await client.list_groups()).groups)[:GROUPS_MAX]
        answers = await client.list_group_offsets({name: [key] for name in names}) if names else {}
    except AdminError:
        return []
    found = {name: each.get(key) for name, each in answers.items() if not isinstance(each, AdminError)}
    return [
        {"group": name, "offset": each.offset}
        for name, each in found.items()
        if isinstance(each, CommittedOffset) and each.offset >= 0
    ]


def replica_values(found: PartitionSegments | None) -> dict[int, dict[str, Any]]:
    """Returns log start and log end of each replica by broker, as the leader knows them."""
    return {} if found is None else {each.broker_id: _replica(each) for each in found.described.replicas}


def _replica(each: DescribedReplica) -> dict[str, Any]:
    return {
        "log_start": known(each.log_start_offset),
        "log_end": known(each.log_end_offset),
        "silent_ms": known(each.silent_ms),
    }


async def history_page(session: ConsoleSession, key: TopicPartition) -> dict[str, Any]:
    """Returns the leader's samples of a partition over the last hour."""
    topic = (await session.client.describe_topics([key.topic]))[key.topic]
    row = None if isinstance(topic, AdminError) else topic.partitions.get(key.partition)
    if row is None or row.leader is None:
        return {"known": False}
    leader = row.leader
    answers = await asked_lowtide(session, lambda client: client.describe_history(leader, [key]))
    found = answers.get(key)
    if not isinstance(found, ReplicaHistory):
        return {"known": False}
    return {
        "known": True,
        "interval_ms": found.interval_ms,
        "samples": [
            {
                "at_ms": each.at_ms,
                "log_start": each.log_start_offset,
                "log_end": each.log_end_offset,
                "bytes": each.size_bytes,
            }
            for each in found.samples
        ],
    }


# ---------------------------------------------------------------------- health
async def health_of(session: ConsoleSession) -> dict[BrokerId, DescribeHealthResponse]:
    """Returns the health of the brokers that return it."""
    answers = await asked_lowtide(session, lambda client: client.describe_health())
    return {broker_id: each for broker_id, each in answers.items() if isinstance(each, DescribeHealthResponse)}


def health_value(found: DescribeHealthResponse | None) -> dict[str, Any] | None:
    """Returns a broker's health for the page."""
    if found is None:
        return None
    return {
        "up_ms": known(found.up_ms),
        "connections": known(found.connections),
        "waiting_deletes": known(found.waiting_deletes),
        "lag_p99_ms": None if found.lag is None else quantile_ms(found.lag, QUANTILE),
    }


def quantile_ms(lag: LoopLagHistogram, share: float) -> float | None:
    """Returns a quantile: the bound of its bucket, or the largest sample if the bucket has no bound."""
    if not lag.count:
        return None
    below = 0
    for bucket in lag.buckets:
        below += bucket.count
        if below >= share * lag.count:
            return bucket.up_to_ms if 0 <= bucket.up_to_ms < lag.max_ms else lag.max_ms
    return lag.max_ms


# ---------------------------------------------------------------------- deletes
async def deletes_of(session: ConsoleSession) -> dict[str, Any]:
    """Returns the pending and finished deletes of all brokers that return them."""
    answers = await asked_lowtide(
        session, lambda client: client.describe_deletes(waiting_max=DELETES_MAX, finished_max=DELETES_MAX)
    )
    responses = {broker_id: each for broker_id, each in answers.items() if isinstance(each, DescribeDeletesResponse)}
    waiting = [_waiting(broker_id, each, row) for broker_id, each in responses.items() for row in each.waiting]
    finished = [_finished(broker_id, row) for broker_id, each in responses.items() for row in each.finished]
    return {
        "known": bool(responses),
        "waiting_count": sum(each.waiting_count for each in responses.values()),
        "waiting": sorted(waiting, key=lambda row: row["asked_at_ms"])[:DELETES_MAX],
        "finished": sorted(finished, key=lambda row: -row["answered_at_ms"])[:DELETES_MAX],
        "errors": [
            f"Broker {broker_id}: {sentence_of(each)}"
            for broker_id, each in answers.items()
            if isinstance(each, AdminError)
        ],
    }


def _waiting(broker_id: int, response: DescribeDeletesResponse, row: WaitingDelete) -> dict[str, Any]:
    return {
        "broker": broker_id,
        "now_ms": response.described_at_ms,
        "topic": row.topic,
        "partition": row.partition_index,
        "offset": row.offset,
        "log_start": row.log_start_offset,
        "low_watermark": row.low_watermark,
        "leader_only": row.leader_only,
        "asked_at_ms": row.asked_at_ms,
        "durable_at_ms": known(row.durable_at_ms),
        "ends_at_ms": known(row.ends_at_ms),
        "followers": [_follower(each) for each in row.followers],
        "who": _who(row.origin),
    }


def _follower(each: AwaitedFollower) -> dict[str, Any]:
    return {
        "broker": each.broker_id,
        "log_start": each.log_start_offset,
        "in_sync": each.is_in_sync,
        "silent_ms": each.silent_ms,
    }


def _finished(broker_id: int, row: FinishedDelete) -> dict[str, Any]:
    return {
        "broker": broker_id,
        "number": row.number,
        "topic": row.topic,
        "partition": row.partition_index,
        "error": code_name(row.error_code) if row.error_code else None,
        "offset": row.offset,
        "old_log_start": row.old_log_start_offset,
        "log_start": row.log_start_offset,
        "leader_only": row.leader_only,
        "asked_at_ms": row.asked_at_ms,
        "durable_at_ms": known(row.durable_at_ms),
        "replicated_at_ms": known(row.replicated_at_ms),
        "answered_at_ms": row.answered_at_ms,
        "who": _who(row.origin),
    }


def _who(origin: DeleteOrigin | None) -> dict[str, Any] | None:
    if origin is None:
        return None
    return {"principal": origin.principal, "address": origin.client_address, "client": origin.client_id}
