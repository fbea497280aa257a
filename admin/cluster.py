"""A cluster as a client reaches it: any broker, a certain one, the controller, a group's coordinator; and what Metadata says.

Which brokers there are is learnt from every Metadata answer; where none of them can be reached, the bootstrap servers are asked again.
Topics aren't remembered: each call asks for those that it is about, so nothing is decided on an old view. Times are given as deadlines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowtide.admin.brokers import Brokers, Ports
from lowtide.admin.cluster_view import Broker, ClusterView, view_of
from lowtide.admin.connection import Connection
from lowtide.admin.errors import BrokerAnsweredError, ConnectionFailedError, DeadlineExceededError, error_of
from lowtide.admin.first_answer import FirstAnswer
from lowtide.admin.patience import Deadline
from lowtide.admin.settings import Address, ClientSettings
from lowtide.protocol.client.opening import SOFTWARE_NAME, SOFTWARE_VERSION
from lowtide.protocol.client.refused import ClientFailure
from lowtide.protocol.client.retries import SILENT_MS, is_retriable
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.types import BrokerId

if TYPE_CHECKING:
    from lowtide.protocol.schema import ApiMessage

NO_CREATION_SINCE: Final = 4
"""The version of Metadata from which asking for a topic doesn't create it."""

GROUPS: Final = 0
"""The type of key by which FindCoordinator finds the coordinators of groups."""

_MANY_COORDINATORS_SINCE: Final = 4

_LOG = logging.getLogger("lowtide.admin")

T = TypeVar("T")


class BrokerHandle:
    """A broker during one request: what it speaks, and the means to ask."""

    __slots__ = ("_connection", "_deadline", "_request_timeout_ms", "versions")

    def __init__(self, connection: Connection, deadline: Deadline, request_timeout_ms: int) -> None:
        self.versions = connection.versions
        self._connection = connection
        self._deadline = deadline
        self._request_timeout_ms = request_timeout_ms

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._connection.address

    def choose(self, request: type[ApiMessage], *, at_least: int = 0, at_most: int | None = None) -> int:
        """The highest version of a request that both speak. Errors: UnsupportedVersionError."""
        version = self.versions.choose(request, at_least=at_least, at_most=at_most)
        if isinstance(version, ClientFailure):
            raise error_of(version)
        return version

    async def ask(self, request: ApiMessage, *, at_least: int = 0, at_most: int | None = None) -> Any:
        """The answer to a request, in the highest version that both speak.

        Errors: UnsupportedVersionError, ConnectionFailedError.
        """
        return await self.ask_in(request, self.choose(type(request), at_least=at_least, at_most=at_most))

    async def ask_in(self, request: ApiMessage, version: int) -> Any:
        """The same, in a version that the caller has chosen, since the request's fields depend on it."""
        return await self._connection.ask(
            request, version, max(1, min(self._request_timeout_ms, self._deadline.remaining_ms()))
        )


class Cluster:
    """What the client knows of a cluster, and whom it asks.

    Every method has to run on one loop; all may run at once.
    """

    def __init__(self, settings: ClientSettings, ports: Ports) -> None:
        self.settings = settings
        self.ports = ports
        self._connections = Brokers(settings, ports)
        self._known: dict[BrokerId, Broker] = {}
        self._controller: BrokerId | None = None
        self._last_answer_from: Address | None = None
        """Where the last answer that any broker could give came from."""

    def deadline(self, timeout_ms: int | None) -> Deadline:
        """By when a call has to end that begins now; None is `default.api.timeout.ms`."""
        return Deadline(self.ports.clock, self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms)

    async def close(self) -> None:
        """Close all connections. What waits fails."""
        await self._connections.close()

    # ------------------------------------------------------------------ one broker
    @asynccontextmanager
    async def broker(
        self, broker_id: BrokerId, deadline: Deadline, *, waits: bool = False
    ) -> AsyncIterator[BrokerHandle]:
        """The broker of this id, for one request; `waits` when the broker may let it wait. Errors: AdminError."""
        known = self._known.get(broker_id)
        if known is None:
            message = f"broker {broker_id} isn't among those that clients can reach now"
            raise ConnectionFailedError(message)
        async with self._reached(known.address, deadline, waits=waits) as handle:
            yield handle

    @asynccontextmanager
    async def _reached(
        self, address: Address, deadline: Deadline, *, waits: bool = False
    ) -> AsyncIterator[BrokerHandle]:
        """Errors: ConnectionFailedError also when connecting takes longer than there is time."""
        request_timeout_ms, remaining_ms = self.settings.request_timeout_ms, deadline.remaining_ms()
        if waits:
            async with self._connections.own(address) as connection:
                yield BrokerHandle(connection, deadline, request_timeout_ms)
            return
        try:
            async with asyncio.timeout(remaining_ms / 1000):
                connection = await self._connections.shared(address)
        except TimeoutError:
            raise ConnectionFailedError(f"{address}: no connection within {remaining_ms} ms") from None
        yield BrokerHandle(connection, deadline, request_timeout_ms)

    # ------------------------------------------------------------------ any broker
    async def ask_any(self, ask: Callable[[BrokerHandle], Awaitable[T]], deadline: Deadline) -> T:
        """What `ask` gets from some broker: those that are connected first, then the others, again and again until the deadline.

        A broker that does not answer within `SILENT_MS` is still waited for while the next one is asked too; the first answer counts.

        Errors: DeadlineExceededError, with the last failure at each address; and what `ask` raises, except ConnectionFailedError.
        """
        failures: dict[Address, str] = {}
        attempt = 0
        while True:
            answers = FirstAnswer(self._connections, failures, deadline)
            answer = await answers.of(self._candidates(), lambda address: self._ask_at(address, ask, deadline))
            if answer is not None:
                self._last_answer_from = answer.address
                return answer.value
            attempt += 1
            reasons = "; ".join(failures.values()) or "none was tried"
            await self.rest(attempt, deadline, f"no broker answers: {reasons}")
            if not deadline.remaining_ms():
                message = f"no broker answered within {deadline.timeout_ms} ms: {reasons}"
                raise DeadlineExceededError(message)

    async def _ask_at(self, address: Address, ask: Callable[[BrokerHandle], Awaitable[T]], deadline: Deadline) -> T:
        async with self._reached(address, deadline) as handle:
            return await ask(handle)

    def _candidates(self) -> list[Address]:
        """Addresses in the order in which they are tried; those that were silent a short time ago come last."""
        known = [broker.address for broker in self._known.values()]
        bootstrap = [address for address in self.settings.bootstrap_servers if address not in known]
        for addresses in (known, bootstrap):
            self.ports.random.shuffle(addresses)
        connected = [address for address in known + bootstrap if self._connections.is_connected(address)]
        ready = [
            address
            for address in known + bootstrap
            if address not in connected and not self._connections.rests(address)
        ]
        return sorted(connected + ready or known + bootstrap, key=self._connections.was_silent)

    async def rest(self, attempt: int, deadline: Deadline, reason: str = "") -> None:
        """The backoff after so many attempts, or the remaining time.

        Logs once in a call that it continues, and the `reason`.
        """
        if reason and deadline.is_to_be_told():
            _LOG.info("tried again for up to %d s more: %s", deadline.remaining_ms() // 1000, reason)
        pause_ms = min(
            self.settings.retry_backoff.rest_ms(attempt, self.ports.random.uniform(-1, 1)), deadline.remaining_ms()
        )
        await asyncio.sleep(pause_ms / 1000)

    # ------------------------------------------------------------------ metadata
    async def view(self, topics: Iterable[str] | None, deadline: Deadline) -> ClusterView:
        """What some broker knows now of the brokers and of these topics; None asks for all topics.

        No topic is created by it.
        Errors: DeadlineExceededError, BrokerAnsweredError, AuthenticationFailedError, UnsupportedVersionError.
        """
        names = None if topics is None else list(dict.fromkeys(topics))
        view: ClusterView = await self.ask_any(lambda handle: view_from(handle, names), deadline)
        self._known = dict(view.brokers)
        self._controller = view.controller_id
        return view

    async def controller(self, deadline: Deadline) -> BrokerId:
        """The broker to ask for changes of the cluster: the controller, or one that will pass it on to that.

        Errors: as `view`. A controller that does not answer at once is not waited for: the broker whose metadata named
        it passes the request on to it or to its successor. (Apache Kafka with ZooKeeper refuses that with
        NOT_CONTROLLER; the call continues until it has a new controller.)
        """
        attempt = 0
        while True:
            await self.view((), deadline)
            if self._controller is not None and self._controller in self._known:
                return (
                    self._controller
                    if await self._answers(self._controller, deadline)
                    else self.any_of_last_view(self._controller)
                )
            attempt += 1
            await self.rest(attempt, deadline)
            if not deadline.remaining_ms():
                message = f"the cluster has no controller that could be reached within {deadline.timeout_ms} ms"
                raise DeadlineExceededError(message)

    async def brokers(self, deadline: Deadline) -> Sequence[BrokerId]:
        """All brokers that clients can reach now. Errors: as `view`."""
        view = await self.view((), deadline)
        return sorted(view.brokers)

    def any_of_last_view(self, otherwise: BrokerId) -> BrokerId:
        """The broker that answered last, if its address is one that clients are given: it answers now, and any broker will do."""
        by_address = {broker.address: broker_id for broker_id, broker in self._known.items()}
        return otherwise if self._last_answer_from is None else by_address.get(self._last_answer_from, otherwise)

    async def _answers(self, broker_id: BrokerId, deadline: Deadline) -> bool:
        """Whether a broker answers the cheapest request within `SILENT_MS`; one that just answered is not asked."""
        address = self._known[broker_id].address
        if address == self._last_answer_from:
            return True
        if self._connections.was_silent(address):
            return False
        probe = Deadline(self.ports.clock, min(SILENT_MS, deadline.remaining_ms()))
        try:
            async with asyncio.timeout(probe.remaining_ms() / 1000), self.broker(broker_id, deadline) as handle:
                await handle.ask(
                    ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
                )
        except (TimeoutError, ConnectionFailedError):
            self._connections.note_silence(address)
            return False
        self._connections.note_answer(address)
        return True

    # ------------------------------------------------------------------ coordinators
    async def coordinators(
        self, groups: Collection[str], deadline: Deadline
    ) -> Mapping[str, BrokerId | BrokerAnsweredError]:
        """Who coordinates each group, or why no broker does now. Errors: as `view`."""

        async def ask(handle: BrokerHandle) -> dict[str, BrokerId | BrokerAnsweredError]:
            version = handle.choose(FindCoordinatorRequest)
            if version >= _MANY_COORDINATORS_SINCE:
                request = FindCoordinatorRequest(key_type=GROUPS, coordinator_keys=list(groups))
                answer = await handle.ask_in(request, version)
                return {row.key: self._coordinator(row.key, row) for row in answer.coordinators}
            found = {}
            for group in groups:
                found[group] = self._coordinator(group, await handle.ask_in(FindCoordinatorRequest(key=group), version))
            return found

        if not groups:
            return {}
        found: Mapping[str, BrokerId | BrokerAnsweredError] = await self.ask_any(ask, deadline)
        return found

    def _coordinator(self, group: str, row: Any) -> BrokerId | BrokerAnsweredError:
        """One row of an answer; a broker that isn't known yet is kept."""
        if row.error_code:
            return BrokerAnsweredError(
                row.error_code, f"the coordinator of group {group} is not known", row.error_message
            )
        broker = Broker(broker_id=row.node_id, address=Address(row.host, row.port))
        self._known.setdefault(row.node_id, broker)
        node: BrokerId = row.node_id
        return node


async def view_from(handle: BrokerHandle, topics: Collection[str] | None) -> ClusterView:
    """What this broker knows of these topics.

    Errors: ConnectionFailedError, UnsupportedVersionError, BrokerAnsweredError.
    """
    asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    response = await handle.ask(
        MetadataRequest(topics=asked, allow_auto_topic_creation=False), at_least=NO_CREATION_SINCE
    )
    if response.error_code and is_retriable(response.error_code):
        raise ConnectionFailedError(f"{handle.address}: {BrokerAnsweredError(response.error_code, 'no metadata')}")
    if response.error_code:
        raise BrokerAnsweredError(response.error_code, "the broker didn't tell its metadata")
    return view_of(response)


def raise_for_error(handle: BrokerHandle, response: Any, what: str) -> None:
    """What the error of a whole answer means to `Cluster.ask_any`, if it has one.

    Errors: ConnectionFailedError for what another broker, or a later attempt, may answer; BrokerAnsweredError.
    """
    if response.error_code and is_retriable(response.error_code):
        raise ConnectionFailedError(f"{handle.address}: {BrokerAnsweredError(response.error_code, what)}")
    if response.error_code:
        raise BrokerAnsweredError(response.error_code, what, getattr(response, "error_message", None))
