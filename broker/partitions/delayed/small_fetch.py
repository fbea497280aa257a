"""The quick path of Fetch: few partitions, which all are led here, at offsets that are there.

That is what a consumer asks for again and again, without a session or in one. The compiled module reads the request and
writes the answer; what is decided is decided here, in the order of `FetchReader.read`, which is the definition.
Whatever isn't usual is left to it before anything is changed: an error, another leader epoch, a diverging log, aborted
transactions, a session that begins, ends or grows.

A consumer is answered from here if there is enough. One that has to wait, and a follower, are read and parked as ever,
and only their requests and answers are in the quick form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lowtide.broker.network.outgoing import EncodedAnswer, Part
from lowtide.broker.network.routes import QuickPath
from lowtide.broker.partitions.delayed.fetch_reader import response_of, sent_of
from lowtide.broker.partitions.delayed.fetch_rules import FetchRules
from lowtide.broker.partitions.delayed.small_reads import news_of, read_wanted, wanted_of
from lowtide.broker.partitions.fetch_session import CONSUMER, FINAL_EPOCH, INITIAL_EPOCH, FetchPlan, FetchTarget
from lowtide.broker.partitions.fetch_session_slots import NO_SESSION
from lowtide.broker.slices import PARTITIONS_AT_ONCE
from lowtide.protocol import native
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.types import ZERO_TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lowtide.broker.partitions.delayed.fetch import PlannedFetches
    from lowtide.broker.partitions.delayed.fetch_reader import FetchReader
    from lowtide.broker.partitions.delayed.fetch_rules import FetchOutcome
    from lowtide.broker.partitions.fetch_session import FetchSession
    from lowtide.broker.partitions.fetch_session_cache import FetchSessionCache
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.broker.request_context import Client
    from lowtide.protocol.messages.fetch import FetchResponse
    from lowtide.protocol.native import AnsweredRow, CompiledWalk, FetchedRow
    from lowtide.protocol.native import SmallFetch as Asked
    from lowtide.runtime.clock import Clock
    from lowtide.storage.log.log import FileSlice

_READ_AT_ONCE_BYTES: Final = 16 * 1024
"""What of an answer's records is read when it is made, at most; more is read when the socket has room for it."""

_ANSWER_BYTES_MAX: Final = 1 << 30
"""Of the records of an answer. What comes near the largest frame is unusual."""

Row = tuple["AnsweredRow", "FileSlice | None"]
"""What is answered of a partition, and with which records."""


class FetchParts(msgspec.Struct, frozen=True, kw_only=True):
    """What fetches need of a broker."""

    replicas: ReplicaManager
    sessions: FetchSessionCache
    clock: Clock
    planned: PlannedFetches
    readers: Mapping[str, FetchReader]
    """Who reads everything, by listener."""
    reader_of: Callable[[Client, Asked], FetchReader]
    """Who reads what a client may read."""
    may_read: Callable[[Client, str], bool] | None
    """Whether a client may read a topic; None where nothing is forbidden."""
    may_follow: Callable[[Client], bool] | None
    """The same of a broker that follows."""
    maximum_bytes: int
    """`fetch.max.bytes`."""
    selects_replicas: bool
    """Whether a consumer's rack matters."""


class SmallFetches:
    """Fetches of few partitions. One for each broker; it keeps nothing of a request."""

    def __init__(self, parts: FetchParts, compiled: CompiledWalk) -> None:
        self._parts = parts
        self._writer = AnswerWriter(compiled)

    def handle(self, asked: Asked, _buffer: Any, client: Client) -> Any:
        """Read, and answer or promise to; None, without having changed anything, if the request isn't usual after all."""
        replica_id, session_id, epoch, rows = asked[3], asked[9], asked[10], asked[12]
        session: FetchSession | None = None
        if epoch != FINAL_EPOCH or session_id != NO_SESSION:
            session = self._continued(asked)
            if session is None:
                return None
        elif not rows or replica_id >= 0 or len(rows) > PARTITIONS_AT_ONCE:
            return None
        if session is not None and replica_id >= 0:
            return self._follow(asked, session, client)
        client.of_a_follower = False
        return None if asked[11] and self._parts.selects_replicas else self._consume(asked, session, client)

    def _consume(self, asked: Asked, session: FetchSession | None, client: Client) -> Any:
        version, correlation_id, _, _, _, wait_ms, minimum_bytes, maximum_bytes, committed, session_id, _, _, rows = (
            asked
        )
        parts = self._parts
        limit = min(parts.maximum_bytes, maximum_bytes)
        wanted = wanted_of(session, rows)
        found = None if wanted is None else read_wanted(parts.replicas, wanted, version, limit, committed=committed)
        if found is None:
            return None
        reads, size = found
        if parts.may_read is not None and not all(
            parts.may_read(client, read[1].topic_partition.topic) for read in reads
        ):
            return None
        if size > _ANSWER_BYTES_MAX:
            return None
        if size < minimum_bytes and wait_ms > 0:
            return self._wait(asked, session, client, limit)
        for read in reads:
            traffic = read[1].traffic
            traffic.fetch_requests += 1
            traffic.bytes_out += read[3][5]
        if session is not None:
            session.advance(parts.clock.monotonic_ms(), parts.sessions.by_id)
            reads = news_of(session, reads, committed=committed)
        rows_of_topics = [(read[3], read[4]) for read in reads]
        answer = self._writer.write(version, correlation_id, session_id, rows_of_topics, committed=committed)
        assert answer is not None, asked
        return answer

    def _continued(self, asked: Asked) -> FetchSession | None:
        """The session that the request continues; None where it doesn't, or not at once."""
        version, replica_id, broker_epoch, session_id, epoch = asked[0], asked[3], asked[4], asked[9], asked[10]
        session = self._parts.sessions.by_id.get(session_id)
        if (
            session is None
            or epoch == INITIAL_EPOCH
            or session.epoch != epoch
            or session.replica_id != (replica_id if replica_id >= 0 else CONSUMER)
            or session.broker_epoch != broker_epoch
            or session.uses_topic_ids != (version >= TOPIC_IDS_SINCE)
            or (replica_id < 0 and (is_fenced := self._parts.replicas.is_fenced) is not None and is_fenced())
        ):
            return None
        return session

    def _wait(self, asked: Asked, session: FetchSession | None, client: Client, limit: int) -> Any:
        """Read again in the plain form, which can wait."""
        parts, now_ms = self._parts, self._parts.clock.monotonic_ms()
        reader = parts.readers[client.listener_name] if parts.may_read is None else parts.reader_of(client, asked)
        answer = SmallAnswer(self._writer, asked[1])
        if session is None:
            targets = [_target(row) for row in asked[12]]
            return parts.planned.of_consumer(
                reader, FetchPlan(targets=targets), targets, _rules(asked, limit), now_ms, answer
            )
        plan = self._advance(session, asked, now_ms)
        return parts.planned.of_consumer(reader, plan, list(session.changed), _rules(asked, limit), now_ms, answer)

    def _follow(self, asked: Asked, session: FetchSession, client: Client) -> Any:
        """A follower's fetch in its session."""
        parts, now_ms = self._parts, self._parts.clock.monotonic_ms()
        if any((row[0], row[1]) not in session.targets for row in asked[12]):
            return None
        if parts.may_follow is not None and not parts.may_follow(client):
            return None
        client.of_a_follower = True
        plan = self._advance(session, asked, now_ms)
        reader, answer = parts.readers[client.listener_name], SmallAnswer(self._writer, asked[1])
        rules = _rules(asked, min(asked[7], parts.maximum_bytes))
        return parts.planned.of_follower(reader, plan, list(session.changed), rules, now_ms, answer)

    def _advance(self, session: FetchSession, asked: Asked, now_ms: int) -> FetchPlan:
        """Continue a session that has all that the request names."""
        session.advance(now_ms, self._parts.sessions.by_id)
        for row in asked[12]:
            target = session.targets[row[0], row[1]]
            target.ask(*row[2:])
            session.changed[target] = None
        return FetchPlan(session=session, session_id=session.session_id, incremental=True)


class SmallAnswer:
    """`respond` for one request, in the compiled form."""

    __slots__ = ("_correlation_id", "_writer")

    def __init__(self, writer: AnswerWriter, correlation_id: int) -> None:
        self._writer = writer
        self._correlation_id = correlation_id

    def __call__(
        self, plan: FetchPlan, outcome: FetchOutcome, rules: FetchRules, reader: FetchReader
    ) -> bytes | EncodedAnswer | FetchResponse:
        """The answer as bytes and slices; as a message where a partition has an error, or something else that is unusual."""
        sent = sent_of(plan, outcome, rules, reader)
        rows: list[Row] = []
        for target, answer in sent:
            if (
                answer.error_code
                or answer.diverging_epoch is not None
                or answer.preferred_read_replica >= 0
                or answer.aborted_transactions
            ):
                return response_of(sent, plan, rules, reader)
            topic = target.topic_id if rules.api_version >= TOPIC_IDS_SINCE else target.topic
            records: Any = answer.records
            size = len(records)
            row = (
                topic,
                answer.partition_index,
                answer.high_watermark,
                answer.last_stable_offset,
                answer.log_start_offset,
                size,
            )
            rows.append((row, records if size else None))
        written = self._writer.write(
            rules.api_version, self._correlation_id, plan.session_id, rows, committed=rules.read_committed
        )
        return response_of(sent, plan, rules, reader) if written is None else written


class AnswerWriter:
    """Writes answers of few partitions without an error."""

    __slots__ = ("_fetch_answer",)

    def __init__(self, compiled: CompiledWalk) -> None:
        self._fetch_answer = compiled.fetch_answer

    def write(
        self, version: int, correlation_id: int, session_id: int, rows: list[Row], *, committed: bool
    ) -> bytes | EncodedAnswer | None:
        """The answer; None where it is too large. Few bytes of records are read now, if they are in the page cache."""
        if len(rows) > 1:
            rows = _by_topic(rows)
        pieces = self._fetch_answer(version, correlation_id, session_id, committed, tuple([row for row, _ in rows]))
        if pieces is None or len(pieces) == 1:
            return None if pieces is None else pieces[0]
        slices = [part for _, part in rows if part is not None]
        content = _content(pieces, slices)
        if content is not None:
            return content
        parts: list[Part] = []
        for piece, part in zip(pieces, slices, strict=False):
            parts += (piece, part)
        if pieces[-1]:
            parts.append(pieces[-1])
        return EncodedAnswer(parts)


def _by_topic(rows: list[Row]) -> list[Row]:
    """Those of one topic behind each other, in the order in which the topics come first."""
    topics: dict[str | bytes, list[Row]] = {}
    for row in rows:
        topics.setdefault(row[0][0], []).append(row)
    return [row for of_topic in topics.values() for row in of_topic]


def _content(pieces: Sequence[bytes], slices: Sequence[FileSlice]) -> bytes | None:
    """All of it as bytes; None where that is much, isn't in the page cache, or can't be read: what sends it sees why."""
    left, parts = _READ_AT_ONCE_BYTES, list[bytes | bytearray]()
    for number, part in enumerate(slices):
        left -= part.size
        if left < 0:
            return None
        content = bytearray(part.size)
        try:
            if part.file.preadv([content], part.position, nowait=True) != part.size:
                return None
        except OSError:  # BlockingIOError is one.
            return None
        parts += (pieces[number], content)
    parts.append(pieces[-1])
    return b"".join(parts)


def _target(row: FetchedRow) -> FetchTarget:
    topic, partition, leader_epoch, offset, last_epoch, log_start_offset, maximum_bytes = row
    return FetchTarget(
        topic=topic if isinstance(topic, str) else "",
        topic_id=ZERO_TOPIC_ID if isinstance(topic, str) else topic,
        partition=partition,
        fetch_offset=offset,
        maximum_bytes=maximum_bytes,
        current_leader_epoch=leader_epoch,
        last_fetched_epoch=last_epoch,
        log_start_offset=log_start_offset,
    )


def _rules(asked: Asked, maximum_bytes: int) -> FetchRules:
    return FetchRules(
        api_version=asked[0],
        read_committed=asked[8],
        is_follower=asked[3] >= 0,
        minimum_bytes=asked[6],
        maximum_bytes=maximum_bytes,
        maximum_wait_ms=asked[5],
        replica_id=asked[3],
        broker_epoch=asked[4],
    )


def small_fetches(parts: FetchParts) -> QuickPath | None:
    """The quick path over a broker's partitions; None without the compiled module."""
    compiled = native.compiled
    return None if compiled is None else QuickPath(compiled.read_fetch, SmallFetches(parts, compiled).handle)
