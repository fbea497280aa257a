"""Plans the changes of an AlterClientQuotas request, and refuses the invalid ones.

For each entity all keys change, or none. Up to a hundred entities change in a transaction. A plan compares the state
that it was decided on, so that of two concurrent requests neither undoes the other. Pure. Source: KIP-546; Kafka's
`ClientQuotaControlManager`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lowtide.broker.quotas.quota_entity import (
    IP,
    QuotaEntity,
    check_quota,
    described,
    entity_of,
    entity_text,
    parse_entity,
)
from lowtide.metadata import keys
from lowtide.metadata.changes import FENCES, ChangePlan, Step
from lowtide.metadata.config_image import NOTHING_SET
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import encode
from lowtide.metadata.store import MAX_TRANSACTION_OPERATIONS, Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_client_quotas import AlterClientQuotasEntry
from lowtide.replication.refusal import Refusal

ENTITIES_SET_MAX: Final = 10_000
"""The most entities with quotas, because every broker keeps them all in memory. Kafka has no limit."""

STEP_ENTITIES: Final = 100
"""The most entities changed in one transaction of the metadata store."""

assert STEP_ENTITIES + FENCES < MAX_TRANSACTION_OPERATIONS


class QuotaChanges(msgspec.Struct, frozen=True):
    """The refusal or None for each entry of a request, the plan, and the new quotas of changed entities for the log."""

    refusals: tuple[Refusal | None, ...]
    plan: ChangePlan
    changed: tuple[tuple[QuotaEntity, Mapping[str, str]], ...] = ()


def plan_quota_changes(image: MetadataImage, entries: Sequence[AlterClientQuotasEntry]) -> QuotaChanges:
    """Plans the changes of these entries. Refusals of an entry: INVALID_REQUEST, POLICY_VIOLATION."""
    refusals: list[Refusal | None] = []
    wanted: dict[QuotaEntity, dict[str, str]] = {}
    odd = _odd_spellings(image) if any(part.entity_type == IP for entry in entries for part in entry.entity) else {}
    for entry in entries:
        entity = entity_of((part.entity_type, part.entity_name) for part in entry.entity)
        if isinstance(entity, Refusal):
            refusals.append(entity)
            continue
        changed = _changed(image, entity, entry, odd.get(entity, ()))
        if entity in wanted:
            changed = Refusal(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {described(entity)}")
        refusals.append(changed if isinstance(changed, Refusal) else None)
        if not isinstance(changed, Refusal):
            wanted[entity] = changed
    return QuotaChanges(tuple(refusals), _plan(image, wanted, odd), tuple(wanted.items()))


def _odd_spellings(image: MetadataImage) -> Mapping[QuotaEntity, Sequence[str]]:
    """Returns the addresses that older versions didn't normalize when storing them. A change normalizes them."""
    found: dict[QuotaEntity, list[str]] = {}
    for text in image.client_quotas:
        if text.startswith(f"{IP}="):
            entity = parse_entity(text)
            if entity_text(entity) != text:
                found.setdefault(entity, []).append(text)
    return found


def _changed(
    image: MetadataImage, entity: QuotaEntity, entry: AlterClientQuotasEntry, odd: Sequence[str]
) -> dict[str, str] | Refusal:
    """Returns the entity's quotas after the changes of an entry."""
    current = next(
        (image.client_quotas[text].configs for text in (entity_text(entity), *odd) if text in image.client_quotas), {}
    )
    values = dict(current)
    seen = set()
    for operation in entry.ops:
        if operation.key in seen:
            return Refusal(
                ErrorCode.INVALID_REQUEST,
                f"Duplicate quota key {operation.key}: nothing is changed for {described(entity)}",
            )
        seen.add(operation.key)
        if operation.remove:
            values.pop(operation.key, None)
            continue
        refusal = check_quota(entity, operation.key, operation.value)
        if refusal is not None:
            return refusal
        values[operation.key] = repr(operation.value)
    if values and not current and len(image.client_quotas) >= ENTITIES_SET_MAX:
        return Refusal(
            ErrorCode.POLICY_VIOLATION, f"Quotas are set on {ENTITIES_SET_MAX} entities, as many as there may be"
        )
    return values


def _plan(
    image: MetadataImage, wanted: Mapping[QuotaEntity, Mapping[str, str]], odd: Mapping[QuotaEntity, Sequence[str]]
) -> ChangePlan:
    """Plans the writes. Any broker may carry it out, because it compares all that it relies on."""
    writes: list[tuple[Put | Delete, Compare]] = []
    for entity, values in wanted.items():
        for spelling in odd.get(entity, ()):
            key = keys.client_quotas(spelling)
            writes.append((Delete(key), Compare(key, "modify", "==", image.client_quotas[spelling].revision)))
        text = entity_text(entity)
        current = image.client_quotas.get(text, NOTHING_SET)
        if values == current.configs:
            continue
        key = keys.client_quotas(text)
        writes.append(
            (Put(key, encode(dict(values))) if values else Delete(key), Compare(key, "modify", "==", current.revision))
        )
    chunks = [writes[first : first + STEP_ENTITIES] for first in range(0, len(writes), STEP_ENTITIES)]
    steps = [Step(tuple(write for write, _ in chunk), tuple(compare for _, compare in chunk)) for chunk in chunks]
    return ChangePlan(tuple(steps), needs_controller=False)
