"""Requests to another broker, against scripted servers: on the simulated loop, asyncio and uvloop."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any

import pytest
import uvloop

from lowtide.broker.network.peer_client import BACKOFF, PeerClient, PeerClients, PeerError
from lowtide.metadata.broker_image import BrokerImage
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import Listener
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.client.connection import IN_FLIGHT_MAX, RECEIVE_BYTES
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.headers import frame, read_request_header, response_header
from lowtide.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.network import bound_port, listen
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.tasks import TaskRegistry

PORT = 9092
FETCH = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[])
VERSIONS = ApiVersionsRequest()
_LENGTH = Struct(">i")


class Log:
    """Keeps log events."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, **_values: object) -> None:
        self.lines.append(event)

    warning = error = info


class ScriptedPeer(asyncio.Protocol):
    """Passes each request to `script`, which returns bytes of its choice, or None for no response."""

    def __init__(self, script: Callable[[int, int, int], bytes | None], peers: list[ScriptedPeer]) -> None:
        self.received = bytearray()
        self.requests: list[tuple[int, int]] = []
        self.client_ids: list[str | None] = []
        self.script = script
        self.transport: Any = None
        peers.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= 4:
            (size,) = _LENGTH.unpack_from(self.received)
            if len(self.received) < 4 + size:
                return
            request = bytes(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            key, version, correlation_id, client_id, _position = read_request_header(request, 0, size)
            self.requests.append((key, version))
            self.client_ids.append(client_id)
            answer = self.script(key, version, correlation_id)
            if answer is not None:
                self.transport.write(answer)


def answer_of(key: int, version: int, correlation_id: int, message: Any) -> bytes:
    flexible = key == ApiKey.FETCH and version >= 12
    return frame(
        response_header(correlation_id, flexible), codec_for(API[ApiKey(key)].response, version).encode(message)
    )


def versions_answer(number: int) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=0, api_keys=[ApiVersion(api_key=1, min_version=0, max_version=number)])


def fetch_answer(records: bytes) -> FetchResponse:
    row = PartitionData(partition_index=0, error_code=0, high_watermark=7, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])


def echo(key: int, version: int, correlation_id: int) -> bytes:
    message = fetch_answer(b"r" * correlation_id) if key == ApiKey.FETCH else versions_answer(correlation_id)
    return answer_of(key, version, correlation_id, message)


class Scene:
    """One client, and a peer at the address that it uses."""

    def __init__(self, clock: Any, host: str, port: int) -> None:
        self.log = Log()
        self.failures: list[str] = []
        self.tasks = TaskRegistry(lambda name, error: self.failures.append(f"{name}: {error!r}"))
        self.asking = TaskRegistry(lambda _name, _error: None)
        self.clients = PeerClients(clock, self.tasks, self.log, client_id="broker-1")
        self.listener = Listener("PLAINTEXT", host, port)

    def client(self, purpose: str = "requests") -> PeerClient:
        return self.clients.client(2, self.listener, purpose)

    async def close(self) -> None:
        self.clients.close()
        await self.tasks.cancel_all()
        assert self.failures == []


def simulated(
    body: Callable[[Scene, SimulatedLoop, list[ScriptedPeer]], Awaitable[None]],
    script: Callable[[int, int, int], bytes | None] | None = echo,
    *,
    peers: list[ScriptedPeer] | None = None,
) -> None:
    """Run `body` on one node of a simulated network, the peer on another. Without a script nothing listens."""

    peers = [] if peers is None else peers

    async def main(loop: SimulatedLoop) -> None:
        peer, own = loop.start_node("peer"), loop.start_node("own")
        if script is not None:
            await peer.spawn(listen(lambda: ScriptedPeer(script, peers), "", PORT))

        async def client_side() -> None:
            scene = Scene(SimulatedClock(loop), "peer", PORT)
            await body(scene, loop, peers)
            await scene.close()

        await own.spawn(client_side())
        assert loop.failures() == []

    run_simulation(main, 1)


def test_requests_of_one_client_share_a_connection_and_are_answered_in_order() -> None:
    async def body(scene: Scene, _loop: SimulatedLoop, peers: list[ScriptedPeer]) -> None:
        requests = [
            scene.asking.spawn(scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000), name=f"{i}")
            for i in range(50)
        ]
        answers = [await request for request in requests]
        assert [answer.api_keys[0].max_version for answer in answers] == list(range(1, 51))
        assert len(peers) == 1
        assert set(peers[0].client_ids) == {"broker-1-requests"}

    simulated(body)


def test_each_purpose_has_a_connection_of_its_own() -> None:
    async def body(scene: Scene, _loop: SimulatedLoop, peers: list[ScriptedPeer]) -> None:
        await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000)
        await scene.client("fetch").request(ApiKey.FETCH, 17, FETCH, 1000)
        assert [peer.requests for peer in peers] == [[(18, 3)], [(1, 17)]]

    simulated(body)


@pytest.mark.parametrize("version", [4, 12, 17, 18])
def test_records_of_a_fetch_are_views_of_one_buffer_that_grows_to_the_largest_answer(version: int) -> None:
    sizes = [10, RECEIVE_BYTES * 5, 0, 30, RECEIVE_BYTES * 2]

    def script(key: int, api_version: int, correlation_id: int) -> bytes:
        return answer_of(
            key, api_version, correlation_id, fetch_answer(bytes([correlation_id]) * sizes[correlation_id - 1])
        )

    async def body(scene: Scene, _loop: SimulatedLoop, _peers: list[ScriptedPeer]) -> None:
        buffers = []
        for number, size in enumerate(sizes):
            answer = await scene.client("fetch").request(ApiKey.FETCH, version, FETCH, 1000)
            records = answer.responses[0].partitions[0].records
            assert isinstance(records, memoryview)
            assert records == bytes([number + 1]) * size
            buffers.append(records.obj)
        assert buffers[0] is not buffers[1]
        assert buffers[1] is buffers[2] is buffers[3] is buffers[4]

    simulated(body, script)


def test_a_large_buffer_is_freed_after_many_small_answers() -> None:
    def script(key: int, version: int, correlation_id: int) -> bytes:
        return answer_of(key, version, correlation_id, fetch_answer(b"x" * (2_000_000 if correlation_id == 1 else 5)))

    async def body(scene: Scene, _loop: SimulatedLoop, _peers: list[ScriptedPeer]) -> None:
        sizes = []
        for _ in range(300):
            answer = await scene.client("fetch").request(ApiKey.FETCH, 12, FETCH, 1000)
            sizes.append(len(answer.responses[0].partitions[0].records.obj))
        assert sizes[0] > 2_000_000
        assert sizes[-1] == RECEIVE_BYTES

    simulated(body, script)


def test_no_answer_in_time_closes_the_connection_and_fails_all_that_waits_on_it() -> None:
    async def body(scene: Scene, loop: SimulatedLoop, peers: list[ScriptedPeer]) -> None:
        other = scene.asking.spawn(scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 60_000), name="other")
        started = loop.time()
        with pytest.raises(PeerError, match="broker 2 did not answer within 700 ms") as raised:
            await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 700)
        assert raised.value.was_sent
        assert loop.time() - started == pytest.approx(0.7)
        with pytest.raises(PeerError, match="did not answer in time"):
            await other
        peers[0].script = echo
        await asyncio.sleep(0.1)
        assert peers[0].transport.is_closing()

    simulated(body, lambda *_: None)


def test_no_request_waits_for_a_broker_whose_registration_has_ended() -> None:
    """A broker without power closes nothing: the end of a transaction must not wait for it as for a running broker."""

    def image(*brokers: tuple[int, int]) -> MetadataImage:
        return MetadataImage(brokers={number: BrokerImage(number, epoch, ()) for number, epoch in brokers})

    async def body(scene: Scene, loop: SimulatedLoop, _peers: list[ScriptedPeer]) -> None:
        def ask(purpose: str) -> asyncio.Task[Any]:
            return scene.asking.spawn(
                scene.client(purpose).request(ApiKey.API_VERSIONS, 3, VERSIONS, 30_000), name=purpose
            )

        transactions, other = ask("transactions"), ask("other")
        await asyncio.sleep(1)
        started = loop.time()
        scene.clients.forget_ended(image((2, 7)), image((2, 7), (3, 8)), [2, 3], ("transactions",))
        await asyncio.sleep(1)
        assert not transactions.done()
        scene.clients.forget_ended(image((2, 7)), image(), [2], ("transactions",))
        with pytest.raises(PeerError, match="not needed any more"):
            await transactions
        assert loop.time() - started < 2
        anew = ask("transactions")
        await asyncio.sleep(1)
        scene.clients.forget_ended(image((2, 7)), image((2, 9)), [2], ("transactions",))
        with pytest.raises(PeerError, match="not needed any more"):
            await anew
        assert not other.done()
        other.cancel()

    simulated(body, lambda *_: None)


def test_a_request_that_is_cancelled_does_not_disturb_the_others() -> None:
    async def body(scene: Scene, _loop: SimulatedLoop, peers: list[ScriptedPeer]) -> None:
        await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000)
        first = scene.asking.spawn(scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000), name="first")
        second = scene.asking.spawn(scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000), name="second")
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).api_keys[0].max_version == 3
        assert len(peers) == 1

    simulated(body)


def test_a_fetch_that_is_cancelled_closes_its_connection() -> None:
    """Its response would overwrite the records of the next one."""

    async def body(scene: Scene, _loop: SimulatedLoop, peers: list[ScriptedPeer]) -> None:
        await scene.client("fetch").request(ApiKey.FETCH, 12, FETCH, 1000)
        first = scene.asking.spawn(scene.client("fetch").request(ApiKey.FETCH, 12, FETCH, 1000), name="first")
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        await scene.client("fetch").request(ApiKey.FETCH, 12, FETCH, 1000)
        assert len(peers) == 2

    simulated(body)


def test_a_second_fetch_under_way_is_a_bug() -> None:
    async def body(scene: Scene, _loop: SimulatedLoop, _peers: list[ScriptedPeer]) -> None:
        await scene.client("fetch").request(ApiKey.FETCH, 12, FETCH, 1000)
        first = scene.asking.spawn(scene.client("fetch").request(ApiKey.FETCH, 12, FETCH, 1000), name="first")
        await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="to itself"):
            await scene.client("fetch").request(ApiKey.FETCH, 12, FETCH, 1000)
        await first

    simulated(body)


def test_attempts_to_connect_back_off_up_to_a_second_and_are_logged_once() -> None:
    async def body(scene: Scene, loop: SimulatedLoop, _peers: list[ScriptedPeer]) -> None:
        times = []
        for _ in range(8):
            with pytest.raises(PeerError, match="refused") as raised:
                await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 5000)
            assert not raised.value.was_sent
            times.append(loop.time())
        waits = [round((after - before) * 1000) for before, after in zip(times, times[1:], strict=False)]  # noqa: RUF007
        assert all(
            abs(wait - expected) <= 5
            for wait, expected in zip(waits, [50, 100, 200, 400, 800, 1000, 1000], strict=True)
        ), waits
        assert scene.log.lines == ["broker can't be reached"]
        peer = loop.nodes["peer"]
        await peer.spawn(listen(lambda: ScriptedPeer(echo, []), "", PORT))
        await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 5000)
        assert scene.log.lines == ["broker can't be reached", "broker is reached again"]

    simulated(body, None)


def test_a_peer_that_closes_before_any_response_is_not_flooded() -> None:
    peers_seen: list[ScriptedPeer] = []

    def hang_up(*_: int) -> None:
        peers_seen[-1].transport.close()

    async def body(scene: Scene, loop: SimulatedLoop, _peers: list[ScriptedPeer]) -> None:
        for _ in range(2):
            with pytest.raises(PeerError, match="closed"):
                await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 5000)
        started = loop.time()
        with pytest.raises(PeerError):
            await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 5000)
        assert loop.time() - started > 0.09

    simulated(body, hang_up, peers=peers_seen)


def test_a_lost_connection_fails_what_waits_and_the_next_request_opens_another() -> None:
    async def body(scene: Scene, loop: SimulatedLoop, peers: list[ScriptedPeer]) -> None:
        await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000)
        peers[0].script = lambda *_: None
        waiting = scene.asking.spawn(scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 60_000), name="waiting")
        await asyncio.sleep(0.1)
        peers[0].transport.abort()
        with pytest.raises(PeerError, match="clos|lost") as raised:
            await waiting
        assert raised.value.was_sent
        started = loop.time()
        await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000)
        assert loop.time() - started < 0.01
        assert len(peers) == 2

    simulated(body)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes"),
        (b"\xff\xff\xff\xff", "a frame of -1 bytes"),
        (frame(b"\0\0\0\x09", b"\0"), "response 9 instead of 1"),
        (frame(b"\0\0\0\x01", b"\0"), "its response is invalid"),
        (frame(b"\0\0"), "its response is invalid"),
    ],
)
def test_an_invalid_response_ends_the_connection(answer: bytes, reason: str) -> None:
    async def body(scene: Scene, _loop: SimulatedLoop, _peers: list[ScriptedPeer]) -> None:
        with pytest.raises(PeerError, match=reason) as raised:
            await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000)
        assert raised.value.was_sent

    simulated(body, lambda *_: answer)


def test_an_unexpected_response_ends_the_connection() -> None:
    def script(key: int, version: int, correlation_id: int) -> bytes:
        return echo(key, version, correlation_id) * 2

    async def body(scene: Scene, _loop: SimulatedLoop, peers: list[ScriptedPeer]) -> None:
        await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000)
        await asyncio.sleep(0.1)
        assert peers[0].transport.is_closing()

    simulated(body, script)


def test_requests_under_way_are_bounded() -> None:
    async def body(scene: Scene, _loop: SimulatedLoop, peers: list[ScriptedPeer]) -> None:
        client = scene.client()
        await client.request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000)
        peers[0].script = lambda *_: None
        tasks = [
            scene.asking.spawn(client.request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000), name="r")
            for _ in range(IN_FLIGHT_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(PeerError, match="are waiting for responses") as raised:
            await client.request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000)
        assert not raised.value.was_sent
        for task in tasks:
            with pytest.raises(PeerError):
                await task

    simulated(body)


def test_a_broker_with_a_new_address_gets_another_connection_and_closing_fails_what_waits() -> None:
    async def body(scene: Scene, _loop: SimulatedLoop, _peers: list[ScriptedPeer]) -> None:
        client = scene.client()
        waiting = scene.asking.spawn(client.request(ApiKey.API_VERSIONS, 3, VERSIONS, 60_000), name="waiting")
        await asyncio.sleep(0.1)
        assert scene.clients.client(2, Listener("OTHER", "peer", PORT)) is client
        assert scene.clients.client(2, Listener("PLAINTEXT", "peer", PORT + 1)) is not client
        with pytest.raises(PeerError, match="not needed"):
            await waiting
        with pytest.raises(PeerError, match="not needed"):
            await client.request(ApiKey.API_VERSIONS, 3, VERSIONS, 60_000)

    simulated(body, lambda *_: None)


def test_a_peer_cut_off_is_given_up_in_time_and_reached_again() -> None:
    async def body(scene: Scene, loop: SimulatedLoop, _peers: list[ScriptedPeer]) -> None:
        client = scene.client()
        await client.request(ApiKey.API_VERSIONS, 3, VERSIONS, 1000)
        loop.network.cut("own", "peer")
        for _ in range(3):
            with pytest.raises(PeerError, match="did not answer within"):
                await client.request(ApiKey.API_VERSIONS, 3, VERSIONS, 500)
        loop.network.heal()
        await client.request(ApiKey.API_VERSIONS, 3, VERSIONS, 20_000)

    simulated(body)


def test_the_longest_back_off_is_a_second() -> None:
    assert BACKOFF.max_ms == 1000


def test_a_fetch_costs_few_calls() -> None:
    """Followers fetch thousands of times a second.

    The test counts calls of Python functions in the client and its core.
    """
    rounds, calls = 100, Counter[str]()

    def on_event(frame: Any, event: str, _argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.endswith(("network/peer_client.py", "client/connection.py", "client/versions.py")):
            calls[frame.f_code.co_qualname] += 1

    async def body(scene: Scene, _loop: SimulatedLoop, _peers: list[ScriptedPeer]) -> None:
        client = scene.client("fetch")
        await client.request(ApiKey.FETCH, 12, FETCH, 1000)
        sys.setprofile(on_event)
        try:
            for _ in range(rounds):
                await client.request(ApiKey.FETCH, 12, FETCH, 1000)
        finally:
            sys.setprofile(None)

    simulated(body)
    assert calls["PeerClient.request"], "nothing was counted"
    assert calls.total() <= 16 * rounds, calls


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_runs_on_real_sockets(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    def script(key: int, version: int, correlation_id: int) -> bytes | None:
        if key == ApiKey.FETCH:
            return answer_of(
                key, version, correlation_id, fetch_answer(bytes([correlation_id]) * (correlation_id * 700_000))
            )
        return echo(key, version, correlation_id) if correlation_id < 100 else None

    async def main() -> None:
        peers: list[ScriptedPeer] = []
        server = await listen(lambda: ScriptedPeer(script, peers), "127.0.0.1", 0)
        scene = Scene(SystemClock(), "127.0.0.1", bound_port(server))
        for number in (1, 2, 3):
            answer = await scene.client("fetch").request(ApiKey.FETCH, 17, FETCH, 10_000)
            assert answer.responses[0].partitions[0].records == bytes([number]) * (number * 700_000)
        for _ in range(99):
            await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 10_000)
        with pytest.raises(PeerError, match="did not answer within 20 ms"):
            await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 20)
        server.close()
        for peer in peers:
            peer.transport.abort()
        await server.wait_closed()
        with pytest.raises(PeerError):
            await scene.client().request(ApiKey.API_VERSIONS, 3, VERSIONS, 10_000)
        await scene.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize(
    ("ours", "theirs", "used"),
    [
        ("OPEN", "OPEN", "OPEN"),
        ("SECURE", "OPEN", "SECURE"),
        ("OPEN", "SECURE", "OPEN"),
        ("OTHER", "SECURE", "SECURE"),
        ("", "", "OPEN"),
    ],
)
def test_a_broker_reaches_others_at_the_listener_that_it_uses_itself(ours: str, theirs: str, used: str) -> None:
    """While `inter.broker.listener.name` changes broker by broker, each uses the protocol that a port serves."""
    listeners = (Listener("OPEN", "host", 9092), Listener("SECURE", "host", 9093))
    broker = BrokerImage(2, 1, listeners, inter_broker_listener=theirs)
    clients = PeerClients(None, None, None, listener_name=ours)
    assert clients.client_of(broker).listener.name == used
