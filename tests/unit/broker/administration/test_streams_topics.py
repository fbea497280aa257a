"""The creation of internal topics after heartbeats: once at a time, and again when an error is forgotten."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.administration import streams_topics
from lowtide.broker.administration.streams_topics import StreamsTopics
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.new_topics import TopicSpec
from lowtide.replication.refusal import Refusal


class Administrator:
    """Creates topics when told to, or fails."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.asked: list[str] = []
        self.outcome: Any = None
        self.may_go = asyncio.Event()
        self.limits = SimpleNamespace(may_log=lambda: True)
        self.logged: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.broker = SimpleNamespace(
            clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms),
            tasks=SimpleNamespace(spawn=self.spawn),
            log=SimpleNamespace(warning=lambda _, topic, reason: self.logged.append(f"{topic}: {reason}")),
        )

    def spawn(self, work: Any, *, name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def create(self, spec: TopicSpec, _configs: Any, _timeout_ms: int, _origin: Any) -> Any:
        self.asked.append(spec.name)
        await self.may_go.wait()
        return self.outcome

    async def done(self) -> None:
        self.may_go.set()
        await asyncio.gather(*self.tasks)


@pytest.fixture
def asker(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(streams_topics, "Origin", SimpleNamespace(of=lambda _: None))
    return SimpleNamespace()


def wanted(*names: str) -> Any:
    return [(TopicSpec(name, 1), []) for name in names]


def test_a_topic_that_is_being_created_is_not_created_again(asker: Any) -> None:
    async def run() -> None:
        administrator: Any = Administrator()
        topics = StreamsTopics(administrator)
        topics.create(wanted("a", "b"), asker, 10)
        await asyncio.sleep(0)
        topics.create(wanted("a", "b"), asker, 10)
        await administrator.done()
        assert administrator.asked == ["a", "b"]
        assert topics.errors(("a", "b")) == {}

    asyncio.run(run())


def test_an_error_is_remembered_and_then_tried_again(asker: Any) -> None:
    async def run() -> None:
        administrator: Any = Administrator()
        administrator.outcome = Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, "too few brokers")
        topics = StreamsTopics(administrator)
        topics.create(wanted("a"), asker, 10)
        await administrator.done()
        assert topics.errors(("a", "b")) == {"a": "too few brokers"}
        assert administrator.logged == ["a: too few brokers"]
        topics.create(wanted("a"), asker, 10)
        assert len(administrator.tasks) == 1, "its error is still known"
        administrator.now_ms = 10
        assert topics.errors(("a",)) == {}
        topics.create(wanted("a"), asker, 10)
        await administrator.done()
        assert administrator.asked == ["a", "a"]

    asyncio.run(run())


def test_a_topic_that_another_member_created_is_no_error(asker: Any) -> None:
    async def run() -> None:
        administrator: Any = Administrator()
        administrator.outcome = Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, "there")
        topics = StreamsTopics(administrator)
        topics.create(wanted("a"), asker, 10)
        await administrator.done()
        assert topics.errors(("a",)) == {}

    asyncio.run(run())


def test_creations_and_errors_are_bounded(asker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_topics, "IN_PROGRESS_MAX", 2)
    monkeypatch.setattr(streams_topics, "ERRORS_MAX", 1)

    async def run() -> None:
        administrator: Any = Administrator()
        administrator.outcome = Refusal(ErrorCode.POLICY_VIOLATION, "no")
        topics = StreamsTopics(administrator)
        topics.create(wanted("a", "b", "c"), asker, 10)
        await administrator.done()
        assert administrator.asked == ["a", "b"]
        assert topics.errors(("a", "b")) == {"b": "no"}

    asyncio.run(run())
