"""Handlers behind quotas.

What is counted, what the client is asked to wait, and that nothing changes where no quota is set.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.quotas.client_quotas import ClientQuotas
from lowtide.broker.quotas.metered_handlers import Meter, fetched_bytes
from lowtide.broker.quotas.sampled_rate import Window
from lowtide.broker.security.principal import ANONYMOUS
from lowtide.metadata.config_image import ConfigImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from lowtide.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from lowtide.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData


class Bench:
    """A meter on a clock that a test moves, and a connection that remembers for how long it was muted."""

    def __init__(self, **entities: dict[str, str]) -> None:
        self.now_ns = 0
        self.muted: list[int] = []
        configs = {text: ConfigImage(values, 1) for text, values in entities.items()}
        quotas = ClientQuotas(lambda: configs, Window, Window)
        clock: Any = SimpleNamespace(monotonic_ns=lambda: self.now_ns, monotonic_ms=lambda: self.now_ns // 1_000_000)
        image = SimpleNamespace(topics={}, topic_names={})
        self.session: Any = SimpleNamespace(image=image, is_controller=True)
        self.meter = Meter(quotas, clock, self.session, lambda: 1)
        self.context: Any = SimpleNamespace(
            api_version=7,
            client_id="app",
            principal=ANONYMOUS,
            connection=SimpleNamespace(mute=self.muted.append),
            of_a_broker=False,
        )

    def ask(self, key: ApiKey, request: Any, answer: Any, *, takes_ms: int = 0) -> Any:
        def handle(asked: Any, _context: Any) -> Any:
            assert asked is request
            self.now_ns += takes_ms * 1_000_000
            return answer

        spec = self.meter.metered(HandlerSpec(key=key, handle=handle))
        assert spec.handle is not None
        return spec.handle(request, self.context)


def produced(size: int, acks: int = 1) -> ProduceRequest:
    rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(size))])]
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1, topic_data=rows)


def fetched(size: int) -> FetchResponse:
    row = PartitionData(partition_index=0, error_code=0, high_watermark=1, records=bytes(size))
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])


def test_a_handler_is_left_alone_where_no_quota_is_set() -> None:
    spec = HandlerSpec(key=ApiKey.PRODUCE, handle=lambda *_: None)
    assert Bench().meter.metered(spec) is spec
    assert Bench(ip={"connection_creation_rate": "1"}).meter.metered(spec) is spec
    limited = Bench(**{"client-id=app": {"producer_byte_rate": "1"}}).meter
    assert limited.metered(spec) is not spec
    markers = HandlerSpec(key=ApiKey.WRITE_TXN_MARKERS, handle=lambda *_: None)
    assert limited.metered(markers) is markers


def test_a_producer_above_its_rate_is_asked_to_wait_and_silenced() -> None:
    bench = Bench(**{"client-id=app": {"producer_byte_rate": "100"}})
    given = ProduceResponse(responses=[])
    assert bench.ask(ApiKey.PRODUCE, produced(1_000), given) is given
    assert bench.ask(ApiKey.PRODUCE, produced(500), given).throttle_time_ms == 5_000
    assert given.throttle_time_ms == 0, "the handler may give the same answer to others"
    assert bench.muted == [5_000]


def test_a_producer_that_wants_no_answer_is_silenced_too() -> None:
    bench = Bench(**{"client-id=app": {"producer_byte_rate": "100"}})
    assert bench.ask(ApiKey.PRODUCE, produced(2_000, acks=0), NO_ANSWER) is NO_ANSWER
    assert bench.muted == [10_000]


def test_an_answer_that_comes_later_is_counted_then() -> None:
    bench = Bench(**{"client-id=app": {"producer_byte_rate": "100"}})
    waiting: Pending[Any] = Pending(holds_connection=True)
    pending = bench.ask(ApiKey.PRODUCE, produced(2_000), waiting)
    assert pending.holds_connection
    assert bench.muted == []
    waiting.complete(ProduceResponse(responses=[]))
    assert pending.response.throttle_time_ms == 10_000
    abandoned: Pending[Any] = Pending()
    bench.ask(ApiKey.PRODUCE, produced(1), abandoned).abandon()
    assert abandoned.abandoned


def test_a_consumer_gets_what_ten_seconds_allow_and_waits_for_it() -> None:
    bench = Bench(**{"client-id=app": {"consumer_byte_rate": "100"}})
    request = FetchRequest(max_wait_ms=1, min_bytes=1, max_bytes=1 << 30, topics=[])
    assert bench.ask(ApiKey.FETCH, request, fetched(2_000)).throttle_time_ms == 10_000
    assert request.max_bytes == 1_000


def test_what_a_fetch_is_sent_later_is_counted_then() -> None:
    bench = Bench(**{"client-id=app": {"consumer_byte_rate": "100"}})
    request = FetchRequest(max_wait_ms=1, min_bytes=1, max_bytes=1 << 30, topics=[])
    pending: Pending[Any] = Pending()
    spec = bench.meter.metered(HandlerSpec(key=ApiKey.FETCH, handle=lambda _request, _context: pending))
    assert spec.handle is not None
    answer = spec.handle(request, bench.context)
    response = fetched(0)
    response.responses[0].partitions[0].records = memoryview(bytes(2_000))
    pending.complete(response)
    assert request.max_bytes == 1_000
    assert (answer.response.throttle_time_ms, fetched_bytes(answer.response)) == (10_000, 2_000)


@pytest.mark.parametrize("request_", [{"replica_id": 2}, {"replica_state": ReplicaState(replica_id=2)}])
def test_a_follower_is_not_slowed_down(request_: dict[str, Any]) -> None:
    bench = Bench(**{"client-id": {"consumer_byte_rate": "1", "request_percentage": "1"}})
    request = FetchRequest(max_wait_ms=1, min_bytes=1, max_bytes=1 << 30, topics=[], **request_)
    given = fetched(1_000_000)
    assert bench.ask(ApiKey.FETCH, request, given, takes_ms=100) is given
    assert (bench.muted, request.max_bytes) == ([], 1 << 30)


def test_time_of_requests_is_counted_in_percent_of_a_second() -> None:
    bench = Bench(**{"user=ANONYMOUS": {"request_percentage": "1"}})
    request, given = HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), HeartbeatResponse(error_code=0)
    assert bench.ask(ApiKey.HEARTBEAT, request, given, takes_ms=100).throttle_time_ms == 0
    assert 900 < bench.ask(ApiKey.HEARTBEAT, request, given, takes_ms=10).throttle_time_ms <= 1_000


def test_changes_of_partitions_are_let_in_by_their_quota() -> None:
    bench = Bench(**{"user=ANONYMOUS": {"controller_mutation_rate": "1"}})
    seen: list[list[str]] = []

    async def handle(request: CreateTopicsRequest, _context: Any) -> CreateTopicsResponse:
        seen.append([topic.name for topic in request.topics])
        return CreateTopicsResponse(topics=[])

    spec = bench.meter.metered(HandlerSpec(key=ApiKey.CREATE_TOPICS, handle_later=handle))
    assert spec.handle_later is not None
    rows = [
        CreatableTopic(name=name, num_partitions=20, replication_factor=1, assignments=[], configs=[]) for name in "ab"
    ]
    answer = asyncio.run(
        spec.handle_later(CreateTopicsRequest(topics=rows, timeout_ms=1, validate_only=False), bench.context)
    )
    assert seen == [["a"]]
    assert [(row.name, row.error_code) for row in answer.topics] == [("b", ErrorCode.THROTTLING_QUOTA_EXCEEDED)]
    assert answer.throttle_time_ms > 9_000
    bench.context.client_id = "broker-1-forwarding-3"
    asyncio.run(spec.handle_later(CreateTopicsRequest(topics=rows, timeout_ms=1, validate_only=False), bench.context))
    assert seen == [["a"], []], "a name frees no client of its quota"
    bench.context.of_a_broker = True
    asyncio.run(spec.handle_later(CreateTopicsRequest(topics=rows, timeout_ms=1, validate_only=False), bench.context))
    assert seen[2:] == [["a", "b"]]


def test_the_controller_counts_changes_of_partitions_and_others_do_what_it_says() -> None:
    bench = Bench(**{"user=ANONYMOUS": {"controller_mutation_rate": "1"}})
    bench.session.is_controller = False

    async def handle(_request: CreateTopicsRequest, _context: Any) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[], throttle_time_ms=1_234)

    spec = bench.meter.metered(HandlerSpec(key=ApiKey.CREATE_TOPICS, handle_later=handle))
    assert spec.handle_later is not None
    rows = [
        CreatableTopic(name=name, num_partitions=200, replication_factor=1, assignments=[], configs=[]) for name in "ab"
    ]
    for _ in range(2):
        answer = asyncio.run(
            spec.handle_later(CreateTopicsRequest(topics=rows, timeout_ms=1, validate_only=False), bench.context)
        )
        assert answer.throttle_time_ms == 1_234
    assert bench.muted == [1_234, 1_234]
