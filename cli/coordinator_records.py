"""Decodes records of `__consumer_offsets` and `__transaction_state` for people and for JSON."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import msgspec

from lowtide.broker.coordinator.transactions.transaction_state import STATE_NAMES, TransactionState
from lowtide.protocol.consumer_group_records import ConsumerGroupChange
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.group_records import GroupMetadata, OffsetCommit, decode_record
from lowtide.protocol.share_group_records import ShareGroupChange
from lowtide.protocol.streams_group_records import StreamsGroupChange
from lowtide.protocol.transaction_records import decode_transaction
from lowtide.protocol.types import ZERO_TOPIC_ID, topic_id_text

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"


def decoded(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """Decodes a record of a coordinator's topic; returns None for other topics and unknown kinds of records.

    `type` is the kind; a tombstone has the value None. Invalid bytes have the kind `unreadable`, with a reason.
    """
    try:
        if topic == OFFSETS_TOPIC:
            return _of_group(decode_record(key, value))
        if topic == TRANSACTIONS_TOPIC:
            found = decode_transaction(key, value)
            if found is None:
                return None
            said = None if found.value is None else plain(found.value)
            if said is not None:
                number = said["transaction_status"]
                said["transaction_status"] = (
                    STATE_NAMES[TransactionState(number)] if number in list(TransactionState) else number
                )
            return {"type": "transaction", "transactional_id": found.transactional_id, "value": said}
    except ProtocolError as error:
        return {"type": "unreadable", "reason": str(error)}
    return None


def _of_group(
    found: OffsetCommit | GroupMetadata | ConsumerGroupChange | ShareGroupChange | StreamsGroupChange | None,
) -> dict[str, Any] | None:
    if found is None:
        return None
    said = None if found.value is None else plain(found.value)
    if isinstance(found, OffsetCommit):
        return {
            "type": "offset",
            "group": found.key.group,
            "topic": found.key.topic,
            "partition": found.key.partition,
            "value": said,
        }
    if isinstance(found, GroupMetadata):
        return {"type": "classic-group", "group": found.group, "value": said}
    types: dict[type[Any], str] = {ShareGroupChange: "share", StreamsGroupChange: "streams"}
    group_type = types.get(type(found), "consumer")
    kind = f"{group_type}-group-{found.kind.name.lower().replace('_', '-')}"
    return {"type": kind, "group": found.group, **({"name": found.name} if found.name else {}), "value": said}


def plain(value: Any) -> Any:
    """Converts a message to dictionaries and lists; topic ids to Kafka's text form, other bytes to hex digits."""
    if isinstance(value, msgspec.Struct):
        return {name: _field(name, getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Enum):
        return value.name
    return value.hex() if isinstance(value, bytes) else value


def _field(name: str, value: Any) -> Any:
    if name == "topic_id" and isinstance(value, bytes):
        return None if value == ZERO_TOPIC_ID else topic_id_text(value)
    return plain(value)


def in_words(said: dict[str, Any]) -> str:
    """Formats a decoded record in one line."""
    head = " ".join(f"{name} {each}" for name, each in said.items() if name not in ("type", "value"))
    value = said.get("value")
    if said["type"] == "unreadable":
        return f"unreadable: {said['reason']}"
    if value is None:
        return f"{said['type']} {head}: deleted"
    return f"{said['type']} {head}: {msgspec.json.encode(value).decode()}"
