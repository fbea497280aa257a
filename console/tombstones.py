"""Records with the keys of an erased person and no value, so that tables that were made of the topics forget them too.

Each goes to the partition where Java's clients put its key, if something was erased there. It contains the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError
from lowtide.admin.producing import produce_records
from lowtide.console.answers import bad, sentence_of
from lowtide.protocol.key_hash import partition_of_key
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient

TOMBSTONES_MAX: Final = 10_000
"""Tombstones of one erasure: keys times topics."""

STEP: Final = 200
"""So many keys are assigned to partitions before the event loop gets its turn."""


async def keys_by_place(
    keys: Collection[bytes], partition_counts: Mapping[str, int], erased: Collection[TopicPartition]
) -> dict[TopicPartition, list[bytes]]:
    """Returns the keys of each partition's tombstones. Errors: RefusedError for too many."""
    chosen, found = frozenset(erased), dict[TopicPartition, list[bytes]]()
    topics = sorted({key.topic for key in chosen})
    if len(keys) * len(topics) > TOMBSTONES_MAX:
        raise bad(f"{len(keys)} keys in {len(topics)} topics are too many tombstones: at most {TOMBSTONES_MAX}.")
    for number, (topic, key) in enumerate((topic, key) for topic in topics for key in sorted(keys)):
        place = TopicPartition(topic, partition_of_key(key, partition_counts[topic]))
        if place in chosen:
            found.setdefault(place, []).append(key)
        if number % STEP == 0:
            await asyncio.sleep(0)
    return found


async def write_tombstones(
    client: AdminClient, keys: Mapping[TopicPartition, Collection[bytes]], now_ms: int
) -> dict[str, Any]:
    """Writes them; returns how many are written, and why others are not."""
    records = {place: [(now_ms, key, None, ()) for key in some] for place, some in keys.items()}
    try:
        outcomes = await produce_records(client, records)
    except AdminError as error:
        return {"written": 0, "error": sentence_of(error)}
    failed = [each for each in outcomes.values() if isinstance(each, AdminError)]
    written = sum(len(keys[place]) for place, each in outcomes.items() if not isinstance(each, AdminError))
    return {"written": written, "error": sentence_of(failed[0]) if failed else None}
