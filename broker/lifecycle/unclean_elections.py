"""Tells operators of leaders that were elected although they lacked records: `unclean.leader.election.enable`, or asked for.

The controller tells of all, and each new leader of its own partitions; a follower that cuts its log below what was committed says so
itself (`replica_fetcher`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lowtide.replication.elections import led_uncleanly

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.metadata.image import ImageDelta, MetadataImage
    from lowtide.protocol.types import BrokerId, TopicPartition

_PARTITIONS_NAMED: Final = 5
"""In a line about any number of them."""


class UncleanElections:
    """Logs and counts them, for one broker."""

    def __init__(self, broker_id: BrokerId, log: Any) -> None:
        self.count = 0
        """Those that were decided while this broker was the controller: of all brokers each is counted by one."""
        self._broker_id = broker_id
        self._log = log

    def on_image(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        """At most two lines for an image. `old` is the one before, and `delta` leads from it to `new`."""
        found = led_uncleanly(old, delta)
        here = [key for key, leader in found.items() if leader == self._broker_id]
        if here:
            self._log.warning(
                "this broker leads partitions that it wasn't in sync with, records are lost", **_told(here)
            )
        if found and new.controller_id == self._broker_id:
            self.count += len(found)
            self._log.warning("leaders were elected uncleanly, records are lost", **_told(found))


def _told(keys: Iterable[TopicPartition]) -> dict[str, Any]:
    names = [str(key) for key in keys]
    return {"partitions": len(names), "some_partitions": names[:_PARTITIONS_NAMED]}
