"""The dispatcher: what is served, how the rest is refused, and which client bugs are tolerated."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.guards.guard import FOR_EVERYONE
from lowtide.broker.network.routing.answer_cache import AnswerCache
from lowtide.broker.network.routing.dispatcher import SURPLUS_SERIES_MAX, Dispatcher, SurplusBytes
from lowtide.broker.network.routing.routes import HandlerSpec, JointForm, Route
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.api_versions import ApiVersionsResponse
from lowtide.protocol.messages.metadata import MetadataResponse
from lowtide.runtime.tasks import TaskRegistry


def make(*keys: ApiKey, maximum: dict[ApiKey, int] | None = None) -> Dispatcher:
    dispatcher = Dispatcher(spawn=lambda coro, *, name: None, maximum_versions=maximum or {})
    dispatcher.register(
        [HandlerSpec(key=key, guard=FOR_EVERYONE, handle=lambda request, context: request) for key in keys]
    )
    return dispatcher


def read(dispatcher: Dispatcher, key: ApiKey, version: int, body: bytes) -> Any:
    frame = request_header(key, version, 7, "client") + body
    route = dispatcher.routes[key, version]
    assert route is not None
    return route.read(memoryview(frame), 0, len(frame), route.rows_max, route.is_flexible)


def test_only_registered_apis_and_versions_have_routes() -> None:
    dispatcher = make(ApiKey.METADATA)
    low, high = API[ApiKey.METADATA].min_version, API[ApiKey.METADATA].max_version
    assert dispatcher.routes[ApiKey.METADATA, low] is not None
    assert dispatcher.routes[ApiKey.METADATA, high] is not None
    for key, version in ((ApiKey.METADATA, high + 1), (ApiKey.METADATA, -1), (ApiKey.FETCH, 12), (-5, 0), (32767, 0)):
        assert dispatcher.routes[key, version] is None


def test_a_handler_that_is_wrapped_loses_its_joint_form() -> None:
    """It would go past what is around the handler: a guard, a quota, a line of the audit log."""
    joint = JointForm(lambda *_: None, lambda *_: None)
    spec = HandlerSpec(key=ApiKey.METADATA, guard=FOR_EVERYONE, handle=lambda request, context: request, joint=joint)
    assert spec.wrapped(handle=spec.handle).joint is None
    assert spec.wrapped(handle=spec.handle, joint=joint).joint is joint


def test_unknown_versions_are_not_cached() -> None:
    dispatcher = make(ApiKey.METADATA)
    for version in range(100, 2000):
        assert dispatcher.routes[ApiKey.METADATA, version] is None
    assert len(dispatcher.routes) == 0


def test_capped_version_is_neither_advertised_nor_served() -> None:
    dispatcher = make(ApiKey.DELETE_RECORDS, maximum={ApiKey.DELETE_RECORDS: 2})
    assert dispatcher.advertised[ApiKey.DELETE_RECORDS].maximum == 2
    assert dispatcher.routes[ApiKey.DELETE_RECORDS, 2] is not None
    assert dispatcher.routes[ApiKey.DELETE_RECORDS, 3] is None


def test_unknown_api_versions_version_is_answered_in_version_0() -> None:
    """KIP-511: error 35, and the one row that a client needs for its next request."""
    dispatcher = make(ApiKey.API_VERSIONS)
    (frame,) = dispatcher.answer_unsupported(ApiKey.API_VERSIONS, 99, 7, memoryview(b""))
    assert isinstance(frame, bytes)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == 7
    answer = codec_for(ApiVersionsResponse, 0).decode(frame, 8, len(frame))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys] == [
        (18, 0, API[ApiKey.API_VERSIONS].max_version)
    ]


@pytest.mark.parametrize(
    ("key", "version", "header", "said"),
    [
        (
            ApiKey.FETCH,
            2,
            b"\0\x08telegraf\0\0",
            "v4 to v18 are served; the client's id is 'telegraf': set .* to a later one",
        ),
        (
            ApiKey.FETCH,
            99,
            b"\0\x08telegraf",
            "v4 to v18 are served; the client's id is 'telegraf': set .* to an earlier one",
        ),
        (ApiKey.FETCH, 2, b"\xff\xff", "the client's id is ''"),
        (ApiKey.FETCH, 2, b"", "the client's id is ''"),
        (ApiKey.FETCH, 2, b"\x7f\xff" + b"x" * 5000, f"the client's id is '{'x' * 64}'"),
        (999, 2, b"\0\x03a\nb", "there is no such API here; the client's id is 'a\\\\nb'"),
    ],
)
def test_any_other_unknown_version_is_refused_with_what_to_set(
    key: int, version: int, header: bytes, said: str
) -> None:
    """The line of the log names the client and its remedy: Telegraf's default is a version that isn't served."""
    with pytest.raises(ProtocolError, match=said):
        make(ApiKey.FETCH).answer_unsupported(key, version, 7, memoryview(header))


@pytest.mark.parametrize(("version", "body"), [(13, "00000000010000"), (12, "00000000010000"), (9, "0000000001000000")])
def test_librdkafkas_padded_null_array_is_read(version: int, body: str) -> None:
    """Captured from confluent-kafka 2.16: null topics take four bytes. Its flags must be read too."""
    request, client_id = read(make(ApiKey.METADATA), ApiKey.METADATA, version, bytes.fromhex(body))
    assert request.topics is None
    assert request.allow_auto_topic_creation
    assert client_id == "client"


def test_a_request_that_is_cut_short_is_refused() -> None:
    with pytest.raises(ProtocolError):
        read(make(ApiKey.METADATA), ApiKey.METADATA, 13, bytes.fromhex("0001"))


def cached_route(answers: AnswerCache) -> Route:
    dispatcher = Dispatcher(spawn=lambda coro, *, name: None, maximum_versions={})
    dispatcher.register(
        [HandlerSpec(key=ApiKey.METADATA, guard=FOR_EVERYONE, handle=lambda request, _: request, answers=answers)]
    )
    route = dispatcher.routes[ApiKey.METADATA, 12]
    assert route is not None
    return route


def metadata(number: int, cluster_id: str = "c") -> MetadataResponse:
    return MetadataResponse(throttle_time_ms=0, brokers=[], cluster_id=cluster_id, controller_id=number, topics=[])


def test_a_replaced_response_leaves_no_encoded_form() -> None:
    """Its address may become that of another response."""
    answers = AnswerCache(3)
    route, replaced = cached_route(answers), metadata(1)
    answers.keep("key", replaced)
    route.write(0, replaced)
    answers.keep("key", metadata(2))
    replaced.controller_id = 3
    assert b"".join(route.write(0, replaced))[9:] == codec_for(MetadataResponse, 12).encode(metadata(3))


def test_a_kept_response_is_written_as_others_are() -> None:
    """Also when the cache was cleared, and when a response has the address in memory of a freed one."""
    answers = AnswerCache(3)
    route = cached_route(answers)

    def check(number: int, given: MetadataResponse, correlation_id: int) -> None:
        written = b"".join(route.write(correlation_id, given))
        assert int.from_bytes(written[4:8], "big") == correlation_id
        assert written[9:] == codec_for(MetadataResponse, 12).encode(metadata(number))

    for number in range(20):
        assert answers.find(number) is None
        answers.keep(number, metadata(number))
        for correlation_id in (1, 2):
            check(number, answers.find(number), correlation_id)
        check(-number, metadata(-number), 3)


def test_kept_responses_are_dropped_with_what_they_are_valid_for() -> None:
    answers, old, new = AnswerCache(3), object(), object()
    assert answers.find("a", old, old) is None
    answers.keep("a", metadata(1))
    assert answers.find("a", old, old) == metadata(1)
    assert answers.find("a", old, new) is None
    assert answers.find("a", old, old) is None


def test_the_cache_of_responses_has_a_limit_in_bytes() -> None:
    """Otherwise a client that requests everything, in every version, would make the broker keep sixty megabytes."""
    answers = AnswerCache(1000)
    route = cached_route(answers)
    for number in range(300):
        answers.keep(number, metadata(number, "c" * 15_000))
        route.write(1, answers.find(number))
        assert sum(length for frames in answers._frames.values() for _, length, _ in frames.values()) <= 256 * 1024
    assert any(answers._frames.values())


async def test_a_connection_is_closed_when_the_answer_of_a_spawned_handler_cannot_be_sent() -> None:
    """Otherwise the connection would wait forever, with all later requests of its client; the bug is reported too."""
    failed: list[BaseException] = []
    tasks = TaskRegistry(lambda _name, error: failed.append(error))
    dispatcher = Dispatcher(spawn=tasks.spawn, maximum_versions={})

    async def later(request: Any, _context: Any) -> Any:
        return request

    dispatcher.register([HandlerSpec(key=ApiKey.DELETE_TOPICS, guard=FOR_EVERYONE, handle_later=later)])
    route = dispatcher.routes[ApiKey.DELETE_TOPICS, 6]
    assert route is not None
    pending = route.handle("not a response", SimpleNamespace(connection=SimpleNamespace(peer="somebody")))
    told: list[Any] = []

    def send(response: Any) -> None:
        if response is not None:
            route.write(7, response)
        told.append(response)

    pending.listen(send)
    while len(tasks):
        await asyncio.sleep(0)
    assert told == [None]
    assert len(failed) == 1


def test_requests_with_bytes_behind_are_counted_by_software_and_the_kinds_are_bounded() -> None:
    surplus = SurplusBytes()
    assert [surplus.note("Fetch", "kafka-go"), surplus.note("Fetch", "kafka-go"), surplus.note("Fetch", "other")] == [
        True,
        False,
        True,
    ]
    for number in range(2 * SURPLUS_SERIES_MAX):
        surplus.note("Fetch", f"client-{number}")
    assert len(surplus.counts) == SURPLUS_SERIES_MAX + 1
    assert surplus.counts["Fetch", "kafka-go"] == 2
    assert surplus.counts.total() == 3 + 2 * SURPLUS_SERIES_MAX
