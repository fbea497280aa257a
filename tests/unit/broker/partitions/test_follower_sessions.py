"""A follower's session gets everything about an idle partition that the follower may lack."""

from __future__ import annotations

from typing import Any

from lowtide.protocol.messages.fetch import PartitionData

from .leading import NONE, Follower, Leading, simulate


async def fetch_in_session(follower: Follower, **changed: Any) -> PartitionData | None:
    """The next fetch of the follower's session, which it begins if there is none.

    Returns what the answer has of the partition.
    """
    request = follower.request(**{"names": True, **changed})
    request.session_id, request.session_epoch = max(follower.session_id, 0), max(follower.session_epoch, 0)
    answer = await follower.client.request(request, 17)
    assert answer.error_code == NONE
    follower.session_id, follower.session_epoch = answer.session_id, request.session_epoch + 1
    return answer.responses[0].partitions[0] if answer.responses else None


async def begin(world: Leading) -> Follower:
    """Three committed records of which two are deleted, and a follower that isn't in the ISR."""
    await world.start(2)
    await world.create_topic("t", (1, 2))
    await world.change(isr=(1,), isr_epochs=world.image().isr_epochs[:1])
    await world.produce(3)
    await world.delete(2, leader_only=True)
    assert (world.partition().log.log_start_offset, world.partition().log.high_watermark) == (2, 3)
    return await world.follower(2)


def test_a_follower_that_has_to_cut_its_log_is_sent_the_offsets_afterwards() -> None:
    """It uses nothing else of the answer that says where the logs part, and nothing may change any more."""

    async def run(world: Leading) -> None:
        follower = await begin(world)
        row = await fetch_in_session(follower, fetch_offset=5, last_fetched_epoch=world.partition().leader_epoch)
        assert row is not None
        assert row.diverging_epoch is not None
        assert row.diverging_epoch.end_offset == 3
        row = await fetch_in_session(follower, fetch_offset=3)
        assert row is not None
        assert (row.high_watermark, row.log_start_offset) == (3, 2)

    simulate(run)


def test_a_log_start_is_in_each_answer_until_the_follower_has_reported_it() -> None:
    """Also if it doesn't name the partition meanwhile.

    The answer is not hurried by that: each waits as long as it may (rule DR5).
    """

    async def run(world: Leading) -> None:
        follower = await begin(world)
        for _ in range(3):
            row = await fetch_in_session(follower, fetch_offset=3, names=follower.session_epoch < 0)
            assert row is not None
            assert row.log_start_offset == 2
        began_s = world.loop.time()
        row = await fetch_in_session(follower, wait_ms=200, names=False)
        assert row is not None
        assert world.loop.time() - began_s > 0.19
        await fetch_in_session(follower, fetch_offset=3, log_start_offset=2)
        assert await fetch_in_session(follower, wait_ms=200, names=False) is None

    simulate(run)


def test_a_follower_of_a_new_leader_epoch_is_sent_the_offsets_again() -> None:
    """It begins with nothing known: whether it may answer consumers, for one (rule DR7)."""

    async def run(world: Leading) -> None:
        follower = await begin(world)
        await fetch_in_session(follower, fetch_offset=3, log_start_offset=2)
        assert await fetch_in_session(follower, names=False) is None
        await world.change(leader_epoch=world.image().leader_epoch + 1)
        row = await fetch_in_session(follower, fetch_offset=3, log_start_offset=2)
        assert row is not None
        assert (row.high_watermark, row.log_start_offset) == (3, 2)
        assert await fetch_in_session(follower, names=False) is None

    simulate(run)
