"""Deletes records and erases them from files (EraseRecords), or finds single records and erases them (FindRecords).

`erase_below` sends a request to each broker with a replica after an ordinary delete. For `erase_records` the leader of
each partition searches its log and appends an erasure, which names the records; then each broker with a replica is
asked. Before anything is deleted or erased, all these brokers are asked whether they know the requests
(`replica_erasing`). docs/erasure.md; docs/adr/0023-erasures-in-the-log.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from lowtide.admin.call import AdminCall, AdminClientBase
from lowtide.admin.delete_attempts import delete_below
from lowtide.admin.deletion import (
    DeletedRecords,
    DeleteFacts,
    DeleteResult,
    DeleteStage,
    DeleteTarget,
    ErasedRecords,
    EraseUnsupportedError,
    check_topic_ids,
)
from lowtide.admin.finding import ErasingTerms, FindCall, OnProgress, RecordQuery, SearchedPartition, checked_query
from lowtide.admin.receipts.commitment import (
    NONCE_BYTES,
    commitment,
    header_selector,
    keys_selector,
    offsets_selector,
)
from lowtide.admin.replica_erasing import CleanedReplicas, Probe, clean_replicas, replicas_of, unable_brokers
from lowtide.admin.standing import StandingTerms, begin_standing
from lowtide.protocol.erasure_ledger_records import SelectorKind
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_standing_erasures import AlterStandingErasuresRequest
from lowtide.protocol.messages.erase_records import EraseRecordsRequest
from lowtide.protocol.messages.find_records import FindRecordsRequest
from lowtide.protocol.offset_ranges import OffsetRange
from lowtide.protocol.types import UNKNOWN_OFFSET, BrokerId, Offset, TopicId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster_view import ClusterView
    from lowtide.admin.errors import AdminError

ERASE_PROBE: Final = Probe(EraseRecordsRequest(topics=[], timeout_ms=0), 1)
_STAND: Final = Probe(AlterStandingErasuresRequest(erasure_id=bytes(16), lasts_ms=0), 0)
FIND_PROBE: Final = Probe(FindRecordsRequest(search_id=bytes(16), topics=[], timeout_ms=0), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionErasure:
    """The result of erasing single records of a partition, or of a dry run."""

    erasure_id: UUID
    """A repeated call with this id continues the erasure."""
    nonce: bytes = field(default=b"", repr=False, compare=False)
    """With it a receipt proves what was searched for (docs/proof.md). Whoever has it can test guesses of the key. Empty
    after a dry run."""
    searched_from: Offset
    """The first offset searched. It may be below the log start: deleted records may still be in a file."""
    searched_to: Offset
    """Exclusive: the log end when the search began. Records that were written later stay."""
    count: int
    """How many records were found, by this call and by earlier ones with the same id."""
    erasures_end: Offset = UNKNOWN_OFFSET
    """The exclusive end of the erasures that the brokers have confirmed; -1 after a dry run."""
    erased_by: tuple[BrokerId, ...] = ()
    """No file of these brokers has one of the records."""
    not_erased_by: Mapping[BrokerId, str] = field(default_factory=dict)
    """The other brokers with a replica, each with a reason."""
    newest: tuple[OffsetRange, ...] = ()
    """After a dry run by offsets or a header in a topic that is or was compacted: records found that are the newest
    versions of their keys. An erasure by offset refuses them without `force`."""
    standing_until_ms: int | None = None
    """Until when the keys are erased again if they return, in milliseconds since 1970; None if they aren't."""


class NamingTerms(NamedTuple):
    """How records are named. See `erase_records`."""

    erasure_id: UUID | None = None
    standing: StandingTerms | None = None
    force: bool = False
    dry_run: bool = False
    topic_ids: Mapping[str, TopicId] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedErasure:
    """What the leaders have found and, unless it is a dry run, erased: nobody can read it. Files may still have it."""

    erasure_id: UUID
    nonce: bytes = field(repr=False, compare=False)
    standing_until_ms: int | None
    found: Mapping[TopicPartition, SearchedPartition | AdminError]
    view: ClusterView = field(repr=False)
    """Of the beginning."""

    @property
    def goals(self) -> dict[TopicPartition, EraseGoal]:
        """What each replica must have erased."""
        return {key: each.goal for key, each in self.found.items() if isinstance(each, SearchedPartition)}


async def erase_below(
    call: AdminCall, targets: Mapping[TopicPartition, DeleteTarget], topic_ids: Mapping[str, TopicId] | None
) -> dict[TopicPartition, DeleteResult]:
    """Deletes records, then erases them. See `delete_records`."""
    view = await call.view(partition.topic for partition in targets)
    unable = await unable_brokers(call, targets, view, [ERASE_PROBE])
    results: dict[TopicPartition, DeleteResult] = {}
    for partition in targets:
        reasons = [unable[broker] for broker in replicas_of(view, partition) if broker in unable]
        if reasons:
            results[partition] = unsupported(partition, f"nothing is deleted: {reasons[0]}")
    able = {partition: target for partition, target in targets.items() if partition not in results}
    results |= await delete_below(call, able, topic_ids=topic_ids)
    deleted = {partition: result for partition, result in results.items() if isinstance(result, DeletedRecords)}
    goals = {partition: EraseGoal(result.low_watermark) for partition, result in deleted.items()}
    for partition, cleaned in (await clean_replicas(call, goals, view, _random_id(call))).items():
        results[partition] = ErasedRecords.of(deleted[partition], *cleaned)
    return {partition: results[partition] for partition in targets}


def unsupported(partition: TopicPartition, reason: str) -> EraseUnsupportedError:
    """Returns the error for a broker that can't erase."""
    return EraseUnsupportedError(
        partition, DeleteStage.SENDING, reason, DeleteFacts(None, ErrorCode.UNSUPPORTED_VERSION)
    )


async def erase_records(  # noqa: PLR0913  options, each by its name
    client: AdminClientBase,
    partitions: Collection[TopicPartition],
    *,
    keys: Collection[bytes] = (),
    header: tuple[str, bytes | None] | None = None,
    offsets: Mapping[TopicPartition, Sequence[tuple[Offset, Offset]]] | None = None,
    force: bool = False,
    erasure_id: UUID | None = None,
    standing: StandingTerms | None = None,
    dry_run: bool = False,
    topic_ids: Mapping[str, TopicId] | None = None,
    on_progress: OnProgress | None = None,
    timeout: float | None = None,
) -> dict[TopicPartition, PartitionErasure | AdminError]:
    """Erases the records with one of some keys, or with a header and its value, or at offsets (ends inclusive).

    Each leader searches its log up to the end at the beginning of the call, as for `find_records`. What it finds can be
    read nowhere any more when its erasure is committed. Then all brokers with a replica remove the records from their
    files. The result names the brokers that have, and the others. The work is done if `not_erased_by` is empty for all
    partitions. Otherwise repeat the call when those brokers are back: it also confirms what earlier calls have erased.

    If a broker with a replica does not support this, nothing is erased in any partition, and all results are
    `EraseUnsupportedError`. Needs DELETE on the topics.

    In a topic that is or was compacted, older versions of the keys go with records that a header or offsets name. There
    offsets of the newest version of a key are refused with POLICY_VIOLATION, unless `force` is given.

    `dry_run` only searches, which needs READ, and tells which records are the newest versions of their keys.
    `erasure_id` is random by default; give one to repeat a call whose outcome is unknown. With `standing`, brokers look
    for the keys in what is written later, and erase them again, until its end (`describe_standing_erasures`). It begins
    before the search.

    The ledger gets a commitment to what is searched for, made with the nonce in the result. With `topic_ids`, by
    default those at the call's beginning, topics that were created again under the same name are refused.

    Errors: ValueError as for `find_records`, for `standing` without keys or time, and for an id of zeros only; those of
    `begin_standing`. Per partition:
    BrokerAnsweredError, such as POLICY_VIOLATION for more than 100,000 records; DeadlineExceededError, after which the
    erasure may still happen.
    """
    query = checked_query(partitions, keys, header, offsets)
    _check_options(query, standing, force=force, dry_run=dry_run)
    if erasure_id is not None and not erasure_id.int:
        raise ValueError("an erasure can't have the id of zeros only")
    check_topic_ids(topic_ids or {})
    call = client.call(timeout)
    if not partitions:
        return {}
    terms = NamingTerms(erasure_id, standing, force=force, dry_run=dry_run, topic_ids=topic_ids)
    named = await name_records(call, partitions, query, terms, on_progress)
    goals = {} if dry_run else named.goals
    cleaned = await clean_replicas(call, goals, named.view, named.erasure_id)
    return {
        key: _result(named, each, cleaned.get(key)) if isinstance(each, SearchedPartition) else each
        for key, each in named.found.items()
    }


async def name_records(
    call: AdminCall,
    partitions: Collection[TopicPartition],
    query: RecordQuery,
    terms: NamingTerms,
    on_progress: OnProgress | None = None,
) -> NamedErasure:
    """Has the leaders find and erase records: the first half of `erase_records`. `clean_replicas` is the other one.

    Errors: as `erase_records`.
    """
    nonce = b"" if terms.dry_run else call.cluster.ports.random.randbytes(NONCE_BYTES)
    view = await call.view(partition.topic for partition in partitions)
    probes = [FIND_PROBE, ERASE_PROBE] if terms.standing is None else [FIND_PROBE, ERASE_PROBE, _STAND]
    unable = {} if terms.dry_run else await unable_brokers(call, partitions, view, probes)
    used_id = _random_id(call) if terms.erasure_id is None else terms.erasure_id
    found: Mapping[TopicPartition, SearchedPartition | AdminError]
    if unable:
        reason = f"nothing is erased: {next(iter(unable.values()))}"
        found = {partition: unsupported(partition, reason) for partition in partitions}
        return NamedErasure(erasure_id=used_id, nonce=nonce, standing_until_ms=None, found=found, view=view)
    query = replace(query, names_newest=terms.dry_run and not query.keys)
    hidden = b"" if terms.dry_run else _commitment(nonce, query)
    standing = terms.standing
    ends_ms = None if standing is None else await begin_standing(call, used_id, query.keys, hidden, standing)
    erasing = None if terms.dry_run else ErasingTerms(hidden, force=terms.force, stands=standing is not None)
    search = FindCall(call, query, on_progress, search_id=used_id.bytes, ranges_max=0, erasing=erasing)
    search.topic_ids = {name: topic.topic_id for name, topic in view.topics.items() if topic.topic_id is not None}
    search.topic_ids |= terms.topic_ids or {}
    found = await search.run(partitions)
    return NamedErasure(erasure_id=used_id, nonce=nonce, standing_until_ms=ends_ms, found=found, view=view)


def _check_options(query: RecordQuery, standing: StandingTerms | None, *, force: bool, dry_run: bool) -> None:
    """Errors: ValueError for options that exclude each other."""
    if force and query.offsets is None:
        raise ValueError("force is for offsets")
    if standing is not None and (dry_run or not query.keys):
        raise ValueError("only an erasure by key can stand")
    if standing is not None and standing.lasts_ms <= 0:
        raise ValueError(f"an erasure can't stand for {standing.lasts_ms} ms")


def _random_id(call: AdminCall) -> UUID:
    return UUID(bytes=call.cluster.ports.random.randbytes(16), version=4)


def _commitment(nonce: bytes, query: RecordQuery) -> bytes:
    """Returns the commitment to a query."""
    if query.keys:
        return commitment(nonce, SelectorKind.KEYS, keys_selector(query.keys))
    if query.header is not None:
        return commitment(nonce, SelectorKind.HEADER, header_selector(*query.header))
    return commitment(nonce, SelectorKind.OFFSETS, offsets_selector(query.offsets or {}))


def _result(named: NamedErasure, found: SearchedPartition, cleaned: CleanedReplicas | None) -> PartitionErasure:
    """Returns the result of a partition that was searched; without `cleaned` it was not erased."""
    result = PartitionErasure(
        erasure_id=named.erasure_id,
        nonce=named.nonce,
        searched_from=found.searched_from,
        searched_to=found.searched_to,
        count=found.count,
        newest=found.newest,
        standing_until_ms=named.standing_until_ms,
    )
    if cleaned is None:
        return result
    return replace(result, erasures_end=found.goal.erasures_end, **cleaned._asdict())
