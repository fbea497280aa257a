"""Plans the creation and removal of access control rules (ACLs): all changes of a request, or none.

Up to `STEP_ACLS` rules are one transaction of the store, each under its key. More rules are written as one change
record, which takes effect when it is written: every image shows the rules that it adds and hides those that it removes.
Then each rule is written or deleted, a hundred per transaction, and the record is deleted with the last of them. A
broker or a new controller that finds such a record completes it first, because its author may be dead.

Any broker may make these changes: they compare what they rely on. Pure. Source: Kafka's `AclControlManager`, whose
changes are atomic too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import FENCES, NO_CHANGE, NOTHING_TO_WRITE, ChangePlan, Step
from lowtide.metadata.records import ADDRESS_RANGES_LEVEL, AclChangeRecord, AclRecord, encode
from lowtide.metadata.store import ABSENT, MAX_TRANSACTION_OPERATIONS, Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

if TYPE_CHECKING:
    from lowtide.metadata.acl_image import AclChangeImage
    from lowtide.metadata.image import MetadataImage

ACLS_MAX: Final = 100_000
"""The most rules in a cluster: every broker keeps all of them in memory. Kafka has no limit."""

STEP_ACLS: Final = 100
"""Rules per transaction: with their comparisons and the fences they stay below the store's limit."""

CHANGE_BYTES_MAX: Final = 1 << 20
"""The most encoded rules of one request: about ten thousand usual ones, as many as Kafka takes at once."""

assert STEP_ACLS + 1 + FENCES < MAX_TRANSACTION_OPERATIONS


def plan_new_acls(image: MetadataImage, acls: Iterable[AclRecord]) -> ChangePlan | Refusal:
    """Plans the creation of rules; existing ones stay. The image must have no unfinished change.

    Errors: POLICY_VIOLATION for too many rules in total or in this request; UNSUPPORTED_VERSION for an address range
    while a broker of an earlier version is alive, which would not apply the rule.
    """
    acls = tuple(acls)
    if any("/" in acl.host for acl in acls):
        old = sorted(key for key, broker in image.brokers.items() if broker.metadata_level < ADDRESS_RANGES_LEVEL)
        if old:
            return Refusal(ErrorCode.UNSUPPORTED_VERSION, f"Brokers {old} are too old for address ranges in ACLs.")
    values = {keys.acl(value): (value, acl) for acl in acls for value in (encode(acl),)}
    new = {key: each for key, each in values.items() if key not in image.acls}
    if not new:
        return NOTHING_TO_WRITE
    if len(image.acls) + len(new) > ACLS_MAX:
        return Refusal(ErrorCode.POLICY_VIOLATION, f"There are {len(image.acls)} rules; there may be {ACLS_MAX}.")
    size_bytes = sum(len(value) for value, _ in new.values())
    if len(new) > STEP_ACLS:
        return _whole(AclChangeRecord(added=tuple(msgspec.structs.astuple(acl) for _, acl in values.values())))
    if size_bytes > CHANGE_BYTES_MAX:
        return _too_much(size_bytes)
    operations = tuple(Put(key, value) for key, (value, _) in new.items())
    return _plan(operations, [Compare(key, "modify", "==", ABSENT) for key in new])


def plan_removed_acls(image: MetadataImage, wanted: Iterable[bytes]) -> ChangePlan | Refusal:
    """Plans the removal of rules, by key; missing ones are skipped. Errors as for `plan_new_acls`."""
    there = [key for key in dict.fromkeys(wanted) if key in image.acls]
    if not there:
        return NOTHING_TO_WRITE
    if len(there) > STEP_ACLS:
        return _whole(AclChangeRecord(removed=tuple(key.removeprefix(keys.ACLS).decode() for key in there)))
    compares = [Compare(key, "modify", "==", image.acls[key].revision) for key in there]
    return _plan(tuple(Delete(key) for key in there), compares)


def plan_rest_of_change(change: AclChangeImage) -> ChangePlan:
    """Plans the single writes of a change record that is in effect.

    Running it twice, or on two brokers, is harmless.
    """
    operations: list[Put | Delete] = [Put(key, value) for key, value, _ in change.added()]
    operations += [Delete(key) for key in change.removed()]
    compare = (Compare(keys.ACL_CHANGE, "modify", "==", change.revision),)
    steps = [operations[start : start + STEP_ACLS] for start in range(0, len(operations), STEP_ACLS)]
    steps[-1].append(Delete(keys.ACL_CHANGE))
    return ChangePlan(tuple(Step(tuple(step), compare) for step in steps), needs_controller=False)


def plan_left_change(image: MetadataImage) -> ChangePlan:
    """Plans the rest of a change that was begun before this controller was elected: its broker may be dead."""
    change = image.acl_change
    return NO_CHANGE if change is None or change.revision >= image.controller_revision else plan_rest_of_change(change)


def _whole(change: AclChangeRecord) -> ChangePlan | Refusal:
    """Plans one change record. It needs no comparison of single rules, because it conflicts with every other change."""
    value = encode(change)
    return _too_much(len(value)) if len(value) > CHANGE_BYTES_MAX else _plan((Put(keys.ACL_CHANGE, value),), ())


def _plan(operations: tuple[Put | Delete, ...], compares: Sequence[Compare]) -> ChangePlan:
    step = Step(operations, (*compares, Compare(keys.ACL_CHANGE, "modify", "==", ABSENT)))
    return ChangePlan((step,), needs_controller=False)


def _too_much(size_bytes: int) -> Refusal:
    text = f"The request's rules have {size_bytes} bytes; the limit is {CHANGE_BYTES_MAX}. Nothing was changed."
    return Refusal(ErrorCode.POLICY_VIOLATION, text)
