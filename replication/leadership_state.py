"""What the leader of a partition knows while it leads: a value that `leadership` changes, and that other decisions read.

`in_sync_replicas` decides from it who is in sync. Nothing is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.replication.follower_state import FollowerState

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage, PartitionImage
    from lowtide.metadata.store import Revision
    from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicId
    from lowtide.storage.log.log import Log


class IsrProposal(msgspec.Struct, eq=False):
    """An ISR that was proposed in place of the one of `base`. Compared by identity: the same wish may come twice.

    `decided_at` is the revision of the image on which it was decided.
    """

    base: PartitionImage
    decided_at: Revision
    isr: tuple[BrokerId, ...]
    isr_epochs: tuple[BrokerEpoch, ...]


class LeadershipState:
    """One leadership. `state` is the partition as the image shows it; `number` its number within the topic."""

    __slots__ = (
        "broker_id",
        "elected_ms",
        "epoch_start_offset",
        "floor",
        "followers",
        "lag_time_max_ms",
        "log",
        "maximal_isr",
        "number",
        "proposal",
        "refused_at",
        "state",
        "topic_id",
    )

    def __init__(  # noqa: PLR0913  a state, by keyword
        self,
        *,
        broker_id: BrokerId,
        topic_id: TopicId,
        number: int,
        log: Log,
        state: PartitionImage,
        image: MetadataImage,
        lag_time_max_ms: int,
        now_ms: int,
    ) -> None:
        """A leadership that begins now (monotonic). Every replica that the image shows unfenced counts as having fetched just now."""
        self.broker_id = broker_id
        self.topic_id = topic_id
        self.number = number
        self.log = log
        self.state = state
        self.lag_time_max_ms = lag_time_max_ms
        self.elected_ms = now_ms
        self.epoch_start_offset = log.log_end_offset
        self.floor = log.log_start_offset
        """The least log start of who joins the ISR: ours when we were elected, or the largest delete that we have acknowledged since."""
        self.proposal: IsrProposal | None = None
        self.refused_at: Revision = -1
        """The revision of the image on which a proposal was decided that conflicted: nothing is decided on that one again."""
        self.maximal_isr: frozenset[BrokerId] = frozenset(state.isr)
        self.followers: dict[BrokerId, FollowerState] = {}
        for other in state.replicas:
            if other != broker_id:
                follower = self.followers[other] = FollowerState()
                if image.broker_epoch(other) is not None:
                    follower.noted_fetch_ms = now_ms
                if other in state.isr:
                    follower.caught_up_ms = now_ms

    @property
    def min_insync_replicas(self) -> int:
        """The topic's `min.insync.replicas`, or all replicas where they are fewer."""
        return min(self.log.config.min_insync_replicas, len(self.state.replicas))
