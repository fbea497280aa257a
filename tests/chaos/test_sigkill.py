"""Killing a broker loses no acknowledged record, restores no deleted one, and assigns no offset twice.

A real process with real files, several clients that produce, read and delete; SIGKILL at a random moment, sometimes
also while it starts; then everything is read back and checked against the history of all processes. Nothing is flushed:
the page cache survives.

`ROUNDS=n` kills more often, `SEED=n` repeats the choice of moments (what they hit also depends on the machine).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide.simulation.history import HistoryError

from .loaded_broker import LIFE_S, TOPICS, LoadedBroker

ROUNDS = int(os.environ.get("ROUNDS", "8"))
SEED = int(os.environ.get("SEED", "7"))


@pytest.mark.seeds
async def test_nothing_is_lost_or_comes_back_over_many_kills(tmp_path: Path) -> None:
    """D1, D7, D10, D12 and R1 to R4 over SIGKILL; topics keep their ids; the broker itself never reports an error."""
    broker = LoadedBroker(tmp_path / "log", SEED, rounds=ROUNDS)
    await broker.start()
    try:
        await broker.create_topics()
        topic_ids = await broker.topic_ids()
        assert set(topic_ids) == set(TOPICS)
        for number in range(ROUNDS):
            await broker.work_until_killed(broker.random.uniform(*LIFE_S), is_last=number == ROUNDS - 1)
            assert not broker.process.faults, f"in life {number}"
            if broker.random.random() < 0.25:
                await broker.kill_while_starting()
            await broker.start()
            assert await broker.topic_ids() == topic_ids, f"in life {number + 1}"
            await broker.read_back()
        assert broker.has_worked(), broker.counts()
        assert await broker.process.terminate() == 0
        await broker.start()
        await broker.read_back()
        assert await broker.topic_ids() == topic_ids
        assert not broker.process.faults
    finally:
        await broker.process.kill()


@pytest.mark.slow
async def test_the_checker_detects_a_lost_record(tmp_path: Path) -> None:
    """The check can fail: it detects missing records when the end of a killed broker's log is cut off."""
    broker = LoadedBroker(tmp_path / "log", SEED, rounds=ROUNDS)
    await broker.start()
    try:
        await broker.create_topics()
        load = broker.loads[-1]
        client = await broker.process.connect()
        for _ in range(3):
            await load.produce(client, 2)
        await broker.process.kill()
        segment = max(broker.directory.glob(f"{load.topic}-{load.partition}/*.log"))
        os.truncate(segment, written_bytes(segment) - 1)
        await broker.start()
        with pytest.raises(HistoryError, match="ends at 4, 6 was reached"):
            await broker.read_back()
    finally:
        await broker.process.kill()


async def test_the_checker_detects_a_deleted_record_that_returns(tmp_path: Path) -> None:
    """When the journal of a killed broker is restored to its state before a delete, the missing delete is detected."""
    broker = LoadedBroker(tmp_path / "log", SEED, rounds=ROUNDS)
    await broker.start()
    try:
        await broker.create_topics()
        load = broker.loads[-1]
        client = await broker.process.connect()
        await load.produce(client, 5)
        journal = broker.directory / "lowtide-log-start.journal"
        before = journal.read_bytes()
        while not load.history.acknowledged_delete:
            await load.delete(client)
        await broker.process.kill()
        journal.write_bytes(before)
        await broker.start()
        with pytest.raises(HistoryError, match="are deleted for good"):
            await broker.read_back()
    finally:
        await broker.process.kill()


def written_bytes(segment: Path) -> int:
    """Returns the size of a segment without preallocated bytes."""
    return len(segment.read_bytes().rstrip(b"\0"))
