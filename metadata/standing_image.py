"""What an image shows of standing erasures, by erasure id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.records import StandingRecord, decode

if TYPE_CHECKING:
    from lowtide.metadata.store import KeyEvent, KeyValue, Revision


class StandingImage(msgspec.Struct, frozen=True):
    """One standing erasure. A change compares `revision`."""

    record: StandingRecord
    revision: Revision


def apply_standing(standing: dict[bytes, StandingImage], key: bytes, change: KeyValue | KeyEvent) -> None:
    """Adds, changes or removes the standing erasure under a key. Errors: MetadataCorruptError, ValueError."""
    erasure_id = keys.parse_standing(key)
    if change.value is None:
        standing.pop(erasure_id, None)
    else:
        standing[erasure_id] = StandingImage(decode(key, change.value, StandingRecord), change.modify_revision)
