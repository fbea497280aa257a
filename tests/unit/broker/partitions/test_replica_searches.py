"""Which leader a follower searches its replica for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.partitions.compacted_erasures import together
from lowtide.broker.partitions.replica_searches import why_not_searched
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.erasure_search import FoundRecord
from lowtide.storage.erasures.record_search import FoundRecords

TOPIC, OTHER, EPOCH, END = b"t" * 16, b"o" * 16, 5, 10


@pytest.mark.parametrize(
    ("changed", "topic_id", "leader_epoch", "end_offset", "expected"),
    [
        ({}, TOPIC, EPOCH, END, ErrorCode.NONE),
        ({}, bytes(16), EPOCH, END - 1, ErrorCode.NONE),
        ({}, OTHER, EPOCH, END, ErrorCode.INCONSISTENT_TOPIC_ID),
        ({}, TOPIC, EPOCH - 1, END, ErrorCode.FENCED_LEADER_EPOCH),
        ({}, TOPIC, EPOCH + 1, END, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"is_leader": True}, TOPIC, EPOCH, END, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({}, TOPIC, EPOCH, END + 1, ErrorCode.OFFSET_NOT_AVAILABLE),
        ({}, TOPIC, EPOCH, -1, ErrorCode.OFFSET_NOT_AVAILABLE),
        ({"truncating": True}, TOPIC, EPOCH, END, ErrorCode.OFFSET_NOT_AVAILABLE),
    ],
)
def test_a_follower_searches_for_its_present_leader_up_to_what_it_has(
    changed: dict[str, Any], topic_id: bytes, leader_epoch: int, end_offset: int, expected: ErrorCode
) -> None:
    """Protects against offsets at which the leader has other records, and against records that arrive later."""
    log = SimpleNamespace(topic_id=TOPIC, log_end_offset=END, truncating=changed.get("truncating", False))
    partition: Any = SimpleNamespace(log=log, leader_epoch=EPOCH, is_leader=changed.get("is_leader", False))
    assert why_not_searched(partition, topic_id, leader_epoch, end_offset) is expected


def test_what_all_have_found_is_in_order_and_has_each_record_once() -> None:
    """Protects the ledger, which names each record with its time and its leader epoch."""
    own = FoundRecords()
    for offset in (2, 5):
        own.offsets.append(offset)
        own.timestamps.append(10 * offset)
        own.leader_epochs.append(1)
    found = together(own, {1: FoundRecord(10, 0), 5: FoundRecord(50, 1), 9: FoundRecord(90, 2)})
    assert list(found.offsets) == [1, 2, 5, 9]
    assert list(found.timestamps) == [10, 20, 50, 90]
    assert list(found.leader_epochs) == [0, 1, 1, 2]
