"""The low watermark: how far deletes have reached everybody who must have them (rules DR2 and DR3).

Asked are every live replica and every member of the maximal ISR. Live is whose broker is registered, isn't about to stop, whose log
directory works, and who has fetched from this leader within `replica.lag.time.max.ms`. What counts is a log start that was reported in
a fetch of this leader epoch and of the broker's present registration; unknown is -1, so that nothing is acknowledged with it.

Source: KIP-107, which asks live brokers only, and any report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.protocol.types import UNKNOWN_OFFSET

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerId, Offset
    from lowtide.replication.follower_state import FollowerState
    from lowtide.replication.leadership_state import LeadershipState


def low_watermark(leadership: LeadershipState, image: MetadataImage, now_ms: int) -> Offset:
    """The smallest log start of all that must have a delete; -1 while one of them hasn't reported its own."""
    lowest = leadership.log.log_start_offset
    for broker_id, follower in leadership.followers.items():
        if is_asked(leadership, broker_id, follower, image, now_ms):
            lowest = min(lowest, reported_log_start(leadership, broker_id, follower, image, now_ms))
    return lowest


def is_asked(leadership: LeadershipState, broker_id: BrokerId, follower: FollowerState, image: MetadataImage, now_ms: int) -> bool:
    """Whether a delete has to reach this replica before it is acknowledged."""
    return broker_id in leadership.maximal_isr or is_live(leadership, broker_id, follower, image, now_ms)


def is_live(leadership: LeadershipState, broker_id: BrokerId, follower: FollowerState, image: MetadataImage, now_ms: int) -> bool:
    """Whether this replica may be led by now, as far as we know. A registration that our image doesn't show yet counts as live."""
    if follower.may_have_registered(image.revision, leadership.lag_time_max_ms, now_ms):
        return True
    if not follower.has_fetched_within(leadership.lag_time_max_ms, now_ms):
        return False
    return image.may_be_in_sync(broker_id, leadership.topic_id, leadership.number)


def reported_log_start(
    leadership: LeadershipState, broker_id: BrokerId, follower: FollowerState, image: MetadataImage, now_ms: int
) -> Offset:
    """What this replica has reported under its present registration, else -1."""
    if follower.may_have_registered(image.revision, leadership.lag_time_max_ms, now_ms):
        return UNKNOWN_OFFSET
    present = image.broker_epoch(broker_id)
    return UNKNOWN_OFFSET if present is not None and follower.broker_epoch < present else follower.log_start_offset


def slow_at_ms(leadership: LeadershipState, image: MetadataImage, now_ms: int) -> int | None:
    """When the first live replica outside the maximal ISR, or registration that isn't shown, will have been silent for too long.

    That is no event of its own: operations that wait for the low watermark must look again then (rule DR4). None without any.
    """
    limit_ms, times = leadership.lag_time_max_ms, []
    for broker_id, follower in leadership.followers.items():
        if follower.may_have_registered(image.revision, limit_ms, now_ms):
            times.append(follower.unseen_ms)
        elif broker_id not in leadership.maximal_isr and is_live(leadership, broker_id, follower, image, now_ms):
            times.append(follower.last_fetch_ms)
    return min(times) + limit_ms + 1 if times else None
