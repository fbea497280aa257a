"""A survey of a log directory, which opens no log, finds what the next start finds."""

from __future__ import annotations

import pytest

from lowtide.protocol.types import topic_id_text
from lowtide.storage.checkpoint import LEADER_EPOCH_CHECKPOINT, encode_epochs
from lowtide.storage.directory.directory_survey import survey
from lowtide.storage.directory.log_manager import KnownTopic
from lowtide.storage.errors import StorageError
from tests.examples import rounds

from .managed_logs import A0, A1, B0, CLUSTER, CONFIG, ONE, A, B, World, append, damage_journal


@pytest.mark.seeds
def test_a_survey_finds_what_the_next_start_finds_after_any_power_cut() -> None:
    for seed in range(rounds(200)):
        world = World(seed=seed)
        world.manager.directories.notes.write_registration(1, [ONE])  # Otherwise gaps could be Kafka's.
        logs = world.create(A0, A1, B0)
        for count, log in enumerate(logs):
            append(log, count * 4)
        world.delete_to((A1, 3))
        world.run()
        world.manager._directories[ONE].flush(logs[2])
        world.run()
        for log in logs:
            append(log, 3)
        world.manager.release()
        world.filesystem.power_cut()
        before = {name: world.filesystem.is_directory(f"{ONE}/{name}") for name in world.names(ONE)}
        found = survey(world.filesystem, ONE)
        assert {name: world.filesystem.is_directory(f"{ONE}/{name}") for name in world.names(ONE)} == before
        assert (found.cluster_id, found.node_id, found.registration) == (CLUSTER, 1, 1)
        world.start(topics={"a": KnownTopic(A, CONFIG), "b": KnownTopic(B, CONFIG)})
        surveyed = {(each.topic, each.partition): each for each in found.replicas}
        ids = {"a": topic_id_text(A), "b": topic_id_text(B)}
        assert surveyed.keys() == world.manager.logs.keys()
        for key, log in world.manager.logs.items():
            one = surveyed[key]
            assert (one.log_start_offset, one.log_end_offset) == (log.log_start_offset, log.log_end_offset)
            assert (one.leader_epoch, one.topic_id) == (log.leader_epochs.latest, ids[key.topic])


@pytest.mark.parametrize(("first", "epoch"), [(5, 0), (10, 7)])
def test_a_leader_epoch_that_later_batches_contradict_is_left_out(first: int, epoch: int) -> None:
    """After a power cut the file of leader epochs may be older than the last records, and name a later epoch."""
    world = World()
    (log,) = world.create(A0)
    append(log, 2)
    world.manager.close()
    world.filesystem.replace_file(f"{ONE}/a-0/{LEADER_EPOCH_CHECKPOINT}", encode_epochs([(7, first)]))
    (found,) = survey(world.filesystem, ONE).replicas
    assert (found.log_end_offset, found.leader_epoch) == (10, epoch)


def test_a_directory_in_use_one_without_owner_and_a_damaged_journal_are_refused() -> None:
    world = World()
    world.create(A0)
    with pytest.raises(StorageError, match="stop it first"):
        survey(world.filesystem, ONE)
    with pytest.raises(StorageError, match="no log directory of a broker"):
        survey(world.filesystem, "/nothing")
    world.manager.close()
    damage_journal(world, ONE)
    with pytest.raises(StorageError, match="repair-log-start"):
        survey(world.filesystem, ONE)
