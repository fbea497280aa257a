"""The quick path of DeleteRecords: the same answers and figures as without the compiled module, and nothing of what isn't usual."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from bench.request_path import TOPIC, World, produce
from lowtide.broker.handlers.deletes.small_delete import SmallDeletes, small_delete
from lowtide.broker.pending import Pending
from lowtide.protocol import native
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.describe_deletes import DescribeDeletesRequest
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation

needs_compiled = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")


def delete(
    *rows: tuple[int, int], topic: str = TOPIC, timeout_ms: int = 500, leader_only: bool = False
) -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=partition, offset=offset) for partition, offset in rows]
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=timeout_ms, leader_only=leader_only
    )


REQUESTS = [
    (2, delete((0, 1))),
    (0, delete((0, 2))),
    (1, delete((0, 2))),
    (3, delete((0, 4))),
    (3, delete((0, 5), leader_only=True)),
    (2, delete((0, 3))),
    (2, delete((0, 1_000))),
    (2, delete((0, -1))),
    (2, delete((1, 1))),
    (2, delete((0, 6), (1, 6))),
    (2, delete((0, 1), topic="unknown")),
    (2, delete((0, 1), topic="__consumer_offsets")),
    (2, delete((0, 7), timeout_ms=-5)),
]


async def alone(loop: SimulatedLoop, brokers: int = 1) -> list[Any]:
    """All requests, twice with records between, and several at once; then what the broker says of them."""
    world = World(loop, brokers)
    client = await world.begin()
    seen: list[Any] = []
    for version, request in REQUESTS:
        seen.append(await client.request(request, version))
        await client.request(produce(1), 9)
    others = [await type(client).connect(*world.machines[0].address) for _ in range(4)]
    end = 20 + len(REQUESTS)
    answers = await asyncio.gather(
        *(other.request(delete((0, end - 4 + number)), 3) for number, other in enumerate(others))
    )
    seen += answers
    described = await client.request(DescribeDeletesRequest(), 0)
    described.finished.sort(key=lambda row: row.offset)
    for row in described.finished:
        row.number = 0  # Those that came together end in any order.
    for other in others:
        other.close()
    client.close()
    await asyncio.sleep(0.1)
    return [*seen, described]


async def with_followers(loop: SimulatedLoop) -> list[Any]:
    """Three replicas: all there, then none of the followers."""
    world = World(loop, 3)
    client = await world.begin()
    seen: list[Any] = []

    async def ask(offset: int) -> None:
        for version, request in (
            (2, delete((0, offset))),
            (3, delete((0, offset + 1), leader_only=True)),
            (3, delete((0, offset + 2))),
        ):
            seen.append(await client.request(request, version))

    await ask(1)
    for machine in world.machines[1:]:
        machine.pause()
    await ask(4)
    for machine in world.machines[1:]:
        machine.resume()
    client.close()
    await asyncio.sleep(0.1)
    return seen


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the quick path returned."""
    handle, answers = SmallDeletes.handle, list[Any]()

    def counted(self: SmallDeletes, *arguments: Any) -> Any:
        answers.append(handle(self, *arguments))
        return answers[-1]

    monkeypatch.setattr(SmallDeletes, "handle", counted)
    return answers


@needs_compiled
@pytest.mark.parametrize("scenario", [alone, with_followers])
def test_both_forms_answer_alike(scenario: Any, answered: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = run_simulation(scenario, 1)
    pending = [answer for answer in answered if answer is not None]
    assert len(pending) > 5
    assert all(type(answer) is Pending for answer in pending)
    assert any(type(answer.response) is bytes for answer in pending), "none had the usual end"
    answered.clear()
    monkeypatch.setattr(native, "compiled", None)
    plain = run_simulation(scenario, 1)
    assert not answered
    for number, (left, right) in enumerate(zip(compiled, plain, strict=True)):
        assert left == right, number


@needs_compiled
def test_a_failed_disk_is_answered_as_of_any_delete() -> None:
    async def run(loop: SimulatedLoop) -> None:
        world = World(loop, 1)
        client = await world.begin()
        machine = world.machines[0]
        machine.disk_faults += 1
        machine.filesystem.fail_next("sync", errno.EIO, path_contains="journal")
        answer = await client.request(delete((0, 1)), 2)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR

    run_simulation(run, 1)


@needs_compiled
def test_a_bug_at_the_end_closes_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(loop: SimulatedLoop) -> None:
        world = World(loop, 1)
        client = await world.begin()
        with monkeypatch.context() as patch:
            patch.setattr(
                "lowtide.broker.handlers.deletes.delayed_delete.DelayedDeleteRecords._settle", lambda *_: 1 // 0
            )
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.request(delete((0, 1)), 2)
        other = await type(client).connect(*world.machines[0].address)
        answer = await other.request(delete((0, 2)), 2)
        assert (answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].low_watermark) == (0, 2)

    run_simulation(run, 1)


def test_without_the_compiled_module_there_is_no_quick_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiled", None)
    anything: Any = None
    assert small_delete(anything, anything, anything) is None
