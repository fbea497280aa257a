"""Dead letters: what is written about records that a share group gives up, and where (KIP-1191).

A dead letter has headers with the origin of the record, and its key and value if the group copies records. Its
partition is that of the record, modulo the number of partitions of the dead-letter topic.

| header | content, as text |
|---|---|
| `__dlq.errors.topic`, `__dlq.errors.partition`, `__dlq.errors.offset` | where the record is |
| `__dlq.errors.group` | the share group |
| `__dlq.errors.delivery.count` | how often the record was delivered |
| `__dlq.errors.message` | why it was given up |

Pure. Source: KIP-1191; Kafka's `ShareGroupDLQStateManager`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lowtide.protocol.batch_building import append_record, build_batch
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from lowtide.broker.partitions.share.given_up_records import GivenUpContents
    from lowtide.broker.partitions.share.share_rules import ShareRules
    from lowtide.broker.partitions.share.share_values import GivenUpRange
    from lowtide.metadata.image import TopicImage
    from lowtide.protocol.records import Header
    from lowtide.protocol.share_state_records import SharePlace
    from lowtide.protocol.types import Offset, TopicPartition
    from lowtide.replication.partition import Partition

GROUP_ENABLE: Final = "errors.deadletterqueue.group.enable"
"""The topic key that allows dead letters of groups."""

AUTO_CREATE: Final = "errors.deadletterqueue.auto.create.topics.enable"
PREFIX: Final = "errors.deadletterqueue.topic.name.prefix"

RESERVED_PREFIX: Final = "__"
"""Topics of coordinators take no dead letters."""

LETTERS_MAX: Final = 1_000
"""The most dead letters in one batch: some milliseconds."""

BATCH_BYTES: Final = 1 << 20
"""The size of a batch of dead letters, except for a single larger one."""

REJECTED: Final = "Offset rejected by client."
SPENT: Final = "Offset delivery count exceeded the threshold."
"""The reasons in `__dlq.errors.message`, with Kafka's words."""


class LetterOutcome(msgspec.Struct, frozen=True):
    """What became of dead letters."""

    done_offset: Offset | None
    """The last offset (inclusive) that is done; None if the dead letters are to be written later."""
    reason: str = ""
    """Why they were not written; empty if they were."""


class LetterWriter(Protocol):
    """Writes the dead letters of share partitions."""

    async def write(
        self, place: SharePlace, partition: Partition, rules: ShareRules, given_up: Sequence[GivenUpRange]
    ) -> LetterOutcome:
        """Writes one batch for the first of these offsets. May be repeated."""
        ...


class Letters(msgspec.Struct, frozen=True):
    """A batch of dead letters, for all offsets up to `last_offset` (inclusive)."""

    batch: bytes
    count: int
    last_offset: Offset


def fault_of(name: str, topic: TopicImage | None, *, creates: bool, prefix: str) -> str:
    """Returns why a topic can't be the dead-letter topic of a group; empty if it can. None is a missing topic."""
    if not name:
        return "the group has no dead-letter topic"
    if name.startswith(RESERVED_PREFIX):
        return f"the name of the dead-letter topic {name} begins with {RESERVED_PREFIX}"
    if topic is not None and topic.configs.get(GROUP_ENABLE) != "true":
        return f"the dead-letter topic {name} does not have {GROUP_ENABLE}=true"
    if topic is None and not creates:
        return f"the dead-letter topic {name} does not exist, and {AUTO_CREATE} is false"
    if not name.startswith(prefix):
        return f"the name of the dead-letter topic {name} does not begin with {PREFIX}={prefix}"
    return ""


def make_letters(
    origin: TopicPartition,
    group_id: str,
    given_up: Sequence[GivenUpRange],
    contents: GivenUpContents,
    now_ms: int,
    max_message_bytes: int,
) -> Letters:
    """Returns the dead letters of the first given-up offsets, up to the last one of `contents`.

    `contents` has the keys and values to copy. A record that is too large for the topic is not copied.
    """
    records: list[tuple[int, bytes | None, bytes | None, Sequence[Header]]] = []
    size, last_offset = RECORD_BATCH_OVERHEAD, -1
    for offset, each in _each_offset(given_up):
        if offset > contents.last_offset:
            break
        headers = headers_of(origin, group_id, offset, each)
        key, value = contents.contents.get(offset, (None, None))
        added = _size(key, value, headers)
        if RECORD_BATCH_OVERHEAD + added > max_message_bytes and (key, value) != (None, None):
            key, value = None, None
            added = _size(key, value, headers)
        if records and size + added > min(max_message_bytes, BATCH_BYTES):
            break
        records.append((now_ms, key, value, headers))
        size, last_offset = size + added, offset
        if len(records) == LETTERS_MAX:
            break
    return Letters(build_batch(records), len(records), last_offset)


def _size(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    out = bytearray()
    append_record(out, 0, LETTERS_MAX, key, value, headers=headers)
    return len(out)


def headers_of(origin: TopicPartition, group_id: str, offset: Offset, given_up: GivenUpRange) -> tuple[Header, ...]:
    """Returns the headers of a dead letter."""
    texts = {
        "topic": origin.topic,
        "partition": str(origin.partition),
        "offset": str(offset),
        "group": group_id,
        "delivery.count": str(given_up.delivery_count),
        "message": REJECTED if given_up.is_rejected else SPENT,
    }
    return tuple((f"__dlq.errors.{name}".encode(), text.encode()) for name, text in texts.items())


def _each_offset(given_up: Sequence[GivenUpRange]) -> Iterator[tuple[Offset, GivenUpRange]]:
    """Yields all offsets in order."""
    for each in given_up:
        for offset in range(each.first_offset, each.last_offset + 1):
            yield offset, each
