"""The five requests to a share coordinator: rows by topic and partition, each decided by the state that it is about."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.share_state.share_coordinator import ShareCoordinator
from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Pending
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import TopicId
from lowtide.replication.refusal import Refusal

GROUP_IS_EMPTY = "The group id must be specified and non-empty."


class StateRow(Protocol):
    """A row of a request."""

    partition: int


class StateRows(Protocol):
    """The rows of one topic."""

    topic_id: TopicId

    @property
    def partitions(self) -> Sequence[StateRow]: ...


class StateRequest(Protocol):
    """One of the five requests."""

    group_id: str

    @property
    def topics(self) -> Sequence[StateRows]: ...


class StateApi(NamedTuple):
    """One of the five APIs: how a row is decided, and the types of its response."""

    key: ApiKey
    decide: Callable[[ShareStates, SharePlace, Any, Reply, Effects], None]
    """`ShareStates.read` or another."""
    response: Callable[..., Any]
    topic: Callable[..., Any]
    row: Callable[..., Any]

    def handler(self, coordinator: ShareCoordinator) -> HandlerSpec:
        """Returns the handler."""
        return HandlerSpec(
            key=self.key,
            guard=on_cluster(Operation.CLUSTER_ACTION, self._denied),
            handle=lambda request, _context: self._answer(coordinator, request),
            between_brokers=True,
        )

    def refused(self, request: StateRequest, error: ErrorCode, message: str | None = None) -> Any:
        """Returns the response to a request that is refused as a whole."""
        return self._respond(
            {
                topic.topic_id: [self._refuse(row.partition, error, message) for row in topic.partitions]
                for topic in request.topics
            }
        )

    def _denied(self, request: StateRequest, _version: int, refusal: Refusal) -> Any:
        return self.refused(request, refusal.error_code)

    def _refuse(self, number: int, error: ErrorCode, message: str | None = None) -> Any:
        return self.row(partition=number, error_code=error, error_message=message)

    def _respond(self, topics: Mapping[TopicId, list[Any]]) -> Any:
        results = [self.topic(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()]
        return self.response(results=results)

    def _answer(self, coordinator: ShareCoordinator, request: StateRequest) -> Any:
        """Decides each row by itself, in slices if there are many."""
        if not request.group_id:
            return self.refused(request, ErrorCode.INVALID_REQUEST, GROUP_IS_EMPTY)
        rows = [(topic.topic_id, row) for topic in request.topics for row in topic.partitions]
        if not rows:
            return self._respond({topic.topic_id: [] for topic in request.topics})
        pending: Pending[Any] = Pending()
        outcomes: dict[int, Any] = {}

        def note(index: int, outcome: Any) -> None:
            number = rows[index][1].partition
            outcomes[index] = outcome if outcome is not None else self._refuse(number, ErrorCode.UNKNOWN_SERVER_ERROR)
            if len(outcomes) == len(rows):
                topics: dict[TopicId, list[Any]] = {}
                for at, (topic_id, _) in enumerate(rows):
                    topics.setdefault(topic_id, []).append(outcomes[at])
                pending.complete(self._respond(topics))

        def ask() -> Generator[None, None, bool]:
            for index, (topic_id, row) in enumerate(rows):
                place = SharePlace(request.group_id, topic_id, row.partition)
                shard = coordinator.find_place(place)
                if isinstance(shard, ErrorCode):
                    note(index, self._refuse(row.partition, shard))
                else:
                    decide = partial(self.decide, shard.state, place, row)
                    coordinator.decide(shard, decide).listen(partial(note, index))
                yield
            return True

        coordinator.broker.turns.ask(pending, ask())
        return pending
