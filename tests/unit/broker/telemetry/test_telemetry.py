"""Clients' metrics (KIP-714).

What is wanted of whom and when, what is read of a push, and that nothing of it is without bounds.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.config.client_metrics import validate_client_metrics
from lowtide.broker.telemetry.client_facts import SOURCE
from lowtide.broker.telemetry.client_instances import (
    CLIENTS_MAX,
    SERIES_MAX,
    SERIES_OF_SOURCE,
    SERIES_PER_CLIENT_MAX,
    ClientInstance,
    ClientInstances,
    Push,
    PushSubscription,
)
from lowtide.broker.telemetry.otlp import ATTRIBUTES_MAX, FIELDS_A_STEP, POINTS_MAX, TEXT_MAX, Point, read_metrics
from lowtide.metadata.config_image import ConfigImage
from lowtide.protocol.errors import ErrorCode, ProtocolError

ID, OTHER_ID = b"i" * 16, b"o" * 16
FACTS = {"client_id": "app-1", "client_software_name": "librdkafka"}
MINUTE_MS = 60_000


# ------------------------------------------------------------------ OTLP
def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(number: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return varint(number << 3 | 2) + varint(len(body)) + body


def attribute(name: str, value: str) -> bytes:
    return message(7, message(1, name.encode()), message(2, message(1, value.encode())))


def double(value: float, *attributes: bytes) -> bytes:
    return message(1, varint(4 << 3 | 1) + struct.pack("<d", value), *attributes)


def integer(value: int, *attributes: bytes) -> bytes:
    return message(1, *attributes, varint(6 << 3 | 1) + struct.pack("<q", value))


def metric(name: str, *values: bytes) -> bytes:
    return message(2, message(1, name.encode()), message(3, b"ms"), *values)


def push_of(*metrics: bytes) -> bytes:
    resource = message(1, attribute("service", "x"))
    return message(1, resource, message(2, message(1, message(1, b"scope")), *metrics))


def read(content: bytes) -> tuple[list[Point], int]:
    steps, count = read_metrics(content), 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as end:
        return end.value, count


def test_gauges_and_sums_are_read() -> None:
    content = push_of(
        metric(
            "a.gauge",
            message(5, double(1.5, attribute("node", "1")), integer(-7, attribute("z", "2"), attribute("a", "1"))),
        ),
        metric("a.sum", message(7, integer(9), b"\x10\x01", b"\x18\x01")),
        metric("a.total", message(7, integer(4), b"\x10\x02", b"\x18\x01")),
        metric("a.histogram", message(9, b"\x08\x01")),
    )
    points, _ = read(content)
    assert points == [
        Point("a.gauge", "ms", False, False, (("node", "1"),), 1.5),
        Point("a.gauge", "ms", False, False, (("a", "1"), ("z", "2")), -7.0),
        Point("a.sum", "ms", True, True, (), 9.0),
        Point("a.total", "ms", True, False, (), 4.0),
    ]


def test_texts_points_and_attributes_are_bounded() -> None:
    many = [attribute(f"k{number}", "v" * 5000) for number in range(ATTRIBUTES_MAX + 5)]
    points, _ = read(
        push_of(metric("n" * 5000, message(5, *(double(number, *many) for number in range(POINTS_MAX + 50)))))
    )
    assert len(points) == POINTS_MAX
    assert (len(points[0].name), len(points[0].attributes), len(points[0].attributes[0][1])) == (
        TEXT_MAX,
        ATTRIBUTES_MAX,
        TEXT_MAX,
    )


@pytest.mark.parametrize(
    "wrap",
    [lambda junk: junk, lambda junk: push_of(junk), lambda junk: push_of(metric("m", message(5, message(1, junk))))],
)
def test_a_megabyte_of_junk_is_read_in_small_steps(wrap: Any) -> None:
    """Fields of two bytes that mean nothing, on every level."""
    fields = 200_000
    _, steps = read(wrap(b"\x78\x00" * fields))
    assert steps >= fields // FIELDS_A_STEP - 1


def test_broken_bytes_are_an_error_and_nothing_else() -> None:
    content = push_of(metric("a", message(5, double(1.5, attribute("node", "1")))))
    for stop in range(1, len(content)):
        with pytest.raises(ProtocolError):
            read(content[:stop])
    seeded = random.Random(7)
    for _ in range(3000):
        broken = bytearray(content)
        for _ in range(seeded.randrange(1, 5)):
            broken[seeded.randrange(len(broken))] = seeded.randrange(256)
        try:
            points, _ = read(bytes(broken))
        except ProtocolError:
            continue
        assert len(points) <= POINTS_MAX


# ------------------------------------------------------------------ subscriptions
def subscriptions(*configs: Mapping[str, str]) -> Any:
    return {str(number): SimpleNamespace(configs=each) for number, each in enumerate(configs)}


def wanted(
    clients: ClientInstances, instance_id: bytes = ID, facts: Mapping[str, str] = FACTS, now_ms: int = 0
) -> PushSubscription:
    answer = clients.ask(instance_id, facts, now_ms)
    assert isinstance(answer, PushSubscription)
    return answer


def test_what_is_wanted_is_what_all_matching_subscriptions_want() -> None:
    clients = ClientInstances()
    clients.follow(
        subscriptions(
            {"metrics": "org.apache.kafka.producer.,a", "interval.ms": "60000"},
            {"metrics": "a,b", "match": "client_id=app-.*,client_software_name=lib.*", "interval.ms": "1000"},
            {"metrics": "c", "match": "client_id=app"},
        )
    )
    found = wanted(clients)
    assert (found.metrics, found.interval_ms) == (("org.apache.kafka.producer.", "a", "b"), 1000)
    other = wanted(clients, b"o" * 16, {"client_id": "other"})
    assert (other.metrics, other.interval_ms) == (("org.apache.kafka.producer.", "a"), MINUTE_MS)
    assert other.subscription_id != found.subscription_id


def test_a_star_wants_all_and_nothing_is_wanted_without_a_subscription() -> None:
    clients = ClientInstances()
    assert wanted(clients).metrics == ()
    assert wanted(clients, b"x" * 16).interval_ms == 5 * MINUTE_MS
    clients.follow(subscriptions({"metrics": "a,*"}))
    assert wanted(clients, b"y" * 16).metrics == ("*",)


def test_a_pattern_takes_no_more_time_than_its_text_is_long() -> None:
    assert validate_client_metrics("s", {"match": "client_id=(a+)+$"}) is None
    clients = ClientInstances()
    clients.follow(subscriptions({"metrics": "*", "match": "client_id=(a+)+$"}))
    assert wanted(clients, facts={"client_id": "a" * 250 + "b"}).metrics == ()


# ------------------------------------------------------------------ when a client may do what
def push(client: PushSubscription, **fields: Any) -> Push:
    given: dict[str, Any] = {
        "subscription_id": client.subscription_id,
        "compression": 0,
        "size_bytes": 1,
        "is_terminating": False,
        "bytes_max": 10,
    }
    return Push(**given | fields)


def pushed(clients: ClientInstances, what: Push, now_ms: int) -> ErrorCode:
    answer = clients.begin_push(ID, FACTS, what, now_ms)
    return ErrorCode.NONE if isinstance(answer, ClientInstance) else answer


def test_a_client_asks_and_pushes_once_in_an_interval() -> None:
    clients = ClientInstances()
    clients.follow(subscriptions({"metrics": "*", "interval.ms": "60000"}))
    found = wanted(clients)
    assert clients.ask(ID, FACTS, 10) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert pushed(clients, push(found), 10) == ErrorCode.NONE
    assert pushed(clients, push(found), 59_000) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert pushed(clients, push(found), 60_010) == ErrorCode.NONE
    assert clients.ask(ID, FACTS, 60_020) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert isinstance(clients.ask(ID, FACTS, 130_000), PushSubscription)


def test_after_a_change_of_subscriptions_a_push_is_refused_and_the_client_may_ask_at_once() -> None:
    clients = ClientInstances()
    clients.follow(subscriptions({"metrics": "a", "interval.ms": "60000"}))
    found = wanted(clients)
    clients.follow(subscriptions({"metrics": "b", "interval.ms": "60000"}))
    assert pushed(clients, push(found), 10) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    again = wanted(clients, now_ms=20)
    assert again.metrics == ("b",)
    assert pushed(clients, push(again), 30) == ErrorCode.NONE


def test_refusals_of_a_push_in_their_order() -> None:
    clients = ClientInstances()
    found = wanted(clients)
    assert (
        pushed(clients, push(found, subscription_id=1, compression=9, size_bytes=99), 1)
        == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    )
    found = wanted(clients, now_ms=2)
    assert pushed(clients, push(found, compression=9, size_bytes=99), 3) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    found = wanted(clients, now_ms=4)
    assert pushed(clients, push(found, size_bytes=11), 5) == ErrorCode.TELEMETRY_TOO_LARGE
    assert pushed(clients, push(found, is_terminating=True), 6) == ErrorCode.NONE
    assert pushed(clients, push(found), 9_999_999) == ErrorCode.INVALID_REQUEST


# ------------------------------------------------------------------ what is kept
def point(name: str, value: float, *, is_delta: bool = False) -> Point:
    return Point(name, "", True, is_delta, (), value)


def test_the_last_value_is_kept_and_deltas_are_added_up() -> None:
    clients = ClientInstances()
    client = clients.begin_push(ID, FACTS, push(wanted(clients)), 1)
    assert isinstance(client, ClientInstance)
    clients.take(client, [point("a", 5), point("d", 5, is_delta=True)])
    clients.take(client, [point("a", 7), point("d", 7, is_delta=True)])
    assert {(facts["client_id"], series.name, series.value) for facts, series in clients.series()} == {
        ("app-1", "a", 7),
        ("app-1", "d", 12),
    }


def test_what_a_client_pushed_goes_with_it_also_where_nobody_asks_any_more() -> None:
    """Its last values would be shown for ever.

    One that is to push seldom doesn't keep those that are silent for longer.
    """
    clients = ClientInstances()
    clients.follow({"often": ConfigImage({"metrics": "*", "interval.ms": "1000", "match": "client_id=often"}, 1)})
    for instance_id, name in ((OTHER_ID, "seldom"), (ID, "often")):
        facts = FACTS | {"client_id": name}
        asked = clients.ask(instance_id, facts, 0)
        assert isinstance(asked, PushSubscription)
        client = clients.begin_push(instance_id, facts, push(asked), 1)
        assert isinstance(client, ClientInstance)
        clients.take(client, [point("a", 5)])
    clients.forget_silent(3_001)
    assert clients.series_count == 2
    clients.forget_silent(3_002)
    assert [facts["client_id"] for facts, _ in clients.series()] == ["seldom"]
    assert (len(clients), clients.series_count) == (1, 1)


def test_clients_of_one_address_leave_room_for_others() -> None:
    clients = ClientInstances()

    def pushed(number: int, address: str, count: int) -> int:
        instance_id, facts = number.to_bytes(16, "big"), FACTS | {SOURCE: address}
        asked = clients.ask(instance_id, facts, 0)
        assert isinstance(asked, PushSubscription)
        client = clients.begin_push(instance_id, facts, push(asked), 0)
        assert isinstance(client, ClientInstance)
        clients.take(client, [point(f"m{each}", 1) for each in range(count)])
        return len(client.series)

    assert pushed(0, "10.0.0.1", 7) == 7
    for number in range(1, CLIENTS_MAX + 50):
        pushed(number, "10.0.0.66", SERIES_PER_CLIENT_MAX)
    assert clients.series_count <= SERIES_OF_SOURCE + 7
    assert pushed(CLIENTS_MAX + 50, "10.0.0.2", SERIES_PER_CLIENT_MAX) == SERIES_PER_CLIENT_MAX
    kept = {facts[SOURCE] for facts, _ in clients.series()}
    assert kept == {"10.0.0.1", "10.0.0.2", "10.0.0.66"}


def test_clients_and_series_are_bounded_and_silent_clients_forgotten() -> None:
    clients = ClientInstances()
    for number in range(CLIENTS_MAX + 10):
        instance_id = number.to_bytes(16, "big")
        client = clients.begin_push(instance_id, FACTS, push(wanted(clients, instance_id)), 0)
        assert isinstance(client, ClientInstance)
        clients.take(
            client, [point(f"m{each}", 1) for each in range(SERIES_PER_CLIENT_MAX + 100 if number < 50 else 1)]
        )
        assert clients.series_count <= SERIES_MAX
        assert number % 50 or clients.series_count == sum(1 for _ in clients.series())
    assert len(clients) == CLIENTS_MAX
    wanted(clients, ID, now_ms=16 * MINUTE_MS)
    assert len(clients) == 1
    assert clients.series_count == 0
