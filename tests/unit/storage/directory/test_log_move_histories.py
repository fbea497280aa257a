"""Random histories of logs that are moved, written, deleted from and cut, with kills and power cuts at any step."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from lowtide.protocol.types import Offset, TopicPartition
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.log.log import Log
from tests.examples import examples

from .managed_logs import A0, A1, ONE, TWO, World
from .test_log_moves import THREE, append, batch, content, folders, settle


class History:
    """What a log was given, and what it has acknowledged.

    Random moves, writes, deletes, truncations, kills and power cuts.
    """

    def __init__(self, seed: int, *, power: bool) -> None:
        self.random = Random(seed)
        self.world = World(ONE, TWO, THREE, seed=seed)
        self.keys: list[TopicPartition] = [A0, A1]
        self.moved = 0
        self.watch()
        self.world.create(*self.keys)
        self.world.manager.directories.notes.write_registration(1, self.world.paths)
        self.power = power
        self.epoch = 0
        self.batches: dict[TopicPartition, dict[int, bytes]] = {key: {} for key in self.keys}
        self.flushed: dict[TopicPartition, int] = dict.fromkeys(self.keys, 0)
        self.starts: dict[TopicPartition, int] = dict.fromkeys(self.keys, 0)
        self.cutting: set[TopicPartition] = set()
        """Truncations that a power cut may undo."""
        self.number = 0

    def step(self) -> None:
        world, key = self.world, self.random.choice(self.keys)
        log = world.manager.logs[key]
        chosen = self.random.random()
        if chosen < 0.25:
            self.append(key, log)
        elif chosen < 0.33:
            offset = self.random.randint(log.log_start_offset, log.high_watermark)
            world.manager.log_starts.request_log_starts(
                [LogStartIncrement(log, Offset(offset))], lambda error: self.on_deleted(key, log, offset, error)
            )
        elif chosen < 0.36:
            self.truncate(key, log)
        elif chosen < 0.42:
            world.manager.moves.alter(log, self.random.choice(world.paths))
        elif chosen < 0.46:
            self.restart()
        elif chosen < 0.52:
            world.manager.flush(log)
            self.flushed[key] = max(self.flushed[key], log.recovery_point)
        elif chosen < 0.7:
            world.clock.now_ms += self.random.choice([50, 250, 1200])
            for _step in world.manager.directories.free_deleted():
                pass
        elif chosen < 0.72:
            world.work(world.clock.wall_ms())
        else:
            for _ in range(self.random.randint(1, 4)):
                self.one_step()

    def watch(self) -> None:
        def on_moved(_old: Log, _new: Log) -> None:
            self.moved += 1

        self.world.manager.moves.listen(on_moved)

    def one_step(self) -> None:
        ready: list[Any] = [each for each in (*self.world.committers.values(), self.world.worker) if each.waiting]  # type: ignore[attr-defined]
        if ready:
            self.random.choice(ready).step()

    def append(self, key: TopicPartition, log: Log) -> None:
        if log.truncating:
            return
        self.number += 1
        appended = append(log, f"value {self.number} ", epoch=self.epoch)
        self.batches[key][appended.base_offset] = batch(f"value {self.number} ").tail[-1]

    def on_deleted(self, key: TopicPartition, log: Log, offset: int, error: OSError | None) -> None:
        """As the broker acknowledges: by the log that is the partition's now."""
        current = self.world.manager.logs[key]
        if error is None and current.log_start_offset >= offset:
            self.starts[key] = max(self.starts[key], offset)

    def truncate(self, key: TopicPartition, log: Log) -> None:
        """To above what was flushed or deleted, as after an election; then there is another leader epoch."""
        low = max(self.flushed[key], log.log_start_pending, log.log_start_offset, self.starts[key])
        if log.truncating or low >= log.log_end_offset:
            return
        self.cutting.add(key)
        offset = Offset(self.random.randint(low, log.log_end_offset))
        self.world.manager.truncate(log, offset, lambda _error: self.cutting.discard(key))
        self.epoch += 1
        for key_ in [each for each in self.batches[key] if each + 2 > log.log_end_offset]:
            del self.batches[key][key_]

    def restart(self) -> None:
        power = self.power and self.random.random() < 0.5
        for key in self.keys:
            # What waits for a flush is answered as soon as the log that serves says so, whichever log that is.
            self.flushed[key] = max(self.flushed[key], self.world.manager.logs[key].recovery_point)
        self.world.restart(power=power)
        self.watch()
        missing = [key for key in self.keys if key not in self.world.manager.logs]
        # A log without any record may have had no files yet.
        assert power or not any(self.batches[key] or self.starts[key] for key in missing)
        self.world.create(*missing)  # Lost before anything of them was durable.
        self.epoch += 1
        for key in self.keys:
            log = self.world.manager.logs[key]
            log.advance_high_watermark(log.log_end_offset)
            if power:
                assert log.log_end_offset >= self.flushed[key], (key, log.describe())
                # What wasn't flushed is there or not, also what an earlier power cut had taken.
                found, flushed = content(log), self.flushed[key]
                self.batches[key] = {
                    offset: each for offset, each in self.batches[key].items() if offset + 2 <= flushed
                } | {offset: each for offset, each in found.items() if offset + 2 > flushed or key in self.cutting}
        self.cutting.clear()
        self.check()

    def check(self) -> None:
        for key in self.keys:
            log = self.world.manager.logs[key]
            assert log.log_start_offset >= self.starts[key], (key, self.starts[key], log.describe())
            expected = {offset: each for offset, each in self.batches[key].items() if offset + 2 > log.log_start_offset}
            found = content(log)
            assert found.keys() == expected.keys(), (key, log.describe())
            for offset, each in expected.items():
                assert found[offset].endswith(bytes(each)), (key, offset)

    def end(self) -> None:
        self.world.manager.moves.limit(lambda: float("inf"))
        settle(self.world)
        assert not len(self.world.manager.moves)
        self.check()
        assert sorted(each.rpartition("/")[2] for each in folders(self.world)) == ["a-0", "a-1"]


@pytest.mark.parametrize("power", [False, True])
def test_histories(power: bool) -> None:
    """Nothing that was acknowledged is lost, no delete is undone, and a partition is in one directory."""
    moved = 0
    for seed in range(examples(60)):
        history = History(seed, power=power)
        try:
            for _ in range(120):
                history.step()
            history.end()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        moved += history.moved
    assert moved > examples(60)
