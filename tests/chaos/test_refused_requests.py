"""A request with too many rows is answered with an error in every version of every API."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from lowtide.broker.network.large_requests import LargeRequests
from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.constructs import CountedArray, Entity
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.schema import wire_form
from lowtide.testing.cluster import LowtideCluster

from .large_frames import LargeFrames, framed

ROWS_MAX = 1_000
"""The smallest value that may be configured."""
FIELD_BYTES = 9 << 20
KEYS = sorted(key for key in API if LargeFrames(2, deep=True, names=["n"]).frame(key, API[key].max_version) is not None)


class Client:
    """One connection to a broker that accepts requests of `ROWS_MAX` rows."""

    def __init__(self, cluster: LowtideCluster) -> None:
        self._socket = socket.create_connection((cluster.host, cluster.port), timeout=30)

    def close(self) -> None:
        self._socket.close()

    def ask(self, frame: bytes) -> bytes | None:
        """The answer behind its correlation id; None if the connection was closed instead."""
        self._socket.sendall(frame)
        size = self._read(4)
        return self._read(struct.unpack(">i", size)[0])[4:] if size else None

    def serves(self) -> bool:
        return bool(self.ask(framed(ApiKey.API_VERSIONS, 0, b"")))

    def _read(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            piece = self._socket.recv(count - len(received))
            if not piece:
                return b""
            received += piece
        return received


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(config={"lowtide.request.rows.max": str(ROWS_MAX)}) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LowtideCluster) -> Iterator[Client]:
    client = Client(cluster)
    yield client
    client.close()


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of large requests of which a handler received a part."""
    names: list[str] = []

    def note(way: str) -> None:
        original = getattr(LargeRequests, way)

        def noted(self: LargeRequests, request: Any, *rest: Any) -> Any:
            names.append(request.route.name)
            return original(self, request, *rest)

        monkeypatch.setattr(LargeRequests, way, noted)

    for way in ("_whole", "_in_parts", "_waited_steps"):
        note(way)
    return names


def errors_of(message: Any, form: Entity) -> Iterator[int]:
    """The error codes of a response, at every level."""
    for name, content in form.fields:
        value = getattr(message, name)
        if name.endswith("error_code"):
            yield value
        if isinstance(content, CountedArray) and isinstance(content.element, Entity):
            for each in value:
                yield from errors_of(each, content.element)


def decoded(key: ApiKey, version: int, answer: bytes) -> Any:
    start = 1 if response_header_is_flexible(key, version) else 0
    return codec_for(API[key].response, version).decode(answer, start, len(answer))


def too_large(key: ApiKey, version: int) -> Iterator[bytes]:
    """Many outer rows, and many inner ones of one outer row."""
    names = [f"n{number}" for number in range(ROWS_MAX + 200)]
    for deep in (False, True):
        frame = LargeFrames(ROWS_MAX + 200, deep=deep, names=names).frame(key, version)
        assert frame is not None
        yield frame


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_a_request_of_too_many_rows_is_answered_with_an_error(client: Client, executed: list[str], key: ApiKey) -> None:
    """In each version, with only that error, and no row of it is executed."""
    for version in range(API[key].min_version, API[key].max_version + 1):
        if LargeFrames(2, deep=True, names=["n"]).frame(key, version) is None:
            continue
        for frame in too_large(key, version):
            answer = client.ask(frame)
            assert answer is not None, f"{key.name} v{version}: closed"
            codes = set(errors_of(decoded(key, version, answer), wire_form(API[key].response, version)))
            assert codes == {ErrorCode.INVALID_REQUEST}, f"{key.name} v{version}: {codes}"
            assert client.serves(), f"{key.name} v{version}"
    assert executed == []


def test_rows_of_a_refused_request_are_named(client: Client) -> None:
    """As many as a response of this kind may have: clients look for the rows that they requested."""
    frame = next(too_large(ApiKey.DELETE_TOPICS, 4))
    answer = client.ask(frame)
    assert answer is not None
    rows = decoded(ApiKey.DELETE_TOPICS, 4, answer).responses
    assert [row.name for row in rows] == [f"n{number}" for number in range(len(rows))]
    assert len(rows) == ROWS_MAX


def test_refused_produce_without_acknowledgement_closes_the_connection(client: Client) -> None:
    """Its client reads no response."""
    rows = [PartitionProduceData(index=number, records=b"") for number in range(ROWS_MAX + 1)]
    request = ProduceRequest(
        transactional_id=None, acks=0, timeout_ms=1000, topic_data=[TopicProduceData(name="x", partition_data=rows)]
    )
    assert client.ask(framed(ApiKey.PRODUCE, 9, codec_for(ProduceRequest, 9).encode(request))) is None


def test_a_very_large_field_is_refused_before_it_is_copied(client: Client, executed: list[str]) -> None:
    """A copy of it would block the loop for a time proportional to its size."""
    protocol = JoinGroupRequestProtocol(name="range", metadata=bytes(FIELD_BYTES))
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    answer = client.ask(framed(ApiKey.JOIN_GROUP, 5, codec_for(JoinGroupRequest, 5).encode(request)))
    assert answer is not None
    assert decoded(ApiKey.JOIN_GROUP, 5, answer).error_code == ErrorCode.INVALID_REQUEST
    assert executed == []
    assert client.serves()
