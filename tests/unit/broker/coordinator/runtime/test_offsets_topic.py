"""How the topics of coordinators come to be, and what the log says when they don't."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.runtime.offsets_topic import OffsetsTopic
from lowtide.metadata.broker_image import BrokerImage
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal
from lowtide.runtime.tasks import TaskRegistry


class Administrator:
    """Gives each attempt to make a topic the next of these outcomes, the last one again and again."""

    forwarder = None

    def __init__(self, *outcomes: Refusal | None) -> None:
        self.outcomes = list(outcomes)
        self.attempts = 0

    async def create(self, *_: object) -> Refusal | None:
        self.attempts += 1
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]


def lines_of(administrator: Administrator, attempts: int) -> list[tuple[str, str]]:
    """What is logged, with its level, when so many look for a coordinator one after the other."""
    lines: list[tuple[str, str]] = []
    log = SimpleNamespace(
        error=lambda _event, *, reason, **_: lines.append(("error", reason)), info=lambda _event, **_: lines.append(("info", ""))
    )
    metadata = SimpleNamespace(image=MetadataImage(brokers={1: BrokerImage(1, 1, ())}), is_controller=True)

    async def run() -> None:
        tasks = TaskRegistry(lambda _name, error: lines.append(("failed", str(error))))
        broker: Any = SimpleNamespace(log=log, metadata=metadata, tasks=tasks)
        topic = OffsetsTopic(broker, administrator, GroupSettings(), factor_is_given=False)  # type: ignore[arg-type]  # as far as is needed
        for _ in range(attempts):
            await topic.create()

    asyncio.run(run())
    assert administrator.attempts == attempts
    return lines


def test_why_a_topic_can_not_be_made_is_told_once() -> None:
    """Every client that looks for a coordinator has it tried again: a hundred of them would fill the log with one sentence."""
    refusal = Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, "there are too few brokers")
    assert lines_of(Administrator(refusal), 5) == [("info", ""), ("error", "there are too few brokers")]


def test_another_reason_is_told_and_so_is_the_same_after_a_success() -> None:
    one, other = Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, "one"), Refusal(ErrorCode.POLICY_VIOLATION, "other")
    told = [reason for level, reason in lines_of(Administrator(one, one, other, other, None, other), 6) if level == "error"]
    assert told == ["one", "other", "other"]
