"""What the five requests to a share coordinator have in common: rows by topic and partition, each decided by the state that it is about."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.share_state.share_coordinator import ShareCoordinator
from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.pending import Pending
from lowtide.broker.slices import ask_in_slices
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import TopicId

GROUP_IS_EMPTY = "The group id must be specified and non-empty."


class StateRow(Protocol):
    """A row of such a request, or of its answer."""

    partition: int


class StateTopic(Protocol):
    """The rows of one topic."""

    topic_id: TopicId

    @property
    def partitions(self) -> Sequence[StateRow]: ...


class StateRequest(Protocol):
    """One of the five requests."""

    group_id: str

    @property
    def topics(self) -> Sequence[StateTopic]: ...


Decide: TypeAlias = Callable[[ShareStates, SharePlace, Any, Reply, Effects], None]
"""`ShareStates.read` and the others."""

Refuse: TypeAlias = Callable[[int, ErrorCode, str | None], Any]
"""The row of an answer for a partition that is refused."""

Respond: TypeAlias = Callable[[dict[TopicId, list[Any]]], Any]
"""The answer out of its rows, by topic ids."""


class _Answer:
    """The answer to one request, which is given when the last of its rows is there."""

    def __init__(self, rows: list[tuple[TopicId, int]], refuse: Refuse, respond: Respond) -> None:
        self.pending: Pending[Any] = Pending()
        self._places = rows
        self._rows: list[Any] = [None] * len(rows)
        self._left = len(rows)
        self._refuse, self._respond = refuse, respond

    def note(self, index: int, row: Any) -> None:
        self._rows[index] = (
            row if row is not None else self._refuse(self._places[index][1], ErrorCode.UNKNOWN_SERVER_ERROR, None)
        )
        self._left -= 1
        if not self._left:
            topics: dict[TopicId, list[Any]] = {}
            for (topic_id, _), each in zip(self._places, self._rows, strict=True):
                topics.setdefault(topic_id, []).append(each)
            self.pending.complete(self._respond(topics))


def refuse_all(
    request: StateRequest, refuse: Refuse, respond: Respond, error: ErrorCode, message: str | None = None
) -> Any:
    """The answer to a request none of whose rows is looked at."""
    return respond(
        {
            topic.topic_id: [refuse(row.partition, error, message) for row in topic.partitions]
            for topic in request.topics
        }
    )


def answer_rows(
    coordinator: ShareCoordinator, request: StateRequest, decide: Decide, refuse: Refuse, respond: Respond
) -> Any:
    """The answer to a request, or the promise of it: each row is decided by itself, in slices where there are many."""
    if not request.group_id:
        return refuse_all(request, refuse, respond, ErrorCode.INVALID_REQUEST, GROUP_IS_EMPTY)
    rows = [(topic.topic_id, row) for topic in request.topics for row in topic.partitions]
    if not rows:
        return respond({topic.topic_id: [] for topic in request.topics})
    answer = _Answer([(topic_id, row.partition) for topic_id, row in rows], refuse, respond)

    def ask() -> Generator[None, None, bool]:
        for index, (topic_id, row) in enumerate(rows):
            place = SharePlace(request.group_id, topic_id, row.partition)
            shard = coordinator.find_place(place)
            if isinstance(shard, ErrorCode):
                answer.note(index, refuse(row.partition, shard, None))
            else:
                coordinator.decide(shard, partial(decide, shard.state, place, row)).listen(partial(answer.note, index))
            yield
        return True

    ask_in_slices(coordinator.broker.turns, coordinator.broker.log, answer.pending, ask())
    return answer.pending
