"""Topics: creates, describes, extends and deletes them.

A change is sent again if its answer was lost. The second request may find the topic already created, or already
deleted. A delete then counts as done. A creation fails with a hint, because the topic may be another user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lowtide.admin.arguments import each_of, named
from lowtide.admin.attempts import Done, Outcome, RetryLater
from lowtide.admin.call import UNKNOWN_IS_FINAL, AdminClientBase, failure
from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError, ConnectionFailedError, UnsupportedVersionError
from lowtide.admin.leaders import UNKNOWN_SEEN_MAX
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from lowtide.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.schema import ApiMessage
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId, TopicId
from lowtide.runtime.properties import property_text

BROKERS_DEFAULT: Final = -1
"""Stands for the brokers' default number."""

_DEFAULTS_SINCE: Final = 4
"""The first version of CreateTopics with brokers' defaults (KIP-464)."""

_STATES_SINCE: Final = 6
"""The first version of DeleteTopics in which a topic is a name or an id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. `assignments`, the brokers of each partition's replicas, replace the two numbers."""

    name: str
    partitions: int = BROKERS_DEFAULT
    replication_factor: int = BROKERS_DEFAULT
    configs: Mapping[str, str | float | bool] = field(default_factory=dict)
    assignments: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A topic that was created, or could be. Values that the broker does not return are None, numbers are -1."""

    name: str
    topic_id: TopicId | None
    partitions: int
    replication_factor: int


async def create_topics(
    client: AdminClientBase,
    new_topics: Iterable[NewTopic],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> dict[str, CreatedTopic | AdminError]:
    """Creates topics; with `validate_only` only checks whether they could be created."""
    wanted = {topic.name: topic for topic in each_of(NewTopic, new_topics, 'NewTopic(name="flights")')}
    defaults = any(
        BROKERS_DEFAULT in (topic.partitions, topic.replication_factor) and not topic.assignments
        for topic in wanted.values()
    )

    def request(names: list[str], wait_ms: int, _: int) -> CreateTopicsRequest:
        rows = [_creatable(wanted[name]) for name in names]
        return CreateTopicsRequest(topics=rows, timeout_ms=wait_ms, validate_only=validate_only)

    def value(row: Any) -> CreatedTopic:
        # With validate_only, Kafka returns an id that it has made up.
        topic_id = None if validate_only or row.topic_id == ZERO_TOPIC_ID else row.topic_id
        return CreatedTopic(
            name=row.name, topic_id=topic_id, partitions=row.num_partitions, replication_factor=row.replication_factor
        )

    change = _TopicChange(CreateTopicsRequest, request, rows="topics", value=value)
    change.at_least = _DEFAULTS_SINCE if defaults else 0
    return await change.run(client, wanted, timeout)


async def delete_topics(
    client: AdminClientBase, names: Iterable[str], *, timeout: float | None = None
) -> dict[str, AdminError | None]:
    """Deletes topics with all their records; None means done."""

    def request(names: list[str], wait_ms: int, version: int) -> DeleteTopicsRequest:
        if version >= _STATES_SINCE:
            states = [DeleteTopicState(name=name) for name in names]
            return DeleteTopicsRequest(topics=states, timeout_ms=wait_ms)
        return DeleteTopicsRequest(topic_names=names, timeout_ms=wait_ms)

    change = _TopicChange(DeleteTopicsRequest, request, rows="responses")
    change.own_work = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return await change.run(client, named(names), timeout)


async def create_partitions(
    client: AdminClientBase,
    counts: Mapping[str, int],
    *,
    assignments: Mapping[str, Iterable[tuple[BrokerId, ...]]] | None = None,
    validate_only: bool = False,
    timeout: float | None = None,
) -> dict[str, AdminError | None]:
    """Raises the partition counts of topics to these totals. `assignments` has the brokers of each new partition."""

    def request(names: list[str], wait_ms: int, _: int) -> CreatePartitionsRequest:
        rows = []
        for name in names:
            given = (assignments or {}).get(name)
            of_new = (
                None if given is None else [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in given]
            )
            rows.append(CreatePartitionsTopic(name=name, count=counts[name], assignments=of_new))
        return CreatePartitionsRequest(topics=rows, timeout_ms=wait_ms, validate_only=validate_only)

    return await _TopicChange(CreatePartitionsRequest, request, rows="results").run(client, counts, timeout)


async def list_topics(
    client: AdminClientBase, *, include_internal: bool = False, timeout: float | None = None
) -> dict[str, TopicDescription]:
    """Returns all topics that this client may see, with their partitions, leaders and ids."""
    view = await client.call(timeout).view(None)
    return {name: topic for name, topic in sorted(view.topics.items()) if include_internal or not topic.is_internal}


async def describe_topics(
    client: AdminClientBase, names: Iterable[str], *, timeout: float | None = None
) -> dict[str, TopicDescription | AdminError]:
    """Returns topics with their partitions, leaders and ids.

    An unknown topic may be new, and is asked for again a few times.
    """
    call, wanted = client.call(timeout), list(dict.fromkeys(named(names)))
    for attempt in range(1, UNKNOWN_SEEN_MAX + 1):
        view = await call.view(wanted)
        again = any(is_retriable(code) for code in view.errors.values())
        if not again or attempt == UNKNOWN_SEEN_MAX or not call.deadline.remaining_ms():
            break
        await call.cluster.rest(attempt, call.deadline)
    return {
        name: view.topics.get(name)
        or BrokerAnsweredError(view.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), f"topic {name}")
        for name in wanted
    }


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=BROKERS_DEFAULT if topic.assignments else topic.partitions,
        replication_factor=BROKERS_DEFAULT if topic.assignments else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in topic.assignments.items()
        ],
        configs=[
            CreatableTopicConfig(name=key, value=property_text(key, value)) for key, value in topic.configs.items()
        ],
    )


class _TopicChange:
    """A change of topics, which the controller makes."""

    at_least = 0
    own_work: int | None = None
    """The error that counts as success if an earlier attempt may have done the work."""

    def __init__(
        self,
        kind: type[ApiMessage],
        request: Callable[[list[str], int, int], ApiMessage],
        *,
        rows: str,
        value: Callable[[Any], Any] = lambda _: None,
    ) -> None:
        """`request` gets the topics, the broker's waiting time and the version; `rows` names the answer's field."""
        self._kind = kind
        self._request = request
        self._rows = rows
        self._value = value
        self._maybe_done: set[str] = set()

    async def run(self, client: AdminClientBase, names: Iterable[str], timeout: float | None) -> dict[str, Any]:
        """Returns the outcome of each topic. Errors: AuthenticationFailedError, DeadlineExceededError."""
        call = client.call(timeout)

        async def send(broker_id: BrokerId, some: list[str]) -> Mapping[str, Outcome[Any]]:
            async with call.cluster.broker(broker_id, call.deadline, waits=True) as handle:
                try:
                    version = handle.choose(self._kind, at_least=self.at_least)
                    response = await handle.ask_in(self._request(some, call.wait_ms(), version), version)
                except ConnectionFailedError as error:
                    if error.was_sent:
                        self._maybe_done.update(some)
                    raise
                except UnsupportedVersionError as error:
                    return dict.fromkeys(some, error)
            return {row.name: self._outcome(row) for row in getattr(response, self._rows)}

        return await call.each(names, call.to_controller, send, lambda name: f"topic {name}")

    def _outcome(self, row: Any) -> Outcome[Any]:
        if row.error_code == ErrorCode.NONE or (row.error_code == self.own_work and row.name in self._maybe_done):
            return Done(self._value(row))
        message = getattr(row, "error_message", None)
        if row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and row.name in self._maybe_done:
            message = "an earlier attempt of this call, whose answer was lost, may have created it"
        result = failure(f"topic {row.name}", row.error_code, message, final=UNKNOWN_IS_FINAL)
        if isinstance(result, RetryLater) and row.error_code == ErrorCode.REQUEST_TIMED_OUT:
            self._maybe_done.add(row.name)
        return result
