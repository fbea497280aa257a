"""Forwarding to the controller.

The recipient, the time to wait for an answer, and requests that are never forwarded twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lowtide.broker.administration.envelopes import OF_THE_BROKER, Origin, answered, open_envelope
from lowtide.broker.administration.forwarding import (
    CONNECTIONS_MAX,
    CONNECTIONS_SHARE,
    CONTROLLER_WAIT_MS,
    Forwarder,
)
from lowtide.broker.network.peer_client import PeerError
from lowtide.broker.network.routing.routes import Forwarding
from lowtide.broker.promises import promised
from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.metadata.image import BrokerImage, ImageDelta, MetadataImage
from lowtide.metadata.records import LOG_START_REPORTING_LEVEL, NEWEST_LEVEL, Listener
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.envelope import EnvelopeResponse
from lowtide.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from lowtide.replication.refusal import Refusal
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.runtime.tasks import TaskRegistry
from tests.scenarios import played_by
from tests.unit.broker.declared import spec_of

REQUEST = ListPartitionReassignmentsRequest(timeout_ms=30_000)
KEY = ApiKey.LIST_PARTITION_REASSIGNMENTS
FORWARDING = Forwarding(lambda _request, _version, refusal: refusal)


class Session:
    """Broker 1, with an image that a test can change."""

    broker_id = 1

    def __init__(self, controller_id: int) -> None:
        self.changed = asyncio.Event()
        self.listeners: list[Any] = []
        self.level = NEWEST_LEVEL
        self.show(controller_id)

    def show(self, controller_id: int, *, without: int | None = None) -> None:
        listener = Listener("PLAINTEXT", "host", 9000)
        ids = [broker_id for broker_id in (1, 2, 3) if broker_id != without]
        brokers = {
            broker_id: BrokerImage(broker_id, broker_id, (listener,), metadata_level=self.level) for broker_id in ids
        }
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
    """Other brokers: each answers with its id, or as a test sets it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, int]] = []
        self.failures: dict[int, PeerError] = {}
        self.silent: dict[tuple[int, str], list[asyncio.Future[EnvelopeResponse]]] = {}
        self.never_answer = False
        self.asked_silently: list[str] = []
        self.disconnected: list[str] = []
        self.know_no_envelopes = False
        self.origins: list[Origin] = []
        self.error_code = 0

    def forget_ended(self, _old: MetadataImage, _new: MetadataImage, changed: Any, purposes: Any) -> None:
        for broker_id in changed:
            for purpose in purposes:
                for waiting in self.silent.get((broker_id, purpose), ()):
                    waiting.set_exception(PeerError("the connection is not needed any more", was_sent=True))

    def client_of(self, broker: BrokerImage, purpose: str) -> Any:
        peers, broker_id = self, broker.broker_id

        class Client:
            async def request(self, key: int, version: int, envelope: Any, _timeout_ms: int) -> Any:
                if peers.know_no_envelopes:
                    if key == ApiKey.ENVELOPE:
                        raise PeerError("it closed the connection", was_sent=True)
                    assert (key, version, envelope) == (KEY, 0, REQUEST)
                    peers.asked.append((broker_id, purpose, version))
                    return answer_of(broker_id)
                assert key == ApiKey.ENVELOPE
                inner = open_envelope(envelope, lambda key, _version: key == KEY)
                assert (inner.key, inner.body) == (KEY, REQUEST)
                peers.asked.append((broker_id, purpose, inner.version))
                peers.origins.append(inner.origin)
                if broker_id in peers.failures:
                    raise peers.failures[broker_id]
                if peers.never_answer:
                    waiting: asyncio.Future[EnvelopeResponse] = asyncio.get_running_loop().create_future()
                    peers.silent.setdefault((broker_id, purpose), []).append(waiting)
                    peers.asked_silently.append(inner.origin.client_address)
                    return await waiting
                await asyncio.sleep(0.01)
                if peers.error_code:
                    return EnvelopeResponse(error_code=peers.error_code)
                return answered(inner, answer_of(broker_id))

            def disconnect(self, _reason: str) -> None:
                peers.disconnected.append(purpose)

        return Client()


def answer_of(broker_id: int) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=0, error_message=f"broker {broker_id}", topics=[])


class Context:
    api_version = 0

    principal, client_address, correlation_id = KafkaPrincipal("User", "alice"), "10.0.0.7", 5

    def __init__(self, client_id: str | None, *, forwarded: bool = False) -> None:
        self.client_id = client_id
        self.forwarded = forwarded


def play(scenario: Callable[[Session, Peers, Forwarder], Coroutine[Any, Any, None]], controller_id: int = 2) -> None:
    loop = SimulatedLoop(seed=1)

    async def run() -> None:
        session, peers = Session(controller_id), Peers()
        await scenario(session, peers, Forwarder(session, peers))

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


@played_by(play)
async def test_the_controller_is_asked_over_as_many_connections_as_requests_wait(
    _session: Session, peers: Peers, forwarder: Forwarder, /
) -> None:
    """A request occupies its connection, so a long one would delay the others."""
    answers = await asyncio.gather(*(forwarder.ask(KEY, 0, REQUEST, 1000) for _ in range(3)))
    assert answers == [answer_of(2)] * 3
    assert {purpose for _, purpose, _ in peers.asked} == {"forwarding-0", "forwarding-1", "forwarding-2"}
    assert await forwarder.ask(KEY, 0, REQUEST, 1000) == answer_of(2)
    assert peers.asked[-1][1] == "forwarding-0"


@played_by(play)
async def test_a_controller_of_a_version_without_envelopes_is_asked_without_one(
    session: Session, peers: Peers, forwarder: Forwarder, /
) -> None:
    """During an upgrade. It once closed the connection, and an upgraded broker could not create topics."""
    peers.know_no_envelopes = True
    session.level = LOG_START_REPORTING_LEVEL
    session.show(2)
    assert await forwarder.ask(KEY, 0, REQUEST, 1000) == answer_of(2)
    assert peers.asked == [(2, "forwarding-0", 0)], (
        "the purpose is in the client id, by which it knows what is forwarded"
    )


@played_by(play)
async def test_a_controller_that_cannot_be_reached_is_waited_for(
    session: Session, peers: Peers, forwarder: Forwarder, /
) -> None:
    """So is a missing controller; the next one is asked as soon as the image has it."""
    peers.failures[2] = PeerError("no route", was_sent=False)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    loop.call_later(2, session.show, -1)
    loop.call_later(4, session.show, 3)
    assert await forwarder.ask(KEY, 0, REQUEST, 30_000) == answer_of(3)
    assert 4 <= loop.time() - begun < 4.2
    session.show(2)
    refusal = await forwarder.ask(KEY, 0, REQUEST, 30_000)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.NOT_CONTROLLER
    assert loop.time() - begun < 4.3 + CONTROLLER_WAIT_MS / 1000


def test_a_broker_that_becomes_controller_meanwhile_decides_itself() -> None:
    """It does not ask itself over the network."""

    async def scenario(session: Session, peers: Peers, forwarder: Forwarder) -> None:
        asyncio.get_running_loop().call_later(1, session.show, 1)
        assert await forwarder.ask(KEY, 0, REQUEST, 30_000) is None
        assert peers.asked == []

    play(scenario, controller_id=-1)


@played_by(play)
async def test_what_was_sent_and_not_answered_is_not_sent_again(
    _session: Session, peers: Peers, forwarder: Forwarder, /
) -> None:
    """It may have been executed."""
    peers.failures[2] = PeerError("lost", was_sent=True)
    refusal = await forwarder.ask(KEY, 0, REQUEST, 30_000)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert len(peers.asked) == 1


@played_by(play)
async def test_a_stopped_controller_is_not_waited_for_when_its_registration_ends(
    session: Session, peers: Peers, forwarder: Forwarder, /
) -> None:
    """Its connections stay open, and the request once waited for its whole time limit."""
    peers.never_answer = True
    loop = asyncio.get_running_loop()
    begun = loop.time()
    loop.call_later(4, lambda: session.show(3, without=2))
    refusal = await forwarder.ask(KEY, 0, REQUEST, 30_000)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert loop.time() - begun < 5


@played_by(play)
async def test_a_client_that_goes_frees_the_connection_to_the_controller(
    _session: Session, peers: Peers, forwarder: Forwarder, /
) -> None:
    """It also closes the connection, so that no later request waits behind an abandoned one."""
    peers.never_answer = True
    tasks = TaskRegistry(lambda _name, error: None)
    answer = promised(lambda: forwarder.ask(KEY, 0, REQUEST, 30_000), tasks.spawn, name="forwarded")
    await asyncio.sleep(1)
    assert len(peers.asked_silently) == 1
    answer.abandon()
    await asyncio.sleep(0.1)
    assert peers.disconnected == ["forwarding-0"]
    assert len(tasks) == 0
    peers.never_answer = False
    assert await forwarder.ask(KEY, 0, REQUEST, 1000) == answer_of(2)
    assert peers.asked[-1][1] == "forwarding-0"


@played_by(play)
async def test_one_client_does_not_take_all_connections_to_the_controller(
    _session: Session, peers: Peers, forwarder: Forwarder, /
) -> None:
    peers.never_answer = True
    tasks = TaskRegistry(lambda _name, _error: None)
    greedy = Origin(KafkaPrincipal("User", "greedy"), "10.0.0.1")
    for _ in range(2 * CONNECTIONS_MAX):
        tasks.spawn(forwarder.ask(KEY, 0, REQUEST, 30_000, greedy), name="greedy")
    await asyncio.sleep(1)
    held = {purpose for _, purpose, _ in peers.asked}
    assert len(held) == CONNECTIONS_SHARE + 1
    peers.never_answer = False
    assert await forwarder.ask(KEY, 0, REQUEST, 1000, Origin(KafkaPrincipal("User", "alice"))) == answer_of(2)
    assert peers.asked[-1][1] not in held
    await tasks.cancel_all()


@played_by(play)
async def test_what_was_forwarded_is_answered_here(session: Session, peers: Peers, forwarder: Forwarder, /) -> None:
    """Two brokers that consider each other the controller do not forward in a circle.

    A request without time left is not sent.
    """

    async def local(_request: object, _context: object) -> str:
        return "here"

    wrapped = forwarder.wrap(spec_of(KEY, handle_later=local, forwarding=FORWARDING))
    handle = wrapped.handle_later
    assert handle is not None
    assert await handle(REQUEST, Context("me", forwarded=True)) == "here"
    assert await handle(ListPartitionReassignmentsRequest(timeout_ms=0), Context("me")) == "here"
    assert peers.asked == []
    assert await handle(REQUEST, Context("me")) == answer_of(2)
    session.show(1)
    assert await handle(REQUEST, Context("me")) == "here"


@played_by(play)
async def test_the_controller_gets_the_client_of_a_request(
    _session: Session, peers: Peers, forwarder: Forwarder, /
) -> None:
    """For its quotas and its audit log. What a broker asks for itself has no client."""

    async def local(_request: object, _context: object) -> None: ...

    handle = forwarder.wrap(spec_of(KEY, handle_later=local, forwarding=FORWARDING)).handle_later
    assert handle is not None
    await handle(REQUEST, Context("broker-3-forwarding-0"))
    await forwarder.ask(KEY, 0, REQUEST, 1000)
    assert peers.origins == [
        Origin(KafkaPrincipal("User", "alice"), "10.0.0.7", "broker-3-forwarding-0", 5),
        OF_THE_BROKER,
    ]


@pytest.mark.parametrize(("given", "code"), [(31, 31), (42, -1), (-1, -1)])
@played_by(play)
async def test_a_controller_that_does_not_take_the_envelope(
    _session: Session, peers: Peers, forwarder: Forwarder, /, given: int, code: int
) -> None:
    peers.error_code = given
    refusal = await forwarder.ask(KEY, 0, REQUEST, 1000)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == code
