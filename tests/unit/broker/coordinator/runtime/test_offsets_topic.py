"""The creation of the coordinators' topics, and the log lines when it fails."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.runtime.offsets_topic import OffsetsTopic, _remembered_hash, forget_hashes, java_hash
from lowtide.metadata.broker_image import BrokerImage
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal
from lowtide.runtime.tasks import TaskRegistry
from tests.own_process import Run


class Administrator:
    """Each attempt to create a topic has the next of these outcomes; the last one repeats."""

    forwarder = None

    def __init__(self, *outcomes: Refusal | None) -> None:
        self.outcomes = list(outcomes)
        self.attempts = 0

    async def create(self, *_: object) -> Refusal | None:
        self.attempts += 1
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]


def lines_of(administrator: Administrator, attempts: int) -> list[tuple[str, str]]:
    """The log lines, with levels, after so many attempts to find a coordinator in sequence."""
    lines: list[tuple[str, str]] = []
    log = SimpleNamespace(
        error=lambda _event, *, reason, **_: lines.append(("error", reason)),
        warning=lambda _event, *, reason, **_: lines.append(("warning", reason)),
        info=lambda _event, **_: lines.append(("info", "")),
    )
    metadata = SimpleNamespace(image=MetadataImage(brokers={1: BrokerImage(1, 1, ())}), is_controller=True)

    async def run() -> None:
        tasks = TaskRegistry(lambda _name, error: lines.append(("failed", str(error))))
        broker: Any = SimpleNamespace(log=log, metadata=metadata, tasks=tasks)
        topic = OffsetsTopic(broker, administrator, GroupSettings(), factor_is_given=False)  # as far as is needed
        for _ in range(attempts):
            await topic.create()

    asyncio.run(run())
    assert administrator.attempts == attempts
    return lines


def test_the_reason_for_a_failed_creation_is_logged_once() -> None:
    """Every FindCoordinator tries the creation again: a hundred clients would fill the log with one message."""
    refusal = Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, "there are too few brokers")
    assert lines_of(Administrator(refusal), 5) == [("info", ""), ("error", "there are too few brokers")]


def test_another_reason_is_logged_and_so_is_the_same_after_a_success() -> None:
    one, other = Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, "one"), Refusal(ErrorCode.POLICY_VIOLATION, "other")
    told = [
        reason for level, reason in lines_of(Administrator(one, one, other, other, None, other), 6) if level == "error"
    ]
    assert told == ["one", "other", "other"]


def test_what_passes_by_itself_is_no_error() -> None:
    """A failed controller is replaced soon, and the next search creates the topic."""
    assert lines_of(Administrator(Refusal(ErrorCode.NOT_CONTROLLER, "no controller")), 1)[1:] == [
        ("warning", "no controller")
    ]


def test_hashes_that_are_forgotten_are_computed_again() -> None:
    java_hash("group")
    forget_hashes()
    assert _remembered_hash.cache_info().currsize == 0
    assert java_hash("group") == 98629247
    assert _remembered_hash.cache_info().currsize == 1


def blocks_of_hashes() -> tuple[int, int]:
    """What the hashes of a thousand ids take, and what is left when they are forgotten."""
    forget_hashes()
    before = sys.getallocatedblocks()
    for number in range(1_000):
        java_hash(f"group-{number}")
    taken = sys.getallocatedblocks() - before
    forget_hashes()
    return taken, sys.getallocatedblocks() - before


def test_hashes_are_forgotten_with_the_ids(in_own_process: Run) -> None:
    """What is left of a thousand ids would lie scattered over the memory that their groups took."""
    taken, left = in_own_process(blocks_of_hashes)
    assert taken > 1_000
    assert left < 100
