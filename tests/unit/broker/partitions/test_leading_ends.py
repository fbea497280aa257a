"""The end that a new leader reports while its high watermark may be old (KIP-207), also to replicas ahead of it."""

from __future__ import annotations

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

from .leading import NONE, Leading, simulate

LATEST, EARLIEST = -1, -2


async def ask(world: Leading, timestamp: int, *, version: int = 7, replica_id: int = -1) -> tuple[int, int]:
    topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    answer = await world.client.request(ListOffsetsRequest(replica_id=replica_id, topics=[topic]), version)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.offset


def test_a_new_leader_returns_no_end_that_may_be_below_an_earlier_one() -> None:
    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", (1, 2))
        await world.produce(3, acks=1)
        follower = await world.follower(2, end=2)
        await follower.fetch()
        assert await ask(world, LATEST) == (NONE, 2)
        await world.change(leader_epoch=1)
        assert await ask(world, LATEST) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await ask(world, LATEST, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert await ask(world, EARLIEST) == (NONE, 0)
        assert await ask(world, 1) == (NONE, 0), "an offset that is found is committed"
        assert await ask(world, 1 << 50) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1), "the absence of a result may be wrong"
        await follower.catch_up()
        assert await ask(world, LATEST) == (NONE, 3)
        assert await ask(world, 1 << 50) == (NONE, -1)

    simulate(run)


@pytest.mark.parametrize(("least", "told"), [("1", (NONE, 3)), ("2", (ErrorCode.OFFSET_NOT_AVAILABLE, -1))])
def test_a_leader_elected_as_the_only_one_in_sync_has_committed_all_that_it_has(
    least: str, told: tuple[int, int]
) -> None:
    """It commits at once, if one replica is enough; no follower's fetch could commit it later."""

    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", (1, 2), min_insync_replicas=least)
        await world.produce(3, acks=1)
        follower = await world.follower(2, end=2)
        await follower.fetch()
        epoch = world.image().isr_epochs[0]
        await world.change(leader_epoch=1, isr=(1,), isr_epochs=(epoch,))
        assert await ask(world, LATEST) == told

    simulate(run)


def test_a_replica_that_is_ahead_receives_where_the_logs_diverge() -> None:
    """KIP-595. It is out of range only if its fetch lacks the last epoch; then it must ask for the range."""

    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", (1, 2))
        await world.produce(2, acks=1)
        follower = await world.follower(2, end=5)
        assert (await follower.fetch()).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        answer = await follower.fetch(last_fetched_epoch=0)
        assert answer.diverging_epoch is not None
        assert (answer.error_code, answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (NONE, 0, 2)
        await world.change(leader_epoch=4)
        answer = await follower.fetch(last_fetched_epoch=3)
        assert answer.diverging_epoch is not None
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 2), "epoch 3 wrote nothing here"
        assert world.leadership().followers[2].log_end_offset == -1, "none of it counts as progress (KAFKA-13141)"

    simulate(run)


def test_a_replica_receives_the_log_end() -> None:
    """It needs the offset where the logs diverge. The high watermark would truncate records that will be committed."""

    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", (1, 2))
        await world.produce(3, acks=1)
        assert await ask(world, LATEST) == (NONE, 0)
        assert await ask(world, LATEST, replica_id=2) == (NONE, 3)

    simulate(run)
