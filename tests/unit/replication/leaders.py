"""A leader's state for tests: an image with three brokers, a log that has only offsets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.metadata.image import BrokerImage, FeaturesRecord, MetadataImage, PartitionImage
from lowtide.metadata.records import Listener
from lowtide.replication.leadership import Leadership
from lowtide.storage.log.offsets import LogOffsets

TOPIC_ID = bytes(15) + b"\x01"
LAG_MS = 1000
SELF = 1


class FakeLog(LogOffsets):
    """Offsets, leader epochs and `min.insync.replicas`."""

    def __init__(self, *, log_start_offset: int = 0, log_end_offset: int = 0, min_insync_replicas: int = 1) -> None:
        super().__init__(
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            high_watermark=log_start_offset,
            recovery_point=log_end_offset,
        )
        self.config = SimpleNamespace(min_insync_replicas=min_insync_replicas)
        self.flush_is_due = False


def image_of(revision: int, brokers: dict[int, int], *, reporting: bool = True, **changed: Any) -> MetadataImage:
    """Brokers by id, with their epochs."""
    alive = {
        broker_id: BrokerImage(broker_id, epoch, (Listener("PLAINTEXT", f"broker-{broker_id}", 9092),))
        for broker_id, epoch in brokers.items()
    }
    return MetadataImage(revision=revision, brokers=alive, features=FeaturesRecord(int(reporting)), **changed)


def partition_of(
    isr: tuple[int, ...], epochs: tuple[int, ...], *, revision: int = 10, **changed: Any
) -> PartitionImage:
    """A partition of three replicas that broker 1 leads in leader epoch 5."""
    values: dict[str, Any] = {
        "replicas": (1, 2, 3),
        "leader": SELF,
        "leader_epoch": 5,
        "partition_epoch": 1,
        "modify_revision": revision,
    }
    return PartitionImage(isr=isr, isr_epochs=epochs, **(values | changed))


def leads(log: Any, state: PartitionImage, image: MetadataImage, now_ms: int = 0) -> Leadership:
    """A leadership that begins."""
    return Leadership(
        broker_id=SELF,
        topic_id=TOPIC_ID,
        number=0,
        log=log,
        state=state,
        image=image,
        lag_time_max_ms=LAG_MS,
        now_ms=now_ms,
    )
