"""Topics: made, described, grown and deleted.

A change may be sent twice, where the answer to the first attempt was lost. The second one then meets its own work: a
topic that is there already, or isn't there any more. A delete is done then; a creation is refused, with a word about
it, because it may be another user's topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowtide.admin.anywhere import UNKNOWN_IS_FINAL, outcome_of_error, to_the_controller, wait_ms
from lowtide.admin.attempts import Attempts, Done, Outcome, Retry
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
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId, TopicId
from lowtide.runtime.properties import property_text

if TYPE_CHECKING:
    from lowtide.admin.cluster import Cluster
    from lowtide.admin.cluster_view import TopicDescription
    from lowtide.admin.patience import Deadline

BROKERS_DEFAULT: Final = -1
"""In place of a number: what the brokers are configured to."""

_DEFAULTS_SINCE: Final = 4
"""The version of CreateTopics from which brokers know their defaults (KIP-464)."""

_STATES_SINCE: Final = 6
"""The version of DeleteTopics from which a topic is a name or an id."""

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to make.

    With `assignments`, the brokers of each partition's replicas, the two numbers stay as they are.
    """

    name: str
    partitions: int = BROKERS_DEFAULT
    replication_factor: int = BROKERS_DEFAULT
    configs: Mapping[str, str | float | bool] = field(default_factory=dict)
    assignments: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A topic that was created, or could have been. Values that the broker does not return are None, and numbers -1."""

    name: str
    topic_id: TopicId | None
    partitions: int
    replication_factor: int


async def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], deadline: Deadline, *, validate_only: bool = False
) -> dict[str, CreatedTopic | AdminError]:
    """See `AdminClient.create_topics`."""
    wanted = {topic.name: topic for topic in topics}
    defaults = any(
        BROKERS_DEFAULT in (topic.partitions, topic.replication_factor) and not topic.assignments
        for topic in wanted.values()
    )

    def request(names: list[str], _: int) -> CreateTopicsRequest:
        rows = [_creatable(wanted[name]) for name in names]
        return CreateTopicsRequest(topics=rows, timeout_ms=wait_ms(cluster, deadline), validate_only=validate_only)

    def value(row: Any) -> CreatedTopic:
        topic_id = row.topic_id if row.topic_id != ZERO_TOPIC_ID and not validate_only else None  # Kafka invents one
        return CreatedTopic(
            name=row.name, topic_id=topic_id, partitions=row.num_partitions, replication_factor=row.replication_factor
        )

    change = _Change(cluster, deadline, CreateTopicsRequest, request, lambda response: response.topics, value)
    change.at_least = _DEFAULTS_SINCE if defaults else 0
    return await change.run(list(wanted))


async def delete_topics(cluster: Cluster, names: Iterable[str], deadline: Deadline) -> dict[str, AdminError | None]:
    """See `AdminClient.delete_topics`."""

    def request(names: list[str], version: int) -> DeleteTopicsRequest:
        if version >= _STATES_SINCE:
            return DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in names], timeout_ms=wait_ms(cluster, deadline)
            )
        return DeleteTopicsRequest(topic_names=names, timeout_ms=wait_ms(cluster, deadline))

    change = _Change(
        cluster, deadline, DeleteTopicsRequest, request, lambda response: response.responses, lambda _: None
    )
    change.own_work = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return await change.run(list(dict.fromkeys(names)))


async def create_partitions(
    cluster: Cluster,
    counts: Mapping[str, int],
    deadline: Deadline,
    *,
    assignments: Mapping[str, Iterable[tuple[BrokerId, ...]]] | None = None,
    validate_only: bool = False,
) -> dict[str, AdminError | None]:
    """See `AdminClient.create_partitions`."""

    def request(names: list[str], _: int) -> CreatePartitionsRequest:
        rows = []
        for name in names:
            given = (assignments or {}).get(name)
            of_new = (
                None if given is None else [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in given]
            )
            rows.append(CreatePartitionsTopic(name=name, count=counts[name], assignments=of_new))
        return CreatePartitionsRequest(topics=rows, timeout_ms=wait_ms(cluster, deadline), validate_only=validate_only)

    change = _Change(
        cluster, deadline, CreatePartitionsRequest, request, lambda response: response.results, lambda _: None
    )
    return await change.run(list(counts))


async def describe_topics(
    cluster: Cluster, names: Iterable[str] | None, deadline: Deadline
) -> dict[str, TopicDescription | AdminError]:
    """Topics by name, or all (None). One that isn't known is asked for a few times: it may be new."""
    wanted = None if names is None else list(dict.fromkeys(names))
    for attempt in range(1, UNKNOWN_SEEN_MAX + 1):
        view = await cluster.view(wanted, deadline)
        again = wanted is not None and any(is_retriable(code) for code in view.errors.values())
        if not again or attempt == UNKNOWN_SEEN_MAX or not deadline.remaining_ms():
            break
        await cluster.rest(attempt, deadline)
    found: dict[str, TopicDescription | AdminError] = {}
    for name in wanted if wanted is not None else sorted({*view.topics, *view.errors}):
        if name in view.topics:
            found[name] = view.topics[name]
        else:
            found[name] = BrokerAnsweredError(
                view.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), f"topic {name}"
            )
    return found


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


class _Change:
    """A change of topics, which the controller decides."""

    at_least = 0
    own_work: int | None = None
    """The error that is a success when an earlier attempt of this call may have done the work."""

    def __init__(
        self,
        cluster: Cluster,
        deadline: Deadline,
        kind: type[Any],
        request: Callable[[list[str], int], Any],
        rows: Callable[[Any], Collection[Any]],
        value: Callable[[Any], Any],
    ) -> None:
        self._cluster = cluster
        self._deadline = deadline
        self._kind = kind
        self._request = request
        self._rows = rows
        self._value = value
        self._maybe_done: set[str] = set()

    async def run(self, names: list[str]) -> dict[str, Any]:
        """The outcome for each topic. Errors: AuthenticationFailedError, DeadlineExceededError."""
        locate = to_the_controller(self._cluster, self._deadline)
        attempts = Attempts[str, Any](self._cluster, self._deadline, locate, self._send)
        await attempts.run(names)
        return attempts.results(lambda name: f"topic {name}")

    async def _send(self, broker_id: BrokerId, names: list[str], _: int) -> Mapping[str, Outcome[Any]]:
        async with self._cluster.broker(broker_id, self._deadline, waits=True) as handle:
            try:
                version = handle.choose(self._kind, at_least=self.at_least)
                response = await handle.ask_in(self._request(names, version), version)
            except ConnectionFailedError as error:
                if error.was_sent:
                    self._maybe_done.update(names)
                raise
            except UnsupportedVersionError as error:
                return dict.fromkeys(names, error)
        return {row.name: self._outcome(row) for row in self._rows(response)}

    def _outcome(self, row: Any) -> Outcome[Any]:
        if row.error_code == ErrorCode.NONE or (row.error_code == self.own_work and row.name in self._maybe_done):
            return Done(self._value(row))
        message = getattr(row, "error_message", None)
        if row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and row.name in self._maybe_done:
            message = "an earlier attempt of this call, whose answer was lost, may have made it"
        outcome = outcome_of_error(f"topic {row.name}", row.error_code, message, final=UNKNOWN_IS_FINAL)
        if isinstance(outcome, Retry) and row.error_code == ErrorCode.REQUEST_TIMED_OUT:
            self._maybe_done.add(row.name)
        return outcome
