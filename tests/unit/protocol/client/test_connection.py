"""The core of a connection without sockets: each response goes to its request, or the connection breaks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.client import connection as core
from lowtide.protocol.client.connection import IN_FLIGHT_MAX, NEVER_MS, RECEIVE_BYTES, ClientConnection
from lowtide.protocol.client.opening import ClientSession
from lowtide.protocol.client.versions import ApiVersions, exchange_of
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import frame, response_header
from lowtide.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest

METADATA = MetadataRequest(topics=[])
FETCH = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[])
VERSION = 12
Core = ClientConnection[Any]


def answered(correlation_id: int, message: Any, key: ApiKey, version: int) -> bytes:
    flexible = exchange_of(API[key].request, version).answer_is_flexible
    return frame(response_header(correlation_id, flexible), codec_for(type(message), version).encode(message))


def metadata(correlation_id: int, brokers: int = 1) -> bytes:
    rows = [MetadataResponseBroker(node_id=number, host="h" * 50, port=1) for number in range(brokers)]
    return answered(correlation_id, MetadataResponse(brokers=rows, topics=[]), ApiKey.METADATA, VERSION)


def fetched(correlation_id: int, records: bytes) -> bytes:
    row = PartitionData(partition_index=0, error_code=0, high_watermark=7, records=records)
    message = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])
    return answered(correlation_id, message, ApiKey.FETCH, VERSION)


def records_of(answer: FetchResponse) -> Any:
    return answer.responses[0].partitions[0].records


def feed(connection: Core, received: bytes, piece: int = 1 << 30, now_ms: int = 0) -> list[tuple[Any, Any]]:
    """Let bytes arrive, `piece` at a time or as many as the buffer takes. Returns the responses."""
    answers: list[tuple[Any, Any]] = []
    position = 0
    while position < len(received) and connection.broken is None:
        buffer = connection.get_buffer()
        assert len(buffer)
        count = min(len(buffer), piece, len(received) - position)
        buffer[:count] = received[position : position + count]
        position += count
        answers += connection.receive(count, now_ms)
    return answers


def waiting(*waiters: Any, **given: Any) -> Core:
    """A connection on which Metadata requests wait."""
    connection = Core("me", **given)
    for waiter in waiters:
        connection.request(METADATA, VERSION, waiter)
    return connection


# ---------------------------------------------------------------------- requests
def test_requests_follow_kafkas_protocol():
    """SaslHandshake version 1 and SaslAuthenticate version 2, byte for byte by the protocol guide; ids count up."""
    connection = Core("me")
    assert (
        connection.request(SaslHandshakeRequest(mechanism="PLAIN"), 1, None).hex()
        == "00000013001100010000000100026d650005504c41494e"
    )
    encoded = connection.request(SaslAuthenticateRequest(auth_bytes=b"\0u\0p"), 2, None)
    assert encoded.hex() == "00000013002400020000000200026d6500050075007000"


def test_a_request_in_parts_is_the_same_request():
    whole = Core("me").request(METADATA, VERSION, None)
    assert b"".join(Core("me").request_parts(METADATA, VERSION, None)) == whole


def test_a_request_without_answer_does_not_wait_for_one():
    """Produce with acks=0: the next response is to the next request."""
    connection = Core("me")
    assert connection.request_without_answer(METADATA, VERSION) == Core("me").request(METADATA, VERSION, None)
    connection.request(METADATA, VERSION, "b")
    assert [waiter for waiter, _ in feed(connection, metadata(2))] == ["b"]


def test_requests_that_wait_are_bounded():
    connection = waiting(*range(IN_FLIGHT_MAX - 1))
    assert connection.refusal() is None
    connection.request(METADATA, VERSION, None)
    assert connection.refusal() == f"{IN_FLIGHT_MAX} requests are waiting for responses"
    with pytest.raises(AssertionError):
        connection.request(METADATA, VERSION, None)


def test_correlation_ids_begin_again_before_they_are_negative():
    connection = Core("me")
    connection._correlation_id = 0x7FFF_FFFF
    connection.request(METADATA, VERSION, "a")
    assert feed(connection, metadata(0))[0][0] == "a"


@pytest.mark.parametrize(("first", "second"), [(FETCH, FETCH), (FETCH, METADATA), (METADATA, FETCH)])
def test_a_fetch_has_its_own_connection_unless_records_are_copied(first: Any, second: Any):
    connection = Core("me")
    connection.request(first, VERSION, None)
    with pytest.raises(AssertionError, match="to itself"):
        connection.request(second, VERSION, None)
    assert connection.waiting_count == 1
    copying = Core("me", keeps_records=True)
    for request in (first, second):
        copying.request(request, VERSION, None)


# ---------------------------------------------------------------------- answers
@given(sizes=st.lists(st.integers(0, 40), max_size=8), cuts=st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_answers_come_in_order_however_the_stream_is_cut(sizes: list[int], cuts: list[int]):
    """No byte is left over."""
    connection = waiting(*range(len(sizes)))
    stream = b"".join(metadata(number + 1, size) for number, size in enumerate(sizes))
    answers: list[tuple[Any, Any]] = []
    position = piece = 0
    while position < len(stream):
        cut = cuts[piece % len(cuts)]
        answers += feed(connection, stream[position : position + cut])
        position, piece = position + cut, piece + 1
    assert [(waiter, len(answer.brokers)) for waiter, answer in answers] == list(enumerate(sizes))
    assert connection.broken is None
    assert not connection.waiting_count
    assert len(connection.get_buffer()) == RECEIVE_BYTES


def test_nothing_is_answered_before_the_last_byte():
    whole = metadata(1)
    for length in range(len(whole)):
        connection = waiting("a")
        assert feed(connection, whole[:length]) == []
        assert connection.broken is None
        assert [waiter for waiter, _ in feed(connection, whole[length:])] == ["a"]


def test_a_message_that_is_cut_short_in_its_frame_is_an_error():
    """For every length: the frame has a size, and the message in it is incomplete."""
    content = metadata(1)[4:]
    for length in range(len(content)):
        connection = waiting("a")
        assert feed(connection, frame(content[:length])) == []
        assert str(connection.broken).startswith("its response is invalid")
        assert connection.close("broken") == ["a"]


@pytest.mark.parametrize(
    ("received", "reason"),
    [
        (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes"),
        (b"\xff\xff\xff\xff", "a frame of -1 bytes"),
        ((1001).to_bytes(4, "big"), "a frame of 1001 bytes; allowed are 0 to 1000"),
        (metadata(2), "response 2 instead of 1"),
        (metadata(0), "response 0 instead of 1"),
        (frame(metadata(1)[4:], b"\0"), "1"),
        (frame(b"HTTP/1.1 400"), "a tagged field"),
    ],
)
def test_an_invalid_answer_breaks_the_connection(received: bytes, reason: str):
    connection = waiting("a", "b", frame_bytes_max=1000)
    assert feed(connection, received) == []
    assert reason in str(connection.broken)
    assert connection.close(str(connection.broken)) == ["a", "b"]


def test_answers_before_the_one_that_can_not_be_read_count():
    connection = waiting("a", "b")
    assert [waiter for waiter, _ in feed(connection, metadata(1) + metadata(7))] == ["a"]
    assert "response 7 instead of 2" in str(connection.broken)
    assert connection.close("broken") == ["b"]


def test_an_answer_to_no_request_breaks_the_connection():
    connection = waiting("a")
    assert len(feed(connection, metadata(1) * 2)) == 1
    assert "without a request" in str(connection.broken)


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest():
    refused = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)])
    connection = Core("me")
    connection.request(ApiVersionsRequest(), 4, "a")
    ((_, answer),) = feed(
        connection, frame(response_header(1, flexible=False), codec_for(ApiVersionsResponse, 0).encode(refused))
    )
    assert (answer.error_code, answer.api_keys[0].max_version) == (ErrorCode.UNSUPPORTED_VERSION, 2)


def test_an_answer_to_api_versions_is_read_in_the_version_of_the_request_and_may_be_cut_short():
    message = ApiVersionsResponse(error_code=0, api_keys=[], finalized_features_epoch=7)
    whole = answered(1, message, ApiKey.API_VERSIONS, 4)
    for length in range(len(whole) - 4 + 1):
        connection = Core("me")
        connection.request(ApiVersionsRequest(), 4, "a")
        answers = feed(connection, frame(whole[4 : 4 + length]))
        assert [answer.finalized_features_epoch for _, answer in answers] == ([7] if length == len(whole) - 4 else [])
        assert (connection.broken is None) is bool(answers)


# ---------------------------------------------------------------------- the buffer
def test_records_are_views_until_room_is_asked_for():
    connection = Core("me")
    connection.request(FETCH, VERSION, None)
    ((_, answer),) = feed(connection, fetched(1, b"r" * 1000))
    records = records_of(answer)
    assert isinstance(records, memoryview)
    connection.request(FETCH, VERSION, None)
    assert records == b"r" * 1000
    feed(connection, fetched(2, b"s" * 1000))
    assert records != b"r" * 1000


def test_records_may_be_kept_where_they_are_copied():
    connection = Core("me", keeps_records=True)
    kept = []
    for number in range(1, 4):
        connection.request(FETCH, VERSION, None)
        ((_, answer),) = feed(connection, fetched(number, bytes([number]) * 1000), piece=300)
        kept.append(records_of(answer))
    assert kept == [bytes([number]) * 1000 for number in range(1, 4)]


def test_the_buffer_grows_to_the_largest_answer_is_reused_and_freed():
    connection = Core("me")

    def buffer_after(number: int, size: int) -> Any:
        connection.request(FETCH, VERSION, None)
        ((_, answer),) = feed(connection, fetched(number, b"x" * size))
        assert records_of(answer) == b"x" * size
        return records_of(answer).obj

    small, large = buffer_after(1, 10), buffer_after(2, 2_000_000)
    assert len(small) == RECEIVE_BYTES
    assert 2_000_000 < len(large) < 2_001_000
    for number in range(3, 3 + core.SMALL_ANSWERS_UNTIL_SHRUNK):
        assert buffer_after(number, 5) is large
    assert len(buffer_after(3 + core.SMALL_ANSWERS_UNTIL_SHRUNK, 5)) == RECEIVE_BYTES


def test_a_buffer_that_just_fits_is_kept():
    connection = Core("me")
    connection.request(FETCH, VERSION, None)
    buffer = connection.get_buffer().obj
    rest = RECEIVE_BYTES - len(fetched(1, b"x" * 60_000))
    whole = fetched(1, b"x" * (60_000 + rest))
    assert len(whole) == RECEIVE_BYTES
    ((_, answer),) = feed(connection, whole, piece=1000)
    assert records_of(answer).obj is buffer


@pytest.mark.parametrize(("share", "is_kept"), [(7, True), (9, False)])
def test_answers_above_an_eighth_of_a_large_buffer_keep_it(share: int, is_kept: bool):
    connection = Core("me")
    connection.request(FETCH, VERSION, None)
    feed(connection, fetched(1, b"x" * 2_000_000))
    buffer = connection.get_buffer().obj
    for number in range(2, 2 + core.SMALL_ANSWERS_UNTIL_SHRUNK):
        connection.request(FETCH, VERSION, None)
        feed(connection, fetched(number, b"y" * (2_000_000 // share)))
    assert (connection.get_buffer().obj is buffer) is is_kept


class CountingBuffer(bytearray):
    """Counts the bytes that are moved within it."""

    moved = 0

    def __setitem__(self, place: Any, value: Any) -> None:
        self.moved += len(value)
        super().__setitem__(place, value)


def test_bytes_of_an_answer_are_moved_once_however_many_pieces_it_comes_in():
    """This also holds for a large buffer, which would be freed if no large response followed."""
    small = core.SMALL_ANSWERS_UNTIL_SHRUNK
    connection = waiting(*range(small + 2))
    feed(connection, metadata(1, 40_000))
    buffer = connection._buffer = CountingBuffer(connection._buffer)
    large = metadata(small + 2, 30_000)
    received = b"".join(metadata(number) for number in range(2, small + 2)) + large
    assert len(feed(connection, received[: 1000 - len(large)])) == small
    assert len(feed(connection, received[1000 - len(large) :], piece=50_000)) == 1
    assert connection._buffer is buffer
    assert buffer.moved == 1000


def test_a_frame_that_is_announced_reserves_no_more_than_the_limit():
    connection = waiting("a", frame_bytes_max=1 << 20)
    feed(connection, (1 << 20).to_bytes(4, "big"))
    assert len(connection.get_buffer()) == 1 << 20


# ---------------------------------------------------------------------- its life
def test_a_closed_connection_fails_waiting_requests_once_and_accepts_none():
    connection = waiting("a", "b")
    assert connection.close("enough") == ["a", "b"]
    assert connection.close("again") == []
    assert (connection.closed, connection.refusal(), connection.waiting_count) == (True, "enough", 0)


def test_a_session_is_proved_by_a_response_to_an_authenticated_request():
    """Earlier responses do not prove that the broker accepts the client."""
    connection = waiting("a", "b")
    feed(connection, metadata(1))
    assert (connection.in_session, connection.has_answered) == (False, True)
    connection.begin_session(ClientSession(ApiVersions({}), None), 0)
    assert (connection.in_session, connection.has_answered) == (True, False)
    feed(connection, metadata(2))
    assert connection.has_answered


def test_the_oldest_answer_has_a_moment_at_which_it_is_late():
    connection = Core("me")
    assert connection.due_ms == NEVER_MS
    connection.request(METADATA, VERSION, None, due_ms=70)
    connection.request(METADATA, VERSION, None, due_ms=50)
    assert connection.due_ms == 70
    feed(connection, metadata(1))
    assert connection.due_ms == 50


@pytest.mark.parametrize(
    ("usable_ms", "now_ms", "max_idle_ms", "is_usable"),
    [
        (None, 1999, 1000, True),
        (None, 2000, 1000, False),
        (None, 10**9, -1, True),
        (None, 1000, 0, False),
        (500, 1499, 1000, True),
        (500, 1500, 1000, False),
        (500, 1500, -1, False),
    ],
)
def test_a_connection_is_usable_until_it_was_idle_or_its_authentication_ends(
    usable_ms: int | None, now_ms: int, max_idle_ms: int, is_usable: bool
):
    connection = Core("me", now_ms=0)
    connection.request(METADATA, VERSION, None)
    feed(connection, metadata(1), now_ms=1000)
    connection.begin_session(ClientSession(ApiVersions({}), usable_ms), 1000)
    assert connection.is_usable(now_ms, max_idle_ms) is is_usable
    if usable_ms is None:
        connection.request(METADATA, VERSION, None)
        assert connection.is_usable(now_ms, max_idle_ms), "a connection with waiting requests is not idle"
