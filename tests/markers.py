"""Transaction markers as a coordinator writes them, for tests of logs and of their readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.control_records import end_transaction_record

if TYPE_CHECKING:
    from lowtide.protocol.control_records import ControlRecord
    from lowtide.protocol.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId


def build_end_transaction_marker(
    control: ControlRecord,
    *,
    timestamp_ms: int,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    base_offset: Offset = 0,
    leader_epoch: LeaderEpoch = -1,
) -> bytes:
    """Builds the control batch that ends a producer's transaction on one partition. Markers have no sequence."""
    key, value = end_transaction_record(control)
    return build_batch(
        [(timestamp_ms, key, value, ())],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        is_transactional=True,
        is_control=True,
    )
