"""Writes records by hand, after a rehearsal that says what is written to which partition.

Keys, values and headers are text, JSON, hex or base64; a value of null is a tombstone.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.configs import ConfigResource
from lowtide.admin.errors import AdminError, DeadlineExceededError
from lowtide.admin.producing import WrittenRecords
from lowtide.console import arguments
from lowtide.console.answers import RefusedError, bad, sentence_of
from lowtide.console.arguments import Parameters
from lowtide.console.topic import topic_of
from lowtide.console.topic_changes import check_same
from lowtide.protocol.batch_building import UnplacedRecord, build_batch
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.key_hash import partition_of_key
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.json_text import decode_json

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import TopicDescription
    from lowtide.console.sessions import ConsolePorts

RECORDS_MAX: Final = 500
"""Records of one request."""

HEADERS_MAX: Final = 100
FORMS: Final = ("text", "json", "hex", "base64", "null")
TEXT_MAX: Final = 64 * 1024
TIMESTAMP_MAX: Final = 2**63 - 1
_KEYS: Final = ("cleanup.policy", "max.message.bytes")


@dataclass(frozen=True, slots=True)
class RehearsedRecords:
    """Records to write, by partition, and the topic as it was."""

    topic: TopicDescription
    records: Mapping[TopicPartition, Sequence[UnplacedRecord]]
    sizes: Mapping[TopicPartition, int]
    """The bytes of each batch."""
    notes: Sequence[str]


async def rehearse_records(client: AdminClient, given: Parameters, ports: ConsolePorts) -> RehearsedRecords:
    """Places the records in partitions; writes nothing. Errors: RefusedError, AdminError."""
    topic = await topic_of(client, arguments.topic(given))
    records = records_given(given, ports.clock.wall_ms())
    number = None
    if given.get("partition") not in (None, ""):
        number = arguments.number(given, "partition", 0, arguments.PARTITION_MAX)
        if number not in topic.partitions:
            raise bad(f"The topic has no partition {number}.")
    available = [each for each, row in topic.partitions.items() if row.leader is not None] or list(topic.partitions)
    keyless = available[ports.random.getrandbits(31) % len(available)]
    placed = placed_records(topic.name, len(topic.partitions), records, number, keyless)
    settings = await _settings(client, topic.name)
    sizes = {key: len(build_batch(some)) for key, some in placed.items()}
    largest, limit = max(sizes.values()), settings.get("max.message.bytes", "")
    if limit.isdecimal() and largest > int(limit):
        raise bad(f"The records of a partition have {largest} bytes: the topic takes at most {limit} in a batch.")
    return RehearsedRecords(topic, placed, sizes, notes_of(records, settings.get("cleanup.policy", "")))


def records_given(given: Parameters, now_ms: int) -> list[UnplacedRecord]:
    """Reads the records of a request. Errors: RefusedError."""
    rows = given.get("records")
    if not isinstance(rows, list) or not 0 < len(rows) <= RECORDS_MAX:
        raise bad(f"records must be a list of 1 to {RECORDS_MAX} records.")
    return [_record(row, number, now_ms) for number, row in enumerate(rows, 1)]


def _record(row: Any, number: int, now_ms: int) -> UnplacedRecord:
    if not isinstance(row, dict):
        raise bad(f"Record {number} must be an object.")
    headers = row.get("headers", [])
    if not isinstance(headers, list) or len(headers) > HEADERS_MAX:
        raise bad(f"Record {number} must have a list of at most {HEADERS_MAX} headers.")
    timestamp = now_ms if row.get("timestamp") is None else arguments.number(row, "timestamp", 0, TIMESTAMP_MAX)
    return (
        timestamp,
        content(row.get("key"), f"The key of record {number}"),
        content(row.get("value"), f"The value of record {number}"),
        [_header(each, number) for each in headers],
    )


def _header(given: Any, number: int) -> tuple[bytes, bytes | None]:
    if not isinstance(given, dict):
        raise bad(f"A header of record {number} must be an object with name and value.")
    name = arguments.text(given, "name", longest=TEXT_MAX)
    return name.encode("utf-8", "surrogateescape"), content(given.get("value"), f"The header {name}")


def content(given: Any, what: str) -> bytes | None:
    """Returns the bytes of a key or a value, given as an object with form and text. Errors: RefusedError.

    >>> content({"form": "hex", "text": "4c54"}, "The key"), content({"form": "null"}, "The key"), content(None, "It")
    (b'LT', None, None)
    >>> content({"form": "json", "text": '{"a": 1}'}, "The value")
    b'{"a": 1}'
    """
    if given is None:
        return None
    if not isinstance(given, dict):
        raise bad(f"{what} must be an object with form and text.")
    form, text = arguments.choice(given, "form", FORMS), given.get("text", "")
    if form == "null":
        return None
    if not isinstance(text, str) or len(text) > TEXT_MAX:
        raise bad(f"{what} must be a text of at most {TEXT_MAX} characters.")
    try:
        return _bytes(form, text)
    except ValueError as error:
        why = f"JSON: {sentence_of(error)}" if form == "json" else f"{form}."
        raise bad(f"{what} is not {why}") from None


def _bytes(form: str, text: str) -> bytes:
    """Returns the bytes of a content in its form. Errors: ValueError."""
    if form == "hex":
        return bytes.fromhex(text)
    if form == "base64":
        return base64.b64decode("".join(text.split()), validate=True)
    found = text.encode()
    if form == "json":
        decode_json(found)
    return found


def placed_records(
    topic: str, count: int, records: Sequence[UnplacedRecord], number: int | None, keyless: int
) -> dict[TopicPartition, list[UnplacedRecord]]:
    """Groups records by partition: `number`, or the partition of the key, or `keyless` without a key."""
    found: defaultdict[TopicPartition, list[UnplacedRecord]] = defaultdict(list)
    for record in records:
        by_key = keyless if record[1] is None else partition_of_key(record[1], count)
        found[TopicPartition(topic, by_key if number is None else number)].append(record)
    return dict(sorted(found.items()))


def notes_of(records: Sequence[UnplacedRecord], cleanup_policy: str) -> list[str]:
    """Returns what the visitor should know before the records are written, as sentences."""
    is_compacted = "compact" in cleanup_policy
    tombstones = sum(value is None for _, key, value, _ in records if key is not None)
    notes = []
    if tombstones and is_compacted:
        notes.append("The topic is compacted: earlier records with the key of a tombstone will be deleted.")
    elif tombstones:
        notes.append("The topic is not compacted: a tombstone deletes nothing here.")
    if is_compacted and any(key is None for _, key, _, _ in records):
        notes.append("The topic is compacted, so its brokers refuse records without a key.")
    elif is_compacted and any(value is not None for _, _, value, _ in records):
        notes.append("The topic is compacted: the records replace earlier ones with the same keys.")
    if any(key is None and value is None for _, key, value, _ in records):
        notes.append("A record has neither a key nor a value.")
    return notes


def records_value(plan: RehearsedRecords) -> dict[str, Any]:
    """Returns what would be written, for the page."""
    return {
        "topic": plan.topic.name,
        "records": sum(len(some) for some in plan.records.values()),
        "partitions": [
            {"partition": key.partition, "records": len(some), "bytes": plan.sizes[key]}
            for key, some in plan.records.items()
        ],
        "tombstones": sum(value is None for some in plan.records.values() for _, _, value, _ in some),
        "notes": list(plan.notes),
    }


async def carry_out_records(client: AdminClient, plan: RehearsedRecords) -> dict[str, Any]:
    """Writes the records, unless the topic has changed since. Errors: RefusedError, AdminError."""
    await check_same(client, plan.topic)
    try:
        outcomes = await client.produce_records(plan.records)
    except DeadlineExceededError as error:
        raise _maybe_written(error) from None
    errors = [each for each in outcomes.values() if isinstance(each, AdminError)]
    if len(errors) == len(outcomes):
        raise _maybe_written(errors[0]) if isinstance(errors[0], DeadlineExceededError) else errors[0]
    return {
        "topic": plan.topic.name,
        "partitions": [
            {"partition": key.partition, "records": len(some), **_written(outcomes[key])}
            for key, some in plan.records.items()
        ],
    }


def _written(found: WrittenRecords | AdminError) -> dict[str, Any]:
    if isinstance(found, DeadlineExceededError):
        return {"offset": None, "error": str(_maybe_written(found))}
    if isinstance(found, AdminError):
        return {"offset": None, "error": sentence_of(found)}
    return {"offset": found.first_offset, "error": None}


def _maybe_written(error: DeadlineExceededError) -> RefusedError:
    sentence = f"The brokers did not answer in time, so records may have been written: {sentence_of(error)}"
    return RefusedError(HTTPStatus.GATEWAY_TIMEOUT, sentence)


async def _settings(client: AdminClient, name: str) -> dict[str, str]:
    """Returns the settings that limit what can be written; none if the user may not see them."""
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    try:
        found = (await client.describe_configs([resource], keys=_KEYS))[resource]
    except AdminError:
        return {}
    return {} if isinstance(found, AdminError) else {key: entry.value or "" for key, entry in found.items()}
