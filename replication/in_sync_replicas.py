"""Decides which followers leave and join the ISR, and how far the high watermark may rise.

A change of the ISR is proposed to the metadata store. From that moment until the image shows the outcome, it counts
beside the committed ISR: the union is the *maximal* ISR (KIP-497). A member is listed with the registration under which
it joined (KIP-903).

Guards: the leader itself is never dropped, so the ISR is never empty. A joining follower is caught up and has
everything committed, the leader epoch's first offset, and every delete below the floor (rule DR2). It has taken part in
the search of a compacted log that is under way, and has all erasures that came of one. Nothing is committed while
replicas outside the ISR are eligible as leaders.

Sources: KIP-497, KIP-841, KIP-903, KIP-966; Kafka's `Partition`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.protocol.types import UNKNOWN_BROKER_EPOCH
from lowtide.replication.eligible_leaders import IsrProposal, eligible_leaders

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerEpoch, BrokerId, Offset
    from lowtide.replication.erasure_search import ErasureSearch
    from lowtide.replication.leadership import FollowerState, Leadership


def next_proposal(leadership: Leadership, image: MetadataImage, now_ms: int) -> IsrProposal | None:
    """Returns the next change of the ISR; None if none is needed or one is already pending."""
    if leadership.proposal is not None or leadership.refused_at >= image.revision:
        return None
    state = leadership.state
    kept = [
        (member, epoch)
        for member, epoch in zip(state.isr, state.isr_epochs, strict=True)
        if member == leadership.broker_id or stays_in_sync(leadership, member, epoch, image, now_ms)
    ]
    members = dict(zip(state.isr, state.isr_epochs, strict=True))
    joining = [
        (broker_id, follower.broker_epoch)
        for broker_id, follower in leadership.followers.items()
        if members.get(broker_id) != follower.broker_epoch and may_join(leadership, broker_id, follower, image, now_ms)
    ]
    wanted = kept + joining
    isr, epochs = tuple(member for member, _ in wanted), tuple(epoch for _, epoch in wanted)
    least = leadership.min_insync_replicas
    eligible = eligible_leaders(image, leadership.topic_id, leadership.number, state, isr, state.replicas, least)
    if (isr, epochs) == (state.isr, state.isr_epochs) and (eligible or not state.elr):
        return None
    return IsrProposal(state, image.revision, isr, epochs, tuple(eligible), tuple(eligible.values()))


def propose(leadership: Leadership, proposal: IsrProposal) -> None:
    """Sets the proposed ISR before it is written. Its members count from now on: the high watermark waits for them."""
    assert leadership.proposal is None
    leadership.proposal = proposal
    leadership.count_isr()


def on_refused(leadership: Leadership, proposal: IsrProposal, *, conflicted: bool) -> bool:
    """Drops a change that the store has refused. Returns whether it was the pending one."""
    if leadership.proposal is not proposal:
        return False
    leadership.proposal = None
    if conflicted:
        leadership.refused_at = proposal.decided_at
    leadership.count_isr()
    return True


def begin_search(leadership: Leadership, search: ErasureSearch) -> None:
    """Begins the search for an erasure: only replicas that take part join the ISR until it ends."""
    assert leadership.erasure_search is None, leadership.erasure_search
    leadership.erasure_search = search


def may_search(search: ErasureSearch, broker_id: BrokerId, follower: FollowerState, image: MetadataImage) -> bool:
    """Returns whether a follower can search now: its log is known to match ours up to the end of the search."""
    return (
        not search.has_part(broker_id, image)
        and follower.broker_epoch != UNKNOWN_BROKER_EPOCH
        and image.broker_epoch(broker_id) == follower.broker_epoch
        and follower.matches
        and follower.log_end_offset >= search.end_offset
    )


def end_search(leadership: Leadership, search: ErasureSearch, erasures_end: Offset = 0) -> None:
    """Ends a search, unless it has ended. `erasures_end` is the exclusive end of its erasures, if there are any."""
    leadership.erasures_end = max(leadership.erasures_end, erasures_end)
    if leadership.erasure_search is search:
        leadership.erasure_search = None


def stays_in_sync(
    leadership: Leadership, member: BrokerId, epoch: BrokerEpoch, image: MetadataImage, now_ms: int
) -> bool:
    """Returns whether an ISR member stays: its registration, broker and directory are valid, and it keeps up."""
    follower = leadership.followers.get(member)
    if follower is None or image.broker_epoch(member) != epoch:
        return False
    if not image.may_be_in_sync(member, leadership.topic_id, leadership.number):
        return False
    return follower.is_caught_up(leadership.log.log_end_offset, leadership.lag_time_max_ms, now_ms)


def may_join(
    leadership: Leadership, broker_id: BrokerId, follower: FollowerState, image: MetadataImage, now_ms: int
) -> bool:
    """Returns whether a follower outside the ISR is in sync and would stay so.

    Having everything committed is not enough. While fewer than `min.insync.replicas` replicas are in sync, the high
    watermark stands still, perhaps at the position of a follower that can't append. That follower would be added,
    dropped as too slow, and added again, each time with a write to the metadata store. (Kafka adds it too; there a
    timer drops it.)
    """
    log, limit_ms = leadership.log, leadership.lag_time_max_ms
    if follower.log_end_offset < log.high_watermark or follower.log_end_offset < leadership.epoch_start_offset:
        return False
    if lacks_erasure(leadership, broker_id, follower, image):
        return False
    if not is_eligible(leadership, broker_id, follower, image) or not follower.has_fetched_within(limit_ms, now_ms):
        return False
    if not follower.is_caught_up(log.log_end_offset, limit_ms, now_ms):
        return False
    if not image.log_start_reporting:
        return True
    return follower.matches and follower.log_start_offset >= leadership.floor


def lacks_erasure(leadership: Leadership, broker_id: BrokerId, follower: FollowerState, image: MetadataImage) -> bool:
    """Returns whether an erasure of a compacted log keeps a follower out of the ISR.

    That is so if the follower has not taken part in the current search, or if its log ends below an erasure:
    it may have to start over.
    Source: docs/adr/0024-model-of-erasures.md.
    """
    search = leadership.erasure_search
    if search is not None and not search.has_part(broker_id, image):
        return True
    return follower.log_end_offset < leadership.erasures_end


def is_eligible(leadership: Leadership, broker_id: BrokerId, follower: FollowerState, image: MetadataImage) -> bool:
    """Returns whether the broker may be in sync under the registration of its last fetch."""
    if follower.broker_epoch == UNKNOWN_BROKER_EPOCH or image.broker_epoch(broker_id) != follower.broker_epoch:
        return False
    return image.may_be_in_sync(broker_id, leadership.topic_id, leadership.number)


def high_watermark(leadership: Leadership, image: MetadataImage, now_ms: int) -> Offset:
    """Returns the highest allowed high watermark: the lowest log end of the maximal ISR and of followers about to join.

    It stands still while the ISR is smaller than `min.insync.replicas`, as in Kafka, and while other replicas are
    eligible as leaders.
    """
    if len(leadership.state.isr) < leadership.min_insync_replicas or leadership.state.elr:
        return leadership.log.high_watermark
    leader_end = end = leadership.log.log_end_offset
    for broker_id, follower in leadership.followers.items():
        if follower.log_end_offset >= end:
            continue
        if broker_id in leadership.maximal_isr or (
            follower.is_caught_up(leader_end, leadership.lag_time_max_ms, now_ms)
            and is_eligible(leadership, broker_id, follower, image)
            and not lacks_erasure(leadership, broker_id, follower, image)
        ):
            end = follower.log_end_offset
    return end
