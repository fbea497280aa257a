"""Asking the controller: who is asked, how long one without an answer is waited for, and what is never forwarded twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lowtide.broker.administration.forwarding import CONTROLLER_WAIT_MS, Forwarder, was_forwarded
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.broker.network.routes import HandlerSpec
from lowtide.metadata.image import BrokerImage, ImageDelta, MetadataImage
from lowtide.metadata.records import Listener
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from lowtide.replication.refusal import Refusal
from lowtide.runtime.simulated_loop import SimulatedLoop

REQUEST = ListPartitionReassignmentsRequest(timeout_ms=30_000)
KEY = ApiKey.LIST_PARTITION_REASSIGNMENTS


class Session:
    """Broker 1, with an image that a test can change."""

    broker_id = 1

    def __init__(self, controller_id: int) -> None:
        self.changed = asyncio.Event()
        self.listeners: list[Any] = []
        self.show(controller_id)

    def show(self, controller_id: int, *, without: int | None = None) -> None:
        listener = Listener("PLAINTEXT", "host", 9000)
        brokers = {broker_id: BrokerImage(broker_id, broker_id, (listener,)) for broker_id in (1, 2, 3) if broker_id != without}
        old = getattr(self, "image", MetadataImage())
        self.image = MetadataImage(revision=old.revision + 1, controller_id=controller_id, brokers=brokers)
        self.changed.set()
        delta = ImageDelta(brokers_changed=tuple(old.brokers.keys() ^ brokers.keys()))
        for listens in self.listeners:
            listens(old, self.image, delta)

    def on_image(self, listens: Any) -> None:
        self.listeners.append(listens)

    @property
    def is_controller(self) -> bool:
        return self.image.controller_id == self.broker_id

    async def wait_for(self, revision: int) -> None:
        while self.image.revision < revision:
            self.changed.clear()
            await self.changed.wait()


class Peers:
    """Other brokers: each answers with its id, or as a test has it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, int]] = []
        self.failures: dict[int, PeerError] = {}
        self.silent: dict[tuple[int, str], list[asyncio.Future[str]]] = {}
        self.never_answer = False

    def forget_ended(self, _old: MetadataImage, _new: MetadataImage, changed: Any, purposes: Any) -> None:
        for broker_id in changed:
            for purpose in purposes:
                for waiting in self.silent.get((broker_id, purpose), ()):
                    waiting.set_exception(PeerError("the connection is not needed any more", was_sent=True))

    def client(self, broker_id: int, _listener: Listener, purpose: str) -> Any:
        peers = self

        class Client:
            async def request(self, _key: int, version: int, _message: object, _timeout_ms: int) -> str:
                peers.asked.append((broker_id, purpose, version))
                if broker_id in peers.failures:
                    raise peers.failures[broker_id]
                if peers.never_answer:
                    waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                    peers.silent.setdefault((broker_id, purpose), []).append(waiting)
                    return await waiting
                await asyncio.sleep(0.01)
                return f"broker {broker_id}"

        return Client()


class Context:
    api_version = 0

    def __init__(self, client_id: str | None) -> None:
        self.client_id = client_id


def play(scenario: Callable[[Session, Peers, Forwarder], Coroutine[Any, Any, None]], controller_id: int = 2) -> None:
    loop = SimulatedLoop(seed=1)

    async def run() -> None:
        session, peers = Session(controller_id), Peers()
        await scenario(session, peers, Forwarder(session, peers))  # type: ignore[arg-type]

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def test_the_controller_is_asked_over_as_many_connections_as_requests_wait() -> None:
    """A request holds the connection it came on, so one that takes long would hold up the others."""

    async def scenario(_session: Session, peers: Peers, forwarder: Forwarder) -> None:
        answers = await asyncio.gather(*(forwarder.ask(KEY, 0, REQUEST, 1000) for _ in range(3)))
        assert answers == ["broker 2"] * 3
        assert {purpose for _, purpose, _ in peers.asked} == {"forwarding-0", "forwarding-1", "forwarding-2"}
        assert await forwarder.ask(KEY, 0, REQUEST, 1000) == "broker 2"
        assert peers.asked[-1][1] == "forwarding-0"

    play(scenario)


def test_a_controller_that_cannot_be_reached_is_waited_for() -> None:
    """And so is one that nobody is; the next one is asked as soon as the image shows it."""

    async def scenario(session: Session, peers: Peers, forwarder: Forwarder) -> None:
        peers.failures[2] = PeerError("no route", was_sent=False)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        loop.call_later(2, session.show, -1)
        loop.call_later(4, session.show, 3)
        assert await forwarder.ask(KEY, 0, REQUEST, 30_000) == "broker 3"
        assert 4 <= loop.time() - begun < 4.2
        session.show(2)
        refusal = await forwarder.ask(KEY, 0, REQUEST, 30_000)
        assert isinstance(refusal, Refusal)
        assert refusal.error_code == ErrorCode.NOT_CONTROLLER
        assert loop.time() - begun < 4.3 + CONTROLLER_WAIT_MS / 1000

    play(scenario)


def test_a_broker_that_becomes_controller_meanwhile_decides_itself() -> None:
    """It isn't asked over the network."""

    async def scenario(session: Session, peers: Peers, forwarder: Forwarder) -> None:
        asyncio.get_running_loop().call_later(1, session.show, 1)
        assert await forwarder.ask(KEY, 0, REQUEST, 30_000) is None
        assert peers.asked == []

    play(scenario, controller_id=-1)


def test_what_was_sent_and_not_answered_is_not_sent_again() -> None:
    """It may have been done."""

    async def scenario(_session: Session, peers: Peers, forwarder: Forwarder) -> None:
        peers.failures[2] = PeerError("lost", was_sent=True)
        refusal = await forwarder.ask(KEY, 0, REQUEST, 30_000)
        assert isinstance(refusal, Refusal)
        assert refusal.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert len(peers.asked) == 1

    play(scenario)


def test_a_stopped_controller_is_given_up_when_its_registration_ends() -> None:
    """Its connections stay open, and the request waited for its whole time limit."""

    async def scenario(session: Session, peers: Peers, forwarder: Forwarder) -> None:
        peers.never_answer = True
        loop = asyncio.get_running_loop()
        begun = loop.time()
        loop.call_later(4, lambda: session.show(3, without=2))
        refusal = await forwarder.ask(KEY, 0, REQUEST, 30_000)
        assert isinstance(refusal, Refusal)
        assert refusal.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert loop.time() - begun < 5

    play(scenario)


def test_what_was_forwarded_is_answered_here() -> None:
    """Two brokers that take each other for the controller don't play ball; a request without time isn't worth sending."""

    async def scenario(session: Session, peers: Peers, forwarder: Forwarder) -> None:
        async def local(_request: object, _context: object) -> str:
            return "here"

        wrapped = forwarder.wrap(HandlerSpec(key=KEY, handle_later=local), lambda _request, _version, refusal: refusal)
        handle = wrapped.handle_later
        assert handle is not None
        assert await handle(REQUEST, Context("broker-3-forwarding-0")) == "here"
        assert await handle(ListPartitionReassignmentsRequest(timeout_ms=0), Context("me")) == "here"
        assert peers.asked == []
        assert await handle(REQUEST, Context("me")) == "broker 2"
        session.show(1)
        assert await handle(REQUEST, Context("me")) == "here"

    play(scenario)


@pytest.mark.parametrize(("client_id", "forwarded"), [(None, False), ("", False), ("forwarding", False), ("broker-12-forwarding-3", True)])
def test_client_ids(client_id: str | None, forwarded: bool) -> None:  # noqa: FBT001 - a parameter of the test.
    assert was_forwarded(client_id) == forwarded


def test_brokers_name_themselves_so_that_a_forwarded_request_is_known() -> None:
    """The client id of a peer's connection is the broker's, and the purpose."""
    clients = PeerClients(None, None, None, client_id="broker-1")  # type: ignore[arg-type]
    client = clients.client(2, Listener("PLAINTEXT", "host", 9000), "forwarding-0")
    connection = client._make_connection()  # noqa: SLF001 - it is the one place that composes the id
    assert was_forwarded(connection.core.client_id)
