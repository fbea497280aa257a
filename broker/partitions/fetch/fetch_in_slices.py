"""Fetches of very many partitions: some of them at a time are counted, read and answered.

Such a fetch sees changes from its beginning on, through a session: a consumer's without a session has one of its own,
which ends with the fetch. A follower without a session does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from lowtide.broker.partitions.fetch.fetch_reader import FetchReader, has_log_start_to_tell, may_wait, respond
from lowtide.broker.partitions.fetch.fetch_session import FetchPlan, FetchSession
from lowtide.broker.partitions.fetch.fetch_session_slots import NO_SESSION
from lowtide.broker.partitions.fetch.fetch_targets import FetchOutcome, FetchRules, FetchTarget
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending
from lowtide.broker.turns import PARTITIONS_OF_A_STEP
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchResponse

T = TypeVar("T")

_LOOK_AGAIN_MS: Final = 50
"""The pause after very many partitions were tested in vain, to leave most of the loop's time to others."""


class SlicedFetch(Protocol):
    """The fetch: see `DelayedFetch`.

    `held` partitions are counted in `Turns.hold`. It `is_due` when it must be answered without a wait. It `has_news`
    when a partition has changed since it was looked at.
    """

    reader: FetchReader
    replicas: ReplicaManager
    plan: FetchPlan
    targets: list[FetchTarget]
    rules: FetchRules
    session: FetchSession | None
    held: int
    has_news: bool
    is_due: bool
    deadline_ms: int
    pending: Pending[Any]

    def enlist(self) -> None: ...

    def watch(self) -> bool: ...

    def look(self) -> None: ...

    def wake(self) -> None: ...

    def on_complete(self) -> None: ...

    def leave(self) -> None: ...

    def fail(self) -> None: ...


def start_in_slices(
    fetch: SlicedFetch, settle: Callable[[FetchOutcome], int] | None = None, *, notes: bool = False
) -> Pending[Any]:
    """Reads, then answers or waits. Returns the promise of the response.

    Does not wait if fetches in slices hold too much already.
    `settle` gets what was read and returns the deadline; `notes` as in `FetchReader.read`.
    """
    rules, held = fetch.rules, len(fetch.targets)
    may_have_own = not rules.is_follower and rules.maximum_wait_ms > 0
    if (fetch.session is None and not may_have_own) or not fetch.replicas.turns.hold(held):
        fetch.is_due = True
    else:
        fetch.held = held
        if fetch.session is None:
            targets = {target.key: target for target in fetch.targets}
            fetch.session = FetchSession(NO_SESSION, targets, 0, uses_topic_ids=rules.api_version >= TOPIC_IDS_SINCE)
        fetch.enlist()
    _run(fetch, _begin_steps(fetch, settle, notes=notes))
    return fetch.pending


def look_in_slices(fetch: SlicedFetch, targets: list[FetchTarget]) -> None:
    """Answers if there are enough bytes or an error; otherwise waits again."""
    _run(fetch, _look_steps(fetch, targets))


def answer_in_slices(fetch: SlicedFetch, targets: list[FetchTarget]) -> bool:
    """Reads and answers. Returns False without effect if fetches in slices hold too much already."""
    if not (fetch.held or fetch.replicas.turns.hold(len(targets))):
        return False
    fetch.held = fetch.held or len(targets)
    _run(fetch, _answer_steps(fetch, targets))
    return True


def give_back(fetch: SlicedFetch) -> None:
    """Frees the memory that the fetch holds."""
    held, fetch.held = fetch.held, 0
    fetch.replicas.turns.let_go(held)


def end_own_session(fetch: SlicedFetch) -> None:
    """Frees all that the fetch holds."""
    give_back(fetch)
    if fetch.session is not None and fetch.session is not fetch.plan.session:
        fetch.session.close()


def _run(fetch: SlicedFetch, steps: Iterator[None]) -> None:
    fetch.replicas.turns.start(steps, lambda: not fetch.pending.abandoned, fetch.fail)


def _begin_steps(fetch: SlicedFetch, settle: Callable[[FetchOutcome], int] | None, *, notes: bool) -> Iterator[None]:
    outcome = FetchOutcome([], 0, False, 0)
    yield from read_steps(fetch.reader, fetch.targets, fetch.rules, outcome, notes=notes)
    if settle is not None:
        fetch.deadline_ms = settle(outcome)
    if fetch.is_due or not may_wait(fetch.plan, outcome, fetch.rules):
        return (yield from _tell_steps(fetch, outcome))
    if fetch.session is not None and fetch.session is not fetch.plan.session:
        fetch.session.leave_idle()
    if not _wait_on(fetch, again_ms=0):
        yield from _tell_steps(fetch, outcome)


def _wait_on(fetch: SlicedFetch, again_ms: int) -> bool:
    """Waits after a pass, and tests again what changed meanwhile. Returns False if it cannot wait."""
    has_news, fetch.has_news = fetch.has_news, False
    if not fetch.watch():
        return False
    if fetch.session is not None and fetch.session is fetch.plan.session:
        give_back(fetch)  # What a session holds is counted with the sessions.
    if has_news:
        fetch.replicas.turns.call_later(again_ms, fetch.look)
    return True


def _look_steps(fetch: SlicedFetch, targets: list[FetchTarget]) -> Iterator[None]:
    fetch.has_news = False
    is_enough = yield from enough_in_steps(fetch.reader, targets, fetch.rules)
    if is_enough or fetch.is_due or not _wait_on(fetch, _LOOK_AGAIN_MS):
        fetch.on_complete()


def _answer_steps(fetch: SlicedFetch, targets: list[FetchTarget]) -> Iterator[None]:
    outcome = FetchOutcome([], 0, False, 0)
    yield from read_steps(fetch.reader, targets, fetch.rules, outcome)
    yield from _tell_steps(fetch, outcome)


def _tell_steps(fetch: SlicedFetch, outcome: FetchOutcome) -> Iterator[None]:
    response = yield from respond_in_steps(fetch.plan, outcome, fetch.rules, fetch.reader)
    for traffic, size in (outcome.unsent or {}).items():
        if fetch.rules.is_follower:
            traffic.replication_bytes_out += size
        else:
            traffic.bytes_out += size
    fetch.leave()
    end_own_session(fetch)
    yield
    fetch.pending.complete(response)


def in_steps(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yields the rows in the order given, as many at a time as one step works on."""
    for start in range(0, len(rows), PARTITIONS_OF_A_STEP):
        yield rows[start : start + PARTITIONS_OF_A_STEP]


def read_steps(
    reader: FetchReader,
    targets: Sequence[FetchTarget],
    rules: FetchRules,
    outcome: FetchOutcome,
    *,
    notes: bool = False,
) -> Iterator[None]:
    """Reads like `FetchReader.read`, into `outcome`."""
    for some in in_steps(targets):
        reader.read(some, rules, notes=notes, begun=outcome)
        yield


def available_bytes(
    reader: FetchReader, targets: Iterable[FetchTarget], rules: FetchRules, *, found: int
) -> int | None:
    """Returns about how many bytes a read would find, counted up to `minimum_bytes`; None if it must answer at once.

    `found` is the number of partitions that existed when the wait began. One that is gone since then is an error.
    """
    total = 0
    for target in targets:
        partition = reader.find(target, rules)
        if isinstance(partition, ErrorCode):
            if target.watched is not None:
                return None
            continue
        found -= 1
        log = partition.log
        if reader.check(partition, target, rules) != ErrorCode.NONE or target.fetch_offset > log.log_end_offset:
            return None
        if rules.is_follower and has_log_start_to_tell(target, partition):
            return None
        end_offset = (
            log.log_end_offset
            if rules.is_follower
            else log.last_stable_offset
            if rules.read_committed
            else log.high_watermark
        )
        if target.fetch_offset < end_offset and (not rules.is_follower or reader.may_send(partition, target, rules)):
            total += log.bytes_between(
                max(target.fetch_offset, log.log_start_offset), end_offset, target.partition_max_bytes
            )
            if total >= rules.minimum_bytes:
                return total
    return total if found <= 0 else None


def enough_in_steps(
    reader: FetchReader, targets: Sequence[FetchTarget], rules: FetchRules
) -> Generator[None, None, bool]:
    """Returns whether there are enough bytes to answer, or an error."""
    total = 0
    for some in in_steps(targets):
        available = available_bytes(reader, some, rules, found=0)
        total += available or 0
        if available is None or total >= rules.minimum_bytes:
            return True
        yield
    return False


def respond_in_steps(
    plan: FetchPlan, outcome: FetchOutcome, rules: FetchRules, reader: FetchReader
) -> Generator[None, None, FetchResponse]:
    """Responds like `respond`, some partitions at a time, and removes them from the outcome."""
    whole = respond(plan, msgspec.structs.replace(outcome, answers=[]), rules, reader)
    read, outcome.answers = outcome.answers, []
    for answers in in_steps(read):
        yield
        part = respond(plan, msgspec.structs.replace(outcome, answers=answers), rules, reader)
        for topic in part.responses:
            last = whole.responses[-1] if whole.responses else None
            if last is not None and (last.topic, last.topic_id) == (topic.topic, topic.topic_id):
                last.partitions += topic.partitions
            else:
                whole.responses.append(topic)
        known = {endpoint.node_id for endpoint in whole.node_endpoints}
        whole.node_endpoints += [endpoint for endpoint in part.node_endpoints if endpoint.node_id not in known]
    yield
    return whole
