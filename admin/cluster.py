"""Reaches any broker of a cluster, a given one, the controller or a group's coordinator, and requests metadata.

Every Metadata answer updates the list of brokers. If none of them is reachable, the bootstrap servers are asked again.
Topics are not cached: each call asks for the topics that it needs, so it never uses an old view.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowtide.admin.brokers import BrokerConnections, ClientPorts
from lowtide.admin.cluster_view import Broker, ClusterView, view_of
from lowtide.admin.connection import AsyncConnection
from lowtide.admin.errors import BrokerAnsweredError, ConnectionFailedError, DeadlineExceededError, error_of
from lowtide.admin.first_answer import FirstAnswer
from lowtide.admin.patience import Deadline
from lowtide.admin.settings import Address, ClientSettings
from lowtide.protocol.client.opening import ExpectedBroker, versions_request
from lowtide.protocol.client.refused import ClientFailure
from lowtide.protocol.client.retries import SILENT_MS, is_retriable
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.types import BrokerId

if TYPE_CHECKING:
    from lowtide.protocol.schema import ApiMessage

NO_CREATION_SINCE: Final = 4
"""The first version of Metadata whose requests can avoid the creation of topics."""

GROUPS: Final = 0
TRANSACTIONS: Final = 1
"""FindCoordinator's key types, for groups and for transactional ids."""

_COORDINATED: Final = {GROUPS: "group", TRANSACTIONS: "transactional id"}
_KEY_TYPES_SINCE: Final = 1

_MANY_COORDINATORS_SINCE: Final = 4

_LOG = logging.getLogger("lowtide.admin")

T = TypeVar("T")


class BrokerHandle:
    """Access to a broker for one request."""

    __slots__ = ("_connection", "_deadline", "_request_timeout_ms", "versions")

    def __init__(self, connection: AsyncConnection, deadline: Deadline, request_timeout_ms: int) -> None:
        self.versions = connection.versions
        self._connection = connection
        self._deadline = deadline
        self._request_timeout_ms = request_timeout_ms

    @property
    def address(self) -> Address:
        """The broker's address."""
        return self._connection.address

    def choose(self, request: type[ApiMessage], *, at_least: int = 0, at_most: int | None = None) -> int:
        """Returns the highest version that both sides support. Errors: UnsupportedVersionError."""
        version = self.versions.choose(request, at_least=at_least, at_most=at_most)
        if isinstance(version, ClientFailure):
            raise error_of(version)
        return version

    async def ask(self, request: ApiMessage, *, at_least: int = 0, at_most: int | None = None) -> Any:
        """Returns the answer to a request in the highest common version.

        Errors: UnsupportedVersionError, ConnectionFailedError.
        """
        return await self.ask_in(request, self.choose(type(request), at_least=at_least, at_most=at_most))

    async def ask_in(self, request: ApiMessage, version: int) -> Any:
        """Returns the answer to a request in a given version."""
        return await self._connection.ask(
            request, version, max(1, min(self._request_timeout_ms, self._deadline.remaining_ms()))
        )


class ClusterConnections:
    """Finds and asks the brokers of a cluster. All methods must run on one event loop, and may run concurrently."""

    def __init__(self, settings: ClientSettings, ports: ClientPorts) -> None:
        self.settings = settings
        self.ports = ports
        self._connections = BrokerConnections(settings, ports, self._expected_at, self._forget_brokers)
        self._cluster_id: str | None = None
        self._known: dict[BrokerId, Broker] = {}
        self._controller: BrokerId | None = None
        self._last_answer_from: Address | None = None
        """The address of the last answer to `ask_any`."""

    def deadline(self, timeout_ms: int | None) -> Deadline:
        """Returns the deadline of a call that begins now; None stands for `default.api.timeout.ms`."""
        return Deadline(self.ports.clock, self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms)

    async def close(self) -> None:
        """Closes all connections. Pending calls fail."""
        await self._connections.close()

    # ------------------------------------------------------------------ one broker
    @asynccontextmanager
    async def broker(
        self, broker_id: BrokerId, deadline: Deadline, *, waits: bool = False
    ) -> AsyncIterator[BrokerHandle]:
        """Lends a broker to one request. `waits`: the broker may hold the request. Errors: AdminError."""
        known = self._known.get(broker_id)
        if known is None:
            raise ConnectionFailedError(f"broker {broker_id} is not among the brokers that clients can reach")
        async with self._reached(known.address, deadline, waits=waits) as handle:
            yield handle

    @asynccontextmanager
    async def _reached(
        self, address: Address, deadline: Deadline, *, waits: bool = False
    ) -> AsyncIterator[BrokerHandle]:
        """Yields a connection to the broker. Errors: ConnectionFailedError, also if connecting takes too long."""
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
        """Returns what `ask` gets from any broker, and tries all of them until the deadline, connected ones first.

        If a broker does not answer within `SILENT_MS`, the next one is asked too, and the first answer counts.

        Errors: DeadlineExceededError, with the last failure at each address; those of `ask`, except
        ConnectionFailedError.
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
            reasons = "; ".join(failures.values()) or "no address was tried"
            await self.rest(attempt, deadline, f"no broker answers: {reasons}")
            if not deadline.remaining_ms():
                raise DeadlineExceededError(f"no broker answered within {deadline.timeout_ms} ms: {reasons}")

    async def _ask_at(self, address: Address, ask: Callable[[BrokerHandle], Awaitable[T]], deadline: Deadline) -> T:
        async with self._reached(address, deadline) as handle:
            return await ask(handle)

    def _candidates(self) -> list[Address]:
        """Returns the addresses in the order of attempts; those that were silent recently come last."""
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
        """Waits for the backoff after so many attempts, at most until the deadline.

        Logs the `reason` once in a call.
        """
        if reason and deadline.log_is_due():
            _LOG.info("retrying for up to %d s more: %s", deadline.remaining_ms() // 1000, reason)
        pause_ms = min(
            self.settings.retry_backoff.rest_ms(attempt, self.ports.random.uniform(-1, 1)), deadline.remaining_ms()
        )
        await asyncio.sleep(pause_ms / 1000)

    # ------------------------------------------------------------------ metadata
    async def view(self, topics: Iterable[str] | None, deadline: Deadline) -> ClusterView:
        """Returns a broker's view of the brokers and of these topics; None asks for all topics. Creates no topic.

        Errors: DeadlineExceededError, BrokerAnsweredError, AuthenticationFailedError, UnsupportedVersionError.
        """
        names = None if topics is None else list(dict.fromkeys(topics))
        view: ClusterView = await self.ask_any(lambda handle: view_from(handle, names), deadline)
        self._known = dict(view.brokers)
        self._cluster_id = view.cluster_id
        self._controller = view.controller_id
        return view

    def _expected_at(self, address: Address) -> ExpectedBroker | None:
        """Returns the broker that has this address according to the last metadata, if it is exactly one."""
        if self._cluster_id is None:
            return None
        here = [broker.broker_id for broker in self._known.values() if broker.address == address]
        return ExpectedBroker(self._cluster_id, here[0]) if len(here) == 1 else None

    def _forget_brokers(self) -> None:
        """Makes the next request use the bootstrap servers, because the metadata name a wrong broker for an address."""
        self._known, self._cluster_id, self._controller = {}, None, None

    async def controller(self, deadline: Deadline) -> BrokerId:
        """Returns the broker for changes of the cluster: the controller, or a broker that forwards requests to it.

        If the controller does not answer at once, that is the broker that returned the metadata. (Apache Kafka with
        ZooKeeper then answers NOT_CONTROLLER, and the call is retried until a new controller is known.)
        Errors: as `view`.
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
                raise DeadlineExceededError(f"the cluster had no reachable controller for {deadline.timeout_ms} ms")

    async def brokers(self, deadline: Deadline) -> Sequence[BrokerId]:
        """Returns all brokers that clients can reach. Errors: as `view`."""
        view = await self.view((), deadline)
        return sorted(view.brokers)

    def any_of_last_view(self, otherwise: BrokerId) -> BrokerId:
        """Returns the broker that answered last, which is likely to answer again, if its address is known."""
        by_address = {broker.address: broker_id for broker_id, broker in self._known.items()}
        return otherwise if self._last_answer_from is None else by_address.get(self._last_answer_from, otherwise)

    async def _answers(self, broker_id: BrokerId, deadline: Deadline) -> bool:
        """Returns whether a broker answers ApiVersions within `SILENT_MS`, or was the last one to answer."""
        address = self._known[broker_id].address
        if address == self._last_answer_from:
            return True
        if self._connections.was_silent(address):
            return False
        probe = Deadline(self.ports.clock, min(SILENT_MS, deadline.remaining_ms()))
        try:
            async with asyncio.timeout(probe.remaining_ms() / 1000), self.broker(broker_id, deadline) as handle:
                await handle.ask(versions_request())
        except (TimeoutError, ConnectionFailedError):
            self._connections.note_silence(address)
            return False
        self._connections.note_answer(address)
        return True

    # ------------------------------------------------------------------ coordinators
    async def coordinators(
        self, keys: Collection[str], deadline: Deadline, key_type: int = GROUPS
    ) -> Mapping[str, BrokerId | BrokerAnsweredError]:
        """Returns the coordinator of each group or transactional id, or an error. Errors: as `view`."""
        what = _COORDINATED[key_type]

        async def ask(handle: BrokerHandle) -> dict[str, BrokerId | BrokerAnsweredError]:
            needed = 0 if key_type == GROUPS else _KEY_TYPES_SINCE
            version = handle.choose(FindCoordinatorRequest, at_least=needed)
            if version >= _MANY_COORDINATORS_SINCE:
                request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
                answer = await handle.ask_in(request, version)
                return {row.key: self._coordinator(f"{what} {row.key}", row) for row in answer.coordinators}
            found = {}
            for key in keys:
                answer = await handle.ask_in(FindCoordinatorRequest(key_type=key_type, key=key), version)
                found[key] = self._coordinator(f"{what} {key}", answer)
            return found

        if not keys:
            return {}
        found: Mapping[str, BrokerId | BrokerAnsweredError] = await self.ask_any(ask, deadline)
        return found

    def _coordinator(self, what: str, row: Any) -> BrokerId | BrokerAnsweredError:
        """Reads a row of an answer, and keeps the address of a new broker."""
        if row.error_code:
            return BrokerAnsweredError(row.error_code, f"the coordinator of {what}", row.error_message)
        broker = Broker(broker_id=row.node_id, address=Address(row.host, row.port))
        self._known.setdefault(row.node_id, broker)
        node: BrokerId = row.node_id
        return node


async def view_from(handle: BrokerHandle, topics: Collection[str] | None) -> ClusterView:
    """Returns a broker's view of these topics.

    Errors: ConnectionFailedError, UnsupportedVersionError, BrokerAnsweredError.
    """
    asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    response = await handle.ask(
        MetadataRequest(topics=asked, allow_auto_topic_creation=False), at_least=NO_CREATION_SINCE
    )
    if response.error_code and is_retriable(response.error_code):
        raise ConnectionFailedError(f"{handle.address}: {BrokerAnsweredError(response.error_code, 'no metadata')}")
    if response.error_code:
        raise BrokerAnsweredError(response.error_code, "the metadata")
    return view_of(response)


def raise_for_error(handle: BrokerHandle, response: Any, what: str) -> None:
    """Raises the error of a whole answer, if there is one, as `ClusterConnections.ask_any` expects it.

    Errors: ConnectionFailedError if another broker or a later attempt may answer; BrokerAnsweredError.
    """
    if response.error_code and is_retriable(response.error_code):
        raise ConnectionFailedError(f"{handle.address}: {BrokerAnsweredError(response.error_code, what)}")
    if response.error_code:
        raise BrokerAnsweredError(response.error_code, what, getattr(response, "error_message", None))
