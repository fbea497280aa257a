"""Whether a leader can prove that a follower's log is a part of its own.

Compared with the model of log ends, on small logs.
"""

from __future__ import annotations

from itertools import product

import pytest

from lowtide.replication import in_sync_replicas
from lowtide.replication.eligible_leaders import IsrProposal
from lowtide.replication.leadership import FollowerFetch
from lowtide.storage.log.offsets import LeaderEpochs
from tests.model import log_ends

from .leaders import LAG_MS, FakeLog, image_of, leads, partition_of

END = 3
EPOCHS = (1, 2, 3)


def epochs_of(log: tuple[int, ...], start: int) -> LeaderEpochs:
    """The known epochs of a log, deleted up to `start`; 0 is a record without a known epoch."""
    epochs = LeaderEpochs()
    for offset, epoch in enumerate(log):
        if epoch != log_ends.GONE:
            epochs.assign(epoch, offset)
    epochs.truncate_from_start(start)
    return epochs


def logs(end: int) -> list[tuple[int, ...]]:
    """Leader epochs never fall along a log."""
    return [log for log in product(EPOCHS, repeat=end) if list(log) == sorted(log)]


def replica(log: tuple[int, ...], start: int) -> log_ends.Replica:
    return log_ends.Replica(log, start, start, None, start, True, True)


def told(
    log: tuple[int, ...], start: int, epochs: LeaderEpochs, follower: tuple[int, ...], follower_start: int
) -> bool:
    """The leader's verdict on a fetch that does not diverge by its epochs."""
    ours = FakeLog(log_start_offset=start, log_end_offset=len(log))
    ours.leader_epochs = epochs
    leadership = leads(ours, partition_of((1, 2), (1, 2)), image_of(10, {1: 1, 2: 2}))
    return leadership.matches(
        FollowerFetch(2, 2, len(follower), follower_start, 5, last_fetched_epoch=follower[-1] if follower else -1)
    )


@pytest.mark.parametrize("start", range(END + 1))
def test_a_log_that_is_reported_to_match_does_so_in_the_model(start: int) -> None:
    """This is for a log that ends at our log start, where there is nothing else to compare."""
    found = 0
    for log in logs(END):
        for follower, follower_start in product(logs(start), range(start + 1)):
            epochs = epochs_of(log, start)
            last = follower[-1] if follower else -1
            diverges = last in EPOCHS and epochs.end_offset_for(last, END)[0] < last
            if diverges or not told(log, start, epochs, follower, follower_start):
                continue
            found += 1
            assert log_ends.matches(replica(follower, follower_start), replica(log, start)), (
                log,
                follower,
                follower_start,
            )
    assert found > 0


def test_a_log_without_epochs_proves_only_logs_with_the_same_start() -> None:
    """As after a reset by a leader without records: any epoch may be that of a lost leadership."""
    empty = LeaderEpochs()
    assert not told((0, 0), 2, empty, (1, 2), 0)
    assert not log_ends.matches(replica((1, 2), 0), replica((0, 0), 2))
    assert told((0, 0), 2, empty, (1, 2), 2)


def test_an_epoch_that_begins_above_the_start_proves_nothing_about_records_below() -> None:
    """Older message formats leave this: records without a known epoch, then records with one."""
    epochs = LeaderEpochs([(2, 2)])
    assert not told((0, 0, 2), 1, epochs, (2,), 0)
    assert told((0, 0, 2), 2, LeaderEpochs([(2, 2)]), (2, 2), 0)


def test_the_members_of_a_refused_proposal_do_not_count() -> None:
    """Deletes and the high watermark wait for them while the change is under way, and not after it is refused."""
    log, image = FakeLog(log_end_offset=3), image_of(10, {1: 1, 2: 2, 3: 3})
    leadership = leads(log, partition_of((1, 2), (1, 2)), image)
    log.move_log_start(2)
    leadership.note_fetch(FollowerFetch(2, 2, 3, 2, 5, 5), image, 0)
    proposal = IsrProposal(leadership.state, 10, (1, 2, 3), (1, 2, 3))
    in_sync_replicas.propose(leadership, proposal)
    later = 10 * LAG_MS
    assert leadership.low_watermark(image, later) == -1, "broker 3 is about to join, and has reported nothing"
    assert in_sync_replicas.on_refused(leadership, proposal, conflicted=True)
    assert leadership.maximal_isr == {1, 2}
    assert leadership.low_watermark(image, later) == 2
    assert not in_sync_replicas.on_refused(leadership, proposal, conflicted=True), "it is refused once"
