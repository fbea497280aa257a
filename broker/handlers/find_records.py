"""FindRecords: v0-v1.

Behaviour: Lowtide's own, not advertised. Searches the logs of partitions that are led here for the records that a
selector names: some keys, a header, exact offsets, or records of an earlier erasure (v1). The first request of a search
id begins a search of each partition up to its log end; later ones with the same id and selector join it. The answer is
sent when all partitions are searched, or after the timeout; the search goes on then, also without its client, until
nobody has asked for a minute. Its result is kept as long, unless others need the room. If a partition is listed twice,
the last entry wins.

With `names_newest` a search by a header or offsets also names the newest versions of keys, in a log that is or was
compacted: an erasure by offset would refuse them.

With `erase` the leader then writes what it found to the ledger, appends an erasure with the id of the search, and
answers when the ledger has the commit. Records that a search of the same id has erased before count too, if their
erasure is still known. In a log that is or was compacted the followers search too (`compacted_erasures.py`): since v1 a
leader asks them with a `replica_epoch`, which needs CLUSTER_ACTION.

A record of an earlier erasure is the one with the leader epoch and the timestamp that the request names; others at the
offset are only counted. The ledger then gets the kind and the commitment of that erasure, and that it is a replay.

Errors: INVALID_REQUEST for a bad selector or limit, an erasure without an id, too many partitions, or another selector
under the same id, with a sentence; THROTTLING_QUOTA_EXCEEDED if too many requests wait, of all clients or of this one;
of single partitions TOPIC_AUTHORIZATION_FAILED, INVALID_TOPIC_EXCEPTION for internal topics,
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (also if the leadership or the log changed meanwhile),
INCONSISTENT_TOPIC_ID, THROTTLING_QUOTA_EXCEEDED if too many searches wait, REQUEST_TIMED_OUT while the search goes on,
POLICY_VIOLATION if too many records match, KAFKA_STORAGE_ERROR; to erase, also UNSUPPORTED_VERSION while a broker is
too old, NOT_ENOUGH_REPLICAS, COORDINATOR_NOT_AVAILABLE while the ledger can't be written, and REQUEST_TIMED_OUT while
the erasure isn't committed; of a log that is or was compacted POLICY_VIOLATION for records with too many keys, for
offsets of the newest version of a key without `force`, and for named records, THROTTLING_QUOTA_EXCEEDED during another
erasure, REASSIGNMENT_IN_PROGRESS while it moves to another directory. A leader gets CLUSTER_AUTHORIZATION_FAILED, and
the errors of `ReplicaSearches.search`.

KIPs: 107.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from lowtide.broker.authorizer.authorizer import allowed_topics
from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.audited_requests import FOUND_RECORDS
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.ledger.kept_searches import CODES, KeptSearch, KeptSearches, SearchKey
from lowtide.broker.ledger.ledger_entries import ErasureRequest
from lowtide.broker.ledger.named_records import offsets_of, replayed_search, why_names_invalid
from lowtide.broker.ledger.search_eraser import SearchEraser
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.older_versions import ErasureTerms
from lowtide.broker.partitions.replica_searches import ReplicaSearches, SearchParts, WantedRecords
from lowtide.broker.places import WaitingPlaces, client_of
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.erasure_ledger_records import COMMITMENT_BYTES, SelectorKind, names_of
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import NO_ERASURE
from lowtide.protocol.messages.find_records import (
    NO_KIND,
    FindRecordsPartition,
    FindRecordsRequest,
    FindRecordsResponse,
    FoundPartition,
    FoundTopic,
    RecordOffsets,
)
from lowtide.protocol.offset_ranges import OffsetRange
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.replication.refusal import Refusal
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.storage.erasures.log_search import FOUND_MAX, SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import (
    HeaderSelector,
    KeySelector,
    OffsetSelector,
    RecordSelector,
    why_invalid,
)

PARTITIONS_MAX: Final = 100
"""The most partitions of a request."""

RANGES_MAX: Final = 10_000
"""The most ranges that are returned for a partition."""

WAITING_MAX: Final = 64
WAITING_SHARE: Final = 16
"""The number of waiting requests, in total and for each client."""

STANDS_LATER: Final = "The leader does not know yet that the erasure stands."

WAIT_MAX_MS: Final = 600_000


class FindRecordsHandler:
    """Answers FindRecords requests."""

    def __init__(self, parts: SearchParts, broker: BrokerContext, eraser: SearchEraser) -> None:
        self._broker = broker
        self._eraser = eraser
        self._replica_searches = ReplicaSearches(parts)
        self._kept = KeptSearches(parts)
        self.places = WaitingPlaces(WAITING_MAX, WAITING_SHARE)

    async def handle(self, request: FindRecordsRequest, context: RequestContext) -> FindRecordsResponse:
        """Answers for each partition once, even if it was named more often."""
        refusal = _refusal(request)
        if refusal is not None:
            return FindRecordsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=refusal)
        with self.places.taken_by(context.connection) as has_place:
            if not has_place:
                return FindRecordsResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            if request.replica_epoch >= 0:
                return await self._found_for_leader(request, context)
            return await self._found(request, context)

    async def _found_for_leader(self, request: FindRecordsRequest, context: RequestContext) -> FindRecordsResponse:
        if not self._broker.authorizer.authorize(context, Operation.CLUSTER_ACTION, CLUSTER):
            return FindRecordsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if [len(topic.partitions) for topic in request.topics] != [1]:
            return FindRecordsResponse(error_code=ErrorCode.INVALID_REQUEST)
        topic = request.topics[0]
        row = FoundPartition(partition_index=topic.partitions[0].partition_index, error_code=ErrorCode.NONE)
        found = await self._replica_searches.search(request, _wanted(request))
        if not isinstance(found, Refusal):
            searched, ends = found
            _fill_found(row, searched, request.ranges_max)
            row.timestamps, row.leader_epochs = list(searched.records.timestamps), list(searched.records.leader_epochs)
            row.keys, row.key_ends = list(ends), list(ends.values())
        else:
            row.error_code, row.error_message = found.error_code, found.message or None
        return FindRecordsResponse(error_code=ErrorCode.NONE, topics=[FoundTopic(name=topic.name, partitions=[row])])

    async def _found(self, request: FindRecordsRequest, context: RequestContext) -> FindRecordsResponse:
        names = {topic.name for topic in request.topics}
        needed = Operation.DELETE if request.erase else Operation.READ
        allowed = allowed_topics(self._broker.authorizer, context, needed, names)
        rows: dict[TopicPartition, FoundPartition] = {}
        joined: dict[TopicPartition, KeptSearch] = {}
        shared, client = _shared_selector(request), client_of(context.connection)
        for topic in request.topics:
            for row in {each.partition_index: each for each in topic.partitions}.values():
                key = TopicPartition(topic.name, row.partition_index)
                rows[key] = FoundPartition(partition_index=key.partition, error_code=ErrorCode.NONE)
                if topic.name not in allowed:
                    rows[key].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    continue
                partition = self._checked(key, topic.topic_id)
                if isinstance(partition, ErrorCode):
                    rows[key].error_code = partition
                    continue
                if request.stands and bytes(request.search_id) not in self._broker.metadata.image.standing:
                    rows[key].error_code, rows[key].error_message = ErrorCode.COORDINATOR_NOT_AVAILABLE, STANDS_LATER
                    continue
                search = SearchKey(request.search_id, key, request.erase)
                terms = ErasureTerms(
                    _row_selector(row) if shared is None else shared, request.force, request.names_newest
                )
                found = self._kept.joined(search, partition, terms, client, replayed_search(request, row))
                if isinstance(found, KeptSearch):
                    joined[key] = found
                else:
                    rows[key].error_code, rows[key].error_message = found.error_code, found.message or None
        deadline = asyncio.get_running_loop().time() + min(max(request.timeout_ms, 0), WAIT_MAX_MS) / 1000
        await self._kept.wait(list(joined.values()), deadline)
        for key, kept in joined.items():
            _fill(rows[key], kept, 0 if request.erase else request.ranges_max)
        if request.erase:
            done = [key for key in joined if rows[key].error_code == ErrorCode.NONE]
            erasures = [(rows[key], joined[key].erasure) for key in done]
            await self._eraser.erase(_erasure_request(request, context), erasures, deadline)
        topics = {name: FoundTopic(name=name, partitions=[]) for name in dict.fromkeys(t.name for t in request.topics)}
        for key, found_row in rows.items():
            topics[key.topic].partitions.append(found_row)
        return FindRecordsResponse(error_code=ErrorCode.NONE, topics=list(topics.values()))

    def _checked(self, key: TopicPartition, topic_id: TopicId) -> Partition | ErrorCode:
        if key.topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        found = self._broker.replicas.find(*key)
        if isinstance(found, ErrorCode):
            return found
        if topic_id not in (ZERO_TOPIC_ID, found.log.topic_id):
            return ErrorCode.INCONSISTENT_TOPIC_ID
        return found if found.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _erasure_request(request: FindRecordsRequest, context: RequestContext) -> ErasureRequest:
    is_replay = request.named_kind != NO_KIND
    kind = SelectorKind(request.named_kind) if is_replay else SelectorKind.OFFSETS
    if request.keys or request.header_name is not None:
        kind = SelectorKind.KEYS if request.keys else SelectorKind.HEADER
    return ErasureRequest(request.search_id, kind, bytes(request.commitment), str(context.principal), is_replay)


def _refusal(request: FindRecordsRequest) -> str | None:
    """Returns why a whole request is refused, in a sentence without its selector."""
    rows = [row for topic in request.topics for row in topic.partitions]
    if len(rows) > PARTITIONS_MAX:
        return f"The request has {len(rows)} partitions; at most {PARTITIONS_MAX} are allowed."
    if len(request.commitment) not in (0, COMMITMENT_BYTES):
        return f"The commitment has {len(request.commitment)} bytes; it must have {COMMITMENT_BYTES}, or none."
    if request.erase and rows and bytes(request.search_id) == NO_ERASURE:
        return "An erasure needs an id: the ledger has no confirmations of one without."
    if not 0 <= request.ranges_max <= (RANGES_MAX if request.replica_epoch < 0 else FOUND_MAX):
        return f"ranges_max is {request.ranges_max}; it must be from 0 to {RANGES_MAX}."
    return _selector_refusal(request, rows)


def _selector_refusal(request: FindRecordsRequest, rows: list[FindRecordsPartition]) -> str | None:
    """Returns why the selectors are refused; None if they are valid."""
    if not rows:
        return why_names_invalid(request, rows)
    by_row = (any(row.offsets for row in rows), any(row.named for row in rows))
    named = (request.header_name is not None) + sum(by_row)
    if request.key_ends:
        if len(request.key_ends) != len(request.keys) or named != 1 or by_row[1] or request.replica_epoch < 0:
            return "Only a leader gives ends: one for each key, beside the header or the offsets that it was given."
    elif bool(request.keys) + named != 1:
        return "A search has one selector: keys, a header, offsets, or named records."
    refusal = why_names_invalid(request, rows)
    if refusal is not None or by_row[1]:
        return refusal
    selectors: list[RecordSelector] = [each for each in (_key_selector(request), _header_selector(request)) if each]
    if by_row[0]:
        selectors += map(_row_selector, rows)
    return next((refusal for refusal in map(why_invalid, selectors) if refusal is not None), None)


def _wanted(request: FindRecordsRequest) -> WantedRecords:
    """Returns what a leader asks for."""
    named: RecordSelector | None = _header_selector(request)
    row = request.topics[0].partitions[0]
    if row.offsets:
        named = _row_selector(row)
    return WantedRecords(_key_selector(request), dict(zip(request.keys, request.key_ends, strict=False)), named)


def _shared_selector(request: FindRecordsRequest) -> RecordSelector | None:
    """Returns the selector of all partitions; None if each has its own offsets."""
    return _key_selector(request) or _header_selector(request)


def _key_selector(request: FindRecordsRequest) -> KeySelector | None:
    return KeySelector(frozenset(request.keys)) if request.keys else None


def _header_selector(request: FindRecordsRequest) -> HeaderSelector | None:
    return None if request.header_name is None else HeaderSelector(request.header_name, request.header_value)


def _row_selector(row: FindRecordsPartition) -> OffsetSelector:
    if row.named:
        return OffsetSelector(offsets_of(names_of(row.named)).ranges())
    return OffsetSelector(tuple(OffsetRange(each.first_offset, each.last_offset) for each in row.offsets))


def _fill(row: FoundPartition, kept: KeptSearch, ranges_max: int) -> None:
    """Fills in the state of a search."""
    running, outcome = kept.running, kept.outcome
    row.leader_epoch = running.leader_epoch
    row.searched_bytes, row.total_bytes = running.searched_bytes, running.total_bytes
    if outcome is None:
        row.error_code, row.error_message = ErrorCode.REQUEST_TIMED_OUT, kept.erasure.waits_for
    elif isinstance(outcome, SearchFailure):
        row.error_code = CODES[outcome]
        row.error_message = outcome.sentence
    elif isinstance(outcome, Refusal):
        row.error_code, row.error_message = outcome.error_code, outcome.message or None
    else:
        _fill_found(row, outcome, ranges_max)
        row.other_count = kept.erasure.other_count
        if kept.newest is not None:
            row.newest = _offsets_of(kept.newest.newest.ranges())


def _fill_found(row: FoundPartition, found: SearchedLog, ranges_max: int) -> None:
    row.searched_from, row.searched_to = found.first_offset, found.end_offset
    row.record_count = len(found.records)
    ranges = found.records.ranges().ranges()
    row.offsets = _offsets_of(ranges[:ranges_max])
    row.has_more = len(ranges) > ranges_max


def _offsets_of(ranges: Sequence[OffsetRange]) -> list[RecordOffsets]:
    return [RecordOffsets(first_offset=first, last_offset=last) for first, last in ranges]


def handler(broker: BrokerContext, searching: SearchParts, eraser: SearchEraser) -> HandlerSpec:
    """Returns the handler."""
    return HandlerSpec(
        key=ApiKey.FIND_RECORDS,
        guard=CHECKS_ITSELF,
        handle_later=FindRecordsHandler(searching, broker, eraser).handle,
        audit=FOUND_RECORDS,
    )
