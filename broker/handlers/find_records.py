"""FindRecords: v0-v0.

Behaviour: Lowtide's own, not advertised. Searches the logs of partitions that are led here for the records that a
selector names: some keys, a header, or exact offsets. The first request of a search id begins a search of each
partition up to its log end; later ones with the same id and selector join it. The answer is sent when all partitions
are searched, or after the timeout; the search goes on then, also without its client, until nobody has asked for a
minute. Its result is kept as long, unless others need the room. If a partition is listed twice, the last entry wins.

With `erase` the leader then writes what it found to the ledger, appends an erasure with the id of the search, and
answers when the ledger has the commit. Records that a search of the same id has erased before count too, if their
erasure is still known.

Errors: INVALID_REQUEST for a bad selector or limit, too many partitions, or another selector under the same id, with a
sentence; THROTTLING_QUOTA_EXCEEDED if too many requests wait, of all clients or of this one; of single partitions
TOPIC_AUTHORIZATION_FAILED, INVALID_TOPIC_EXCEPTION for internal topics, UNKNOWN_TOPIC_OR_PARTITION,
NOT_LEADER_OR_FOLLOWER (also if the leadership or the log changed meanwhile), INCONSISTENT_TOPIC_ID,
THROTTLING_QUOTA_EXCEEDED if too many searches wait, REQUEST_TIMED_OUT while the search goes on, POLICY_VIOLATION if too
many records match, KAFKA_STORAGE_ERROR; to erase, also UNSUPPORTED_VERSION while a broker is too old,
POLICY_VIOLATION for a log that was compacted, NOT_ENOUGH_REPLICAS, COORDINATOR_NOT_AVAILABLE while the ledger can't be
written, and REQUEST_TIMED_OUT while the erasure isn't committed.

KIPs: 107.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from lowtide.broker.authorizer.authorizer import allowed_topics
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.client_waits import client_wait
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.audited_requests import FOUND_RECORDS
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.ledger.erasure_ledger import ErasureLedger
from lowtide.broker.ledger.erasure_marks import ErasureMarks
from lowtide.broker.ledger.ledger_entries import ErasureRequest
from lowtide.broker.ledger.search_eraser import SearchEraser, SearchErasure
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.log_searches import LogSearches, PartitionSearch
from lowtide.broker.places import WaitingPlaces, client_of
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.erasure_ledger_records import COMMITMENT_BYTES, SelectorKind
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_records import (
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
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure
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

IDS_MAX: Final = 32
IDS_SHARE: Final = 8
"""The number of search ids whose searches are kept, in total and for each client. Each may have a megabyte of keys."""

WAITING_MAX: Final = 64
WAITING_SHARE: Final = 16
"""The number of waiting requests, in total and for each client."""

WAIT_MAX_MS: Final = 600_000

KEPT_MS: Final = 60_000
"""How long a search and its result are kept after the last request."""

_CODES: Final = {
    SearchFailure.CHANGED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    SearchFailure.MOVED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    SearchFailure.CUT: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    SearchFailure.TOO_MANY: ErrorCode.POLICY_VIOLATION,
    SearchFailure.UNREADABLE: ErrorCode.KAFKA_STORAGE_ERROR,
    SearchFailure.BUSY: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    SearchFailure.CANCELLED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}

_OTHER_SELECTOR: Final = "Another search has this id."

_TOO_MANY_IDS: Final = "Too many searches are kept; ask again in a minute."


class _SearchKey(NamedTuple):
    search_id: bytes
    partition: TopicPartition


class _KeptSearch:
    """A search that requests can join."""

    __slots__ = ("askers", "client", "erasure", "left_ms", "running", "selector")

    def __init__(self, running: PartitionSearch, selector: RecordSelector, client: str) -> None:
        self.running = running
        self.erasure = SearchErasure(running)
        self.client = client
        self.selector = selector
        self.askers = 0
        """Requests that wait for it."""
        self.left_ms = 0
        """When the last of them was answered."""


class FindRecordsHandler:
    """Answers FindRecords requests."""

    def __init__(self, broker: BrokerContext, searches: LogSearches, eraser: SearchEraser) -> None:
        self._broker = broker
        self._eraser = eraser
        self._searches = searches
        self._kept: dict[_SearchKey, _KeptSearch] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.places = WaitingPlaces(WAITING_MAX, WAITING_SHARE)

    async def handle(self, request: FindRecordsRequest, context: RequestContext) -> FindRecordsResponse:
        """Answers for each partition once, even if it was named more often."""
        refusal = _refusal(request)
        if refusal is not None:
            return FindRecordsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=refusal)
        with self.places.taken_by(context.connection) as has_place:
            if not has_place:
                return FindRecordsResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            return await self._found(request, context)

    async def _found(self, request: FindRecordsRequest, context: RequestContext) -> FindRecordsResponse:
        names = {topic.name for topic in request.topics}
        needed = Operation.DELETE if request.erase else Operation.READ
        allowed = allowed_topics(self._broker.authorizer, context, needed, names)
        rows: dict[TopicPartition, FoundPartition] = {}
        joined: dict[TopicPartition, _KeptSearch] = {}
        shared, client = _shared_selector(request), client_of(context.connection)
        for topic in request.topics:
            for row in {each.partition_index: each for each in topic.partitions}.values():
                key = TopicPartition(topic.name, row.partition_index)
                rows[key] = FoundPartition(partition_index=key.partition, error_code=ErrorCode.NONE)
                if topic.name not in allowed:
                    rows[key].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    continue
                selector = _offset_selector(row) if shared is None else shared
                found = self._joined(_SearchKey(request.search_id, key), topic.topic_id, selector, client)
                if isinstance(found, _KeptSearch):
                    joined[key] = found
                else:
                    rows[key].error_code, rows[key].error_message = found
        deadline = asyncio.get_running_loop().time() + min(max(request.timeout_ms, 0), WAIT_MAX_MS) / 1000
        await self._wait(list(joined.values()), deadline)
        for key, kept in joined.items():
            _fill(rows[key], kept.running, 0 if request.erase else request.ranges_max)
        if request.erase:
            done = [key for key in joined if rows[key].error_code == ErrorCode.NONE]
            erasures = [(rows[key], joined[key].erasure) for key in done]
            await self._eraser.erase(_erasure_request(request, context), erasures, deadline)
        topics = {name: FoundTopic(name=name, partitions=[]) for name in dict.fromkeys(t.name for t in request.topics)}
        for key, found_row in rows.items():
            topics[key.topic].partitions.append(found_row)
        return FindRecordsResponse(error_code=ErrorCode.NONE, topics=list(topics.values()))

    def _joined(
        self, key: _SearchKey, topic_id: TopicId, selector: RecordSelector, client: str
    ) -> _KeptSearch | tuple[ErrorCode, str | None]:
        """Returns the search of a partition, begun now if necessary, or the error."""
        partition = self._checked(key.partition, topic_id)
        if isinstance(partition, ErrorCode):
            return partition, None
        kept = self._kept.get(key)
        if kept is not None and (kept.selector, kept.client) != (selector, client):
            return ErrorCode.INVALID_REQUEST, _OTHER_SELECTOR
        if kept is not None and (isinstance(kept.running.outcome, SearchFailure) or not kept.running.is_current()):
            self._forget(key)  # The failure was answered, or nobody was there to read it.
            kept = None
        if kept is None:
            if not self._has_room(key.search_id, client):
                return ErrorCode.THROTTLING_QUOTA_EXCEEDED, _TOO_MANY_IDS
            running = self._begun(partition, selector)
            if isinstance(running, SearchFailure):
                return _CODES[running], _sentence(running)
            kept = self._kept[key] = _KeptSearch(running, selector, client)
            self._set_timer()
        return kept

    def _begun(self, partition: Partition, selector: RecordSelector) -> PartitionSearch | SearchFailure:
        """Begins a search; forgets finished ones, the oldest first, if there are too many."""
        while True:
            begun = self._searches.begin(partition, selector, partition.log.log_end_offset)
            if begun is not SearchFailure.BUSY or not self._forget_finished(None):
                return begun

    def _has_room(self, search_id: bytes, client: str) -> bool:
        """Returns whether a client may begin another search; forgets finished ones, the oldest first, if necessary."""
        while True:
            clients = {key.search_id: kept.client for key, kept in self._kept.items()}
            clients.pop(search_id, None)
            others = list(clients.values())
            of_this = others.count(client) >= IDS_SHARE
            if not of_this and len(others) < IDS_MAX:
                return True
            if not self._forget_finished(client if of_this else None):
                return False

    def _forget_finished(self, client: str | None) -> bool:
        """Forgets the result that was asked for the longest time ago, of one client or of all. Returns whether it did.

        Who asks again searches again.
        """
        finished = [
            (kept.left_ms, key)
            for key, kept in self._kept.items()
            if not kept.askers and kept.running.outcome is not None and client in (None, kept.client)
        ]
        if finished:
            self._forget(min(finished)[1])
        return bool(finished)

    def _checked(self, key: TopicPartition, topic_id: TopicId) -> Partition | ErrorCode:
        if key.topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        found = self._broker.replicas.find(*key)
        if isinstance(found, ErrorCode):
            return found
        if topic_id not in (ZERO_TOPIC_ID, found.log.topic_id):
            return ErrorCode.INCONSISTENT_TOPIC_ID
        return found if found.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    async def _wait(self, searches: list[_KeptSearch], deadline: float) -> None:
        """Waits until all are done, the time is over, or the client has disconnected."""
        for kept in searches:
            kept.askers += 1
        try:
            async with client_wait(deadline):
                for kept in searches:
                    await kept.running.done.wait()
        except TimeoutError:
            return
        finally:
            now_ms = self._broker.clock.monotonic_ms()
            for kept in searches:
                kept.askers -= 1
                kept.left_ms = now_ms

    def _forget(self, key: _SearchKey) -> None:
        self._searches.forget(self._kept.pop(key).running)

    def _set_timer(self) -> None:
        if self._timer is None and self._kept:
            self._timer = asyncio.get_running_loop().call_later(KEPT_MS / 4000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        before_ms = self._broker.clock.monotonic_ms() - KEPT_MS
        for key in [key for key, kept in self._kept.items() if not kept.askers and kept.left_ms <= before_ms]:
            self._forget(key)
        self._set_timer()


def _erasure_request(request: FindRecordsRequest, context: RequestContext) -> ErasureRequest:
    kind = SelectorKind.OFFSETS
    if request.keys or request.header_name is not None:
        kind = SelectorKind.KEYS if request.keys else SelectorKind.HEADER
    return ErasureRequest(request.search_id, kind, bytes(request.commitment), str(context.principal))


def _refusal(request: FindRecordsRequest) -> str | None:
    """Returns why a whole request is refused, in a sentence without its selector."""
    rows = [row for topic in request.topics for row in topic.partitions]
    if len(rows) > PARTITIONS_MAX:
        return f"The request has {len(rows)} partitions; at most {PARTITIONS_MAX} are allowed."
    if len(request.commitment) not in (0, COMMITMENT_BYTES):
        return f"The commitment has {len(request.commitment)} bytes; it must have {COMMITMENT_BYTES}, or none."
    if not 0 <= request.ranges_max <= RANGES_MAX:
        return f"ranges_max is {request.ranges_max}; it must be from 0 to {RANGES_MAX}."
    if not rows:
        return None
    has_offsets = any(row.offsets for row in rows)
    if bool(request.keys) + (request.header_name is not None) + has_offsets != 1:
        return "A search has one selector: keys, a header, or offsets."
    shared = _shared_selector(request)
    refusals = (why_invalid(each) for each in ([_offset_selector(row) for row in rows] if shared is None else [shared]))
    return next((refusal for refusal in refusals if refusal is not None), None)


def _shared_selector(request: FindRecordsRequest) -> RecordSelector | None:
    """Returns the selector of all partitions; None if each has its own offsets."""
    if request.keys:
        return KeySelector(frozenset(request.keys))
    return None if request.header_name is None else HeaderSelector(request.header_name, request.header_value)


def _offset_selector(row: FindRecordsPartition) -> OffsetSelector:
    return OffsetSelector(tuple(OffsetRange(each.first_offset, each.last_offset) for each in row.offsets))


def _sentence(failure: SearchFailure) -> str:
    return f"{failure.value[0].upper()}{failure.value[1:]}."


def _fill(row: FoundPartition, running: PartitionSearch, ranges_max: int) -> None:
    """Fills in the state of a search."""
    outcome = running.outcome
    row.leader_epoch = running.leader_epoch
    row.searched_bytes, row.total_bytes = running.searched_bytes, running.total_bytes
    if outcome is None:
        row.error_code = ErrorCode.REQUEST_TIMED_OUT
    elif isinstance(outcome, SearchFailure):
        row.error_code = _CODES[outcome]
        row.error_message = _sentence(outcome)
    elif isinstance(outcome, SearchedLog):
        row.searched_from, row.searched_to = outcome.first_offset, outcome.end_offset
        row.record_count = len(outcome.records)
        ranges = outcome.records.ranges().ranges()
        row.offsets = [RecordOffsets(first_offset=first, last_offset=last) for first, last in ranges[:ranges_max]]
        row.has_more = len(ranges) > ranges_max


def handler(broker: BrokerContext, searches: LogSearches, ledger: ErasureLedger, marks: ErasureMarks) -> HandlerSpec:
    """Returns the handler."""
    return HandlerSpec(
        key=ApiKey.FIND_RECORDS,
        guard=CHECKS_ITSELF,
        handle_later=FindRecordsHandler(broker, searches, SearchEraser(broker, ledger, marks)).handle,
        audit=FOUND_RECORDS,
    )
