"""Plans changes of standing erasures. Each plan compares everything it relies on, so any broker may carry it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.metadata import keys
from lowtide.metadata.changes import NO_CHANGE, ChangePlan, Step
from lowtide.metadata.records import encode
from lowtide.metadata.store import ABSENT, Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.records import StandingRecord

STANDING_MAX: Final = 2_000
STANDING_KEYS_MAX: Final = 10_000
STANDING_NAMES_MAX: Final = 10_000
"""The most standing erasures, and the keys, and names and patterns, of all together. Every broker keeps them in
memory."""

STANDING_SHARE: Final = 1_000
"""The most standing erasures of one principal."""

_STEP: Final = 100
"""Standing erasures that one transaction removes."""


def plan_standing(image: MetadataImage, erasure_id: bytes, record: StandingRecord) -> ChangePlan | Refusal:
    """Plans a standing erasure, in place of an earlier one with the id. Errors: POLICY_VIOLATION for too many."""
    others = [each.record for other_id, each in image.standing.items() if other_id != erasure_id]
    own = sum(each.principal == record.principal for each in others)
    key_count = sum(len(each.digests) for each in others) + len(record.digests)
    if len(others) >= STANDING_MAX or own >= STANDING_SHARE:
        limit = f"at most {STANDING_MAX} may stand, {STANDING_SHARE} of one principal"
        return Refusal(ErrorCode.POLICY_VIOLATION, f"There are {len(others)} other standing erasures; {limit}.")
    if key_count > STANDING_KEYS_MAX:
        message = f"Standing erasures would have {key_count} keys together; at most {STANDING_KEYS_MAX} are allowed."
        return Refusal(ErrorCode.POLICY_VIOLATION, message)
    name_count = sum(len(each.topics) + len(each.patterns) for each in (*others, record))
    if name_count > STANDING_NAMES_MAX:
        message = f"Standing erasures would have {name_count} topics and patterns; {STANDING_NAMES_MAX} are allowed."
        return Refusal(ErrorCode.POLICY_VIOLATION, message)
    key, known = keys.standing(erasure_id), image.standing.get(erasure_id)
    compare = Compare(key, "modify", "==", ABSENT if known is None else known.revision)
    return ChangePlan((Step((Put(key, encode(record)),), (compare,)),), needs_controller=False)


def plan_standing_end(image: MetadataImage, erasure_id: bytes) -> ChangePlan:
    """Plans the end of a standing erasure, which exists."""
    key = keys.standing(erasure_id)
    compare = Compare(key, "modify", "==", image.standing[erasure_id].revision)
    return ChangePlan((Step((Delete(key),), (compare,)),), needs_controller=False)


def plan_sweep_of_standing(image: MetadataImage, now_ms: int) -> ChangePlan:
    """Plans that the controller removes standing erasures which have ended. `now_ms` is a time since 1970."""
    ended = [
        (keys.standing(key), each.revision) for key, each in image.standing.items() if each.record.ends_ms <= now_ms
    ]
    some = ended[:_STEP]
    if not some:
        return NO_CHANGE
    deletes = tuple(Delete(key) for key, _ in some)
    return ChangePlan((Step(deletes, tuple(Compare(key, "modify", "==", revision) for key, revision in some)),))
