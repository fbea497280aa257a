"""One call of `AdminClient`: its cluster, its deadline, and how its requests find their brokers.

A request goes to the controller, to a given broker, to a group's coordinator or to any broker; `leaders` finds the
brokers of requests about partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowtide.admin.attempts import Attempts, Done, Locate, Located, Outcome, RetryLater, Send
from lowtide.admin.cluster import GROUPS, TRANSACTIONS, BrokerHandle, ClusterConnections, raise_for_error
from lowtide.admin.errors import AdminError, BrokerAnsweredError, code_name
from lowtide.admin.patience import Deadline
from lowtide.admin.settings import INT32_MAX
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster_view import ClusterView
    from lowtide.protocol.schema import ApiMessage

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ANSWER_MS: Final = 500
"""How much earlier than the client the broker stops waiting, at most, so that its answer arrives in time; a tenth of
short times."""

UNKNOWN_IS_FINAL: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""Errors that the controller does not return by mistake: it knows every topic."""


class AdminCall:
    """One call, which ends at its deadline."""

    __slots__ = ("cluster", "deadline")

    def __init__(self, cluster: ClusterConnections, deadline: Deadline) -> None:
        self.cluster = cluster
        self.deadline = deadline

    def wait_ms(self) -> int:
        """Returns how long a broker may hold one request."""
        remaining_ms = min(self.deadline.remaining_ms(), self.cluster.settings.request_timeout_ms)
        return max(0, remaining_ms - min(ANSWER_MS, remaining_ms // 10))

    async def view(self, topics: Iterable[str] | None) -> ClusterView:
        """Returns what a broker knows of the brokers and of these topics; None asks for all topics.

        Errors: AdminError.
        """
        return await self.cluster.view(topics, self.deadline)

    # ------------------------------------------------------------------ requests
    async def ask(
        self,
        broker_id: BrokerId,
        request: ApiMessage,
        *,
        waits: bool = False,
        at_least: int = 0,
        at_most: int | None = None,
    ) -> Any:
        """Returns one broker's answer, without retries.

        `waits`: the broker may hold the request. Errors: AdminError.
        """
        async with self.cluster.broker(broker_id, self.deadline, waits=waits) as handle:
            return await handle.ask(request, at_least=at_least, at_most=at_most)

    async def ask_any(self, request: ApiMessage, what: str) -> Any:
        """Returns the answer of any broker.

        Errors name `what` was asked for. Errors: as `ClusterConnections.ask_any`.
        """

        async def ask(handle: BrokerHandle) -> Any:
            response = await handle.ask(request)
            raise_for_error(handle, response, what)
            return response

        return await self.cluster.ask_any(ask, self.deadline)

    async def each(
        self, items: Iterable[K], locate: Locate[K], send: Send[K, V], what: Callable[[K], str] = str
    ) -> dict[K, V | AdminError]:
        """Asks about items until each is done, has failed for good, or the deadline passes; returns all outcomes.

        `what` names an item in errors. Errors: AuthenticationFailedError, DeadlineExceededError.
        """
        attempts = Attempts[K, V](self.cluster, self.deadline, locate, send)
        await attempts.run(list(dict.fromkeys(items)))
        return attempts.results(what)

    async def single(self, item: K, locate: Locate[K], send: Send[K, V], what: Callable[[K], str] = str) -> V:
        """Like `each` for one item, but raises its error."""
        outcome = (await self.each([item], locate, send, what))[item]
        if isinstance(outcome, AdminError):
            raise outcome
        return outcome

    # ------------------------------------------------------------------ brokers
    async def of_all_brokers(
        self, send: Send[BrokerId, V], what: Callable[[BrokerId], str]
    ) -> tuple[list[V], dict[BrokerId, AdminError]]:
        """Asks every broker. Returns the answers, and the errors by broker. Errors: as `each`."""
        brokers = await self.cluster.brokers(self.deadline)
        answers = await self.each(brokers, self.to_broker(lambda broker_id: broker_id), send, what)
        errors = {broker_id: answer for broker_id, answer in answers.items() if isinstance(answer, AdminError)}
        return [answer for answer in answers.values() if not isinstance(answer, AdminError)], errors

    async def to_controller(self, items: Collection[K]) -> Located[K]:
        """Assigns all items to the controller. Lowtide, and Kafka in KRaft mode, forward such requests to it."""
        return Located[K](placed={await self.cluster.controller(self.deadline): list(items)})

    def to_broker(self, own: Callable[[Any], BrokerId | None] = lambda _: None) -> Locate[Any]:
        """Assigns each item to the broker that `own` returns, or to any broker where it returns None."""

        async def locate(items: Collection[K]) -> Located[K]:
            located = Located[K]()
            brokers = await self.cluster.brokers(self.deadline)
            some = self.cluster.any_of_last_view(self.cluster.ports.random.choice(brokers)) if brokers else None
            for item in items:
                wanted = own(item)
                broker_id = some if wanted is None else wanted
                if broker_id is None or broker_id not in brokers:
                    reason = f"clients can't reach broker {broker_id}" if brokers else "the cluster has no broker"
                    located.others[item] = RetryLater(reason)
                else:
                    located.put(broker_id, item)
            return located

        return locate

    async def to_coordinators(self, groups: Collection[str]) -> Located[str]:
        """Assigns each group to its coordinator."""
        return await self._to_coordinators(groups, GROUPS)

    async def to_transaction_coordinators(self, transactional_ids: Collection[str]) -> Located[str]:
        """Assigns each transactional id to its coordinator."""
        return await self._to_coordinators(transactional_ids, TRANSACTIONS)

    async def _to_coordinators(self, keys: Collection[str], key_type: int) -> Located[str]:
        located = Located[str]()
        found = await self.cluster.coordinators(keys, self.deadline, key_type)
        for key in keys:
            coordinator = found.get(key)
            if coordinator is None:
                located.others[key] = RetryLater("no coordinator was returned")
            elif not isinstance(coordinator, BrokerAnsweredError):
                located.put(coordinator, key)
            else:
                final = not is_retriable(coordinator.code)
                located.others[key] = coordinator if final else RetryLater(str(coordinator))
        return located


class AdminClientBase:
    """Begins calls to one cluster. The functions that are methods of `AdminClient` take it as their first argument."""

    def __init__(self, cluster: ClusterConnections) -> None:
        self.cluster = cluster
        """Finds brokers, leaders and coordinators: for requests that have no method."""

    def call(self, timeout: float | None = None) -> AdminCall:
        """Begins a call of at most `timeout` seconds, or of `default.api.timeout.ms`. Errors: ValueError."""
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout is {timeout} seconds: it must be more than 0")
        timeout_ms = None if timeout is None else max(round(min(timeout * 1000, INT32_MAX)), 1)
        return AdminCall(self.cluster, self.cluster.deadline(timeout_ms))


# ---------------------------------------------------------------------- answers
def failure(
    what: object, code: int, broker_message: str | None = None, *, final: Collection[int] = ()
) -> RetryLater | AdminError:
    """Returns what an error code means for an item.

    Codes in `final` are not retried, though Kafka calls them retriable.
    """
    if is_retriable(code) and code not in final:
        return RetryLater(f"{code_name(code)}{f' ({broker_message})' if broker_message else ''}")
    return BrokerAnsweredError(code, str(what), broker_message)


def outcome(what: object, row: Any, *, final: Collection[int] = ()) -> Outcome[None]:
    """Returns what a row of an answer means for its item, where success has no value."""
    if not row.error_code:
        return Done(None)
    return failure(what, row.error_code, getattr(row, "error_message", None), final=final)


def is_worth_a_retry(code: int) -> bool:
    """Returns whether a partition's error may pass. An unknown partition of a group's offsets does not appear later."""
    return is_retriable(code) and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def by_topic(rows: Mapping[TopicPartition, V]) -> dict[str, list[V]]:
    """Groups what belongs to partitions by topic, as requests have it."""
    found: dict[str, list[V]] = {}
    for key, row in rows.items():
        found.setdefault(key.topic, []).append(row)
    return found


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Groups the numbers of partitions by topic."""
    return by_topic({key: key.partition for key in partitions})


def partition_rows(topics: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """Yields each partition of an answer with its row."""
    for topic in topics:
        for row in topic.partitions:
            yield TopicPartition(topic.name, row.partition_index), row
