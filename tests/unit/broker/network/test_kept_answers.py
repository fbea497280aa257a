"""Answers that are kept as bytes: those of the ordinary way, for usual requests and damaged ones, and never after something has changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.handlers import api_versions, metadata
from lowtide.broker.network.dispatcher import Dispatcher
from lowtide.broker.network.kept_answers import ANSWERS_MAX, REQUEST_BYTES_MAX, KeptAnswer, KeptAnswers, key_of
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import FeaturesRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition
from tests.examples import examples

from .test_endpoints import ONE_SLICE, TOPIC_ID, cluster, partition

SHORT = settings(deadline=None, max_examples=examples(100))


class World:
    """Both APIs of broker 1, behind the dispatcher of a broker."""

    def __init__(self, image: MetadataImage) -> None:
        self.session = SimpleNamespace(image=image)
        self.replicas = SimpleNamespace(broker_id=1, offline=SimpleNamespace(keys=frozenset()))
        self.config = load_config()
        self.created: list[str] = []
        broker: Any = SimpleNamespace(
            metadata=self.session, replicas=self.replicas, config=self.config, turns=ONE_SLICE, log=None
        )
        administrator: Any = SimpleNamespace(create_automatically=lambda name, _context: self.created.append(name))
        self.dispatcher = Dispatcher(spawn=lambda *_args, **_names: None, maximum_versions={})  # type: ignore[arg-type,return-value]
        seen = lambda: self.session.image  # noqa: E731
        self.dispatcher.register(
            [api_versions.handler(self.dispatcher.advertised, seen), metadata.handler(broker, administrator)]
        )

    def ordinary(self, frame: bytes, listener_name: str = "INSIDE") -> tuple[bytes | None, Any]:
        """The answer as it is without the quick path, and the software that the connection has then; None for one that is refused."""
        client = client_of(listener_name)
        route = self.dispatcher.routes[int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])]
        assert route is not None
        try:
            request, client_id = route.read(memoryview(frame), 0, len(frame))
        except ProtocolError:
            return None, client.software
        context = RequestContext(int.from_bytes(frame[2:4]), client_id, client)
        parts = route.write(int.from_bytes(frame[4:8], signed=True), route.handle(request, context))
        return b"".join(map(bytes, parts)), client.software  # type: ignore[arg-type]

    def quick(self, frame: bytes, listener_name: str = "INSIDE") -> tuple[bytes | None, Any]:
        """The same by the quick path; None where it leaves the request to the ordinary way."""
        client = client_of(listener_name)
        route = self.dispatcher.routes[int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])]
        assert route is not None
        assert route.quick is not None
        buffer = memoryview(b"before" + frame + b"behind")
        asked = route.quick.read(buffer, 6, 6 + len(frame))
        return (None if asked is None else route.quick.handle(asked, buffer, client)), client.software


def client_of(listener_name: str) -> Any:
    return SimpleNamespace(listener_name=listener_name, software=("", ""), local_address=None, principal=None)


def topic_request(version: int, *names: str | None, topic_id: bytes = ZERO_TOPIC_ID, **fields: Any) -> bytes:
    topics = [MetadataRequestTopic(name=name, topic_id=topic_id) for name in names]
    request = MetadataRequest(topics=topics, **fields)
    return request_header(ApiKey.METADATA, version, 7, "c") + codec_for(MetadataRequest, version).encode(request)


def versions_request(version: int, name: str = "test", correlation_id: int = 7) -> bytes:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    return request_header(ApiKey.API_VERSIONS, version, correlation_id, "c") + codec_for(
        ApiVersionsRequest, version
    ).encode(request)


def with_id(frame: bytes, correlation_id: int) -> bytes:
    return frame[:4] + correlation_id.to_bytes(4, signed=True) + frame[8:]


@pytest.mark.parametrize("version", range(14))
def test_metadata_is_answered_with_the_same_bytes_from_the_second_request_on(version: int) -> None:
    world, frame = World(cluster(partition(1))), topic_request(version, "t")
    assert world.quick(frame)[0] is None, "there is nothing yet"
    for correlation_id in (7, -1, 2**31 - 1):
        asked = with_id(frame, correlation_id)
        for listener_name in (
            ("INSIDE", "OUTSIDE") if version else ("INSIDE",)
        ):  # Version 0 has an error for the other one.
            assert world.ordinary(asked, listener_name)[0] == world.quick(asked, listener_name)[0] is not None


@pytest.mark.parametrize("version", range(5))
def test_versions_are_answered_with_the_same_bytes(version: int) -> None:
    world = World(MetadataImage(revision=9, features=FeaturesRecord(1, 1), features_revision=7))
    for name in ("test", "other", "test", "no good name!"):
        for correlation_id in (7, -1):
            frame = versions_request(version, name, correlation_id)
            ordinary, quick = world.ordinary(frame), world.quick(frame)
            is_refused = version >= 3 and " " in name
            assert quick == ((None, ("", "")) if is_refused else ordinary)
            assert (quick[1] != ("", "")) == (version >= 3 and not is_refused)


@pytest.mark.parametrize(
    "frame",
    [
        topic_request(12, "unknown"),
        topic_request(12, "t", "u"),
        topic_request(12),
        topic_request(9, "t", include_topic_authorized_operations=True),
        topic_request(9, "t", include_cluster_authorized_operations=True),
        topic_request(12, None, topic_id=b"u" * 16),
        topic_request(12, None, topic_id=TOPIC_ID)[:-1],
        topic_request(9, "t" * REQUEST_BYTES_MAX),
    ],
)
def test_what_is_not_kept_is_always_handled(frame: bytes) -> None:
    world = World(cluster(partition(1)))
    for _ in range(3):
        world.ordinary(frame)
        assert world.quick(frame)[0] is None


def test_errors_are_counted_each_time() -> None:
    world, frame = World(cluster(partition(3))), topic_request(12, "t")
    for count in (1, 2, 3):
        assert world.quick(frame, "OUTSIDE")[0] is None
        world.ordinary(frame, "OUTSIDE")
        assert sum(world.dispatcher.errors.values()) == count


def test_metadata_is_made_again_after_each_change() -> None:
    world, frame = World(cluster(partition(1))), topic_request(12, "t")
    topic = world.session.image.topics["t"]
    changes: list[Any] = [
        lambda: setattr(world.session, "image", cluster(partition(2))),
        lambda: setattr(world.replicas.offline, "keys", frozenset({TopicPartition("t", 0)})),
        lambda: setattr(
            world.session, "image", msgspec.structs.replace(world.session.image, topics={}, topic_names={})
        ),
        lambda: setattr(world.session, "image", cluster(partition(1), topics={"t": topic})),
    ]
    before = None
    for change in [lambda: None, *changes]:
        change()
        assert world.quick(frame)[0] is None
        answer, _ = world.ordinary(frame)
        again, _ = world.quick(frame)
        assert again in (answer, None)
        assert answer != before
        before = answer


def test_where_clients_are_sent_where_they_have_arrived_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world, frame = World(cluster(partition(1))), topic_request(12, "t")
    world.ordinary(frame)
    assert world.quick(frame)[0] is not None
    monkeypatch.setattr(type(world.config), "advertises_local_address", True)
    assert world.quick(frame)[0] is None


def test_versions_follow_the_features_and_the_subscriptions() -> None:
    world, frame = (
        World(MetadataImage(revision=9, features=FeaturesRecord(1, 1), features_revision=7)),
        versions_request(4),
    )
    seen = [world.quick(frame)[0]]
    image = world.session.image
    for changed in (
        msgspec.structs.replace(image, features=FeaturesRecord(1, 1, {"transaction.version": 0}), features_revision=8),
        msgspec.structs.replace(image, client_metrics={"all": object()}),
    ):
        world.session.image = changed
        assert world.quick(frame) == world.ordinary(frame)
        seen.append(world.quick(frame)[0])
    assert seen[0] != seen[1]


REQUESTS = st.one_of(
    st.builds(topic_request, st.integers(0, 13), st.sampled_from(["t", "u", "unknown", ""])),
    st.builds(lambda version, count: topic_request(version, *["t"] * count), st.integers(0, 13), st.integers(0, 3)),
    st.builds(lambda version: topic_request(version, None, topic_id=TOPIC_ID), st.integers(12, 13)),
    st.builds(versions_request, st.integers(0, 4), st.sampled_from(["test", "a b", ""])),
)
CHANGES = st.lists(
    st.tuples(st.integers(4, 200), st.integers(0, 255) | st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])), max_size=3
)


@SHORT
@given(st.lists(st.tuples(REQUESTS, CHANGES, st.just(0) | st.integers(1, 40), st.booleans()), max_size=6))
def test_whatever_comes_is_answered_as_without_the_quick_path(
    asked: list[tuple[bytes, list[tuple[int, int]], int, bool]],
) -> None:
    """Whole and damaged requests, each of them several times, while the metadata changes."""
    world = World(cluster(partition(1)))
    for whole, changes, cut, moves in asked:
        damaged = bytearray(whole)
        for position, byte in changes:
            if position < len(damaged):
                damaged[position] = byte
        frame = bytes(damaged[: max(len(damaged) - cut, 10)])
        if moves:
            world.session.image = cluster(
                partition(2 if world.session.image.topics["t"].partitions[0].leader == 1 else 1)
            )
        for _ in range(3):
            quick, ordinary = world.quick(frame), world.ordinary(frame)
            assert quick[0] is None or quick == ordinary


def test_no_more_is_kept_than_there_is_room_for() -> None:
    kept = KeptAnswers()
    kept.keep(key_of("", b"large"), KeptAnswer(b"", bytes(1 << 20)))
    assert not kept.found
    for number in range(3 * ANSWERS_MAX):
        kept.keep(key_of("", number.to_bytes(12)), KeptAnswer(b"", bytes(1000)))
        assert len(kept.found) <= ANSWERS_MAX
        assert sum(len(each.rest) for each in kept.found.values()) <= 512 * 1024
    assert kept.found
