"""Whether a broker may act under its registration: lead, answer what is read, acknowledge what was written.

A broker whose metadata store is elsewhere may be given up there while it runs: it was cut off, or its process slept. From before that
moment (`metadata/session.py`, `FENCE_PART`) until it is registered again it answers NOT_LEADER_OR_FOLLOWER. This is asked at each answer,
not by a timer: a process that slept runs on with what it was about to do.

Guards: no leadership of an earlier registration is resumed. After a new one the broker leads again when the metadata show all its leaders
elected anew.

Does not do: a broker with an embedded store needs none of it: store and broker live and die together.
"""

from __future__ import annotations

from lowtide.metadata.image import MetadataImage
from lowtide.metadata.session import MetadataSession
from lowtide.protocol.types import BrokerEpoch, BrokerId


class Fence:
    """The fence of one broker."""

    __slots__ = ("_epoch", "_looked_at", "_session", "_was_up")

    def __init__(self, session: MetadataSession) -> None:
        """Up until the session has a registration and the metadata show what it leads."""
        self._session = session
        self._epoch: BrokerEpoch = 0
        self._looked_at: tuple[BrokerEpoch, MetadataImage] | None = None
        self._was_up = False

    def is_up(self) -> bool:
        """Whether the broker must not act now."""
        session = self._session
        if session.is_fenced:
            return True
        epoch, image = session.broker_epoch, session.image
        if epoch != self._epoch and self._looked_at != (epoch, image):
            self._looked_at = (epoch, image)
            if image.revision >= epoch and _leads_anew(image, session.broker_id, epoch):
                self._epoch = epoch
        return epoch != self._epoch

    def turned(self) -> bool | None:
        """Whether the fence is up, when that is news since the last time of asking; else None."""
        now, before = self.is_up(), self._was_up
        self._was_up = now
        return now if now != before else None


def _leads_anew(image: MetadataImage, broker_id: BrokerId, epoch: BrokerEpoch) -> bool:
    """Whether everything that the broker leads was elected under this epoch."""
    led = (partition for topic in image.topics.values() for partition in topic.partitions if partition.leader == broker_id)
    return all(partition.isr_epochs[partition.isr.index(broker_id)] == epoch for partition in led)
