"""Plans what a restore of a backup writes into an empty store, together with what log directories know.

A backup is one more copy of the metadata beside those of the log directories, so the plan is that of a recovery
(`recovery`): topics, configurations and deletes come from the copy that has seen the most. That is the backup only if
the directories are gone or older. Log starts aren't in it; they are in the directories' journals.

Pure. Errors are RecoveryErrors, in a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.metadata import keys
from lowtide.metadata.broker_facts import RecoveryError, history_of, newest_copy
from lowtide.metadata.records import SuspensionRecord, decode
from lowtide.metadata.recovery import plan_recovery
from lowtide.metadata.recovery_writer import Beginning
from lowtide.metadata.store import ABSENT, Compare

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lowtide.metadata.broker_facts import BrokerFacts
    from lowtide.metadata.metadata_copy import MetadataCopy, Row
    from lowtide.metadata.recovery import RecoveryPlan
    from lowtide.protocol.types import BrokerId

UNDER_WAY: Final = "a restore is under way, or was cut off (the same `lowtide restore` completes it)"
"""Why a store is suspended during a restore."""


def newest_of(backup: MetadataCopy, facts: Sequence[BrokerFacts]) -> tuple[BrokerId | None, MetadataCopy]:
    """Returns the copy that has seen the most, and its broker; None for the backup. Errors: RecoveryError."""
    if not facts:
        return None, backup
    broker_id, copy = newest_copy(facts)
    if copy.cluster_id != backup.cluster_id:
        raise RecoveryError(
            f"the backup is of cluster {backup.cluster_id}, the log directories of broker {broker_id} of "
            f"{copy.cluster_id}"
        )
    if copy.history_id == backup.history_id:
        return (None, backup) if backup.revision > copy.revision else (broker_id, copy)
    if history_of(copy.rows).previous_id == backup.history_id:
        return broker_id, copy  # The metadata were recovered or restored since the backup.
    raise RecoveryError(
        f"the backup is of history {backup.history_id} of the metadata, up to revision {backup.revision}, and the log "
        f"directories of broker {broker_id} are of {copy.history_id}, up to {copy.revision}: neither comes from the "
        "other, as far as they say; `lowtide metadata recover` brings the metadata forward from the log "
        "directories alone"
    )


def begin_restore(backup: MetadataCopy, rows: Mapping[bytes, Row], *, replaces: bool) -> Beginning:
    """Returns how a restore begins on a store that has `rows` now. `replaces`: existing contents are dropped.

    Errors: RecoveryError if it may not begin.
    """
    cluster_id = rows[keys.CLUSTER_ID][1].decode() if keys.CLUSTER_ID in rows else backup.cluster_id
    if cluster_id != backup.cluster_id:
        raise RecoveryError(f"the backup is of cluster {backup.cluster_id}, and the metadata store of {cluster_id}")
    seen = rows.get(keys.SUSPENSION)
    if replaces:
        return Beginning(UNDER_WAY)
    if seen is not None and decode(seen[0], seen[1], SuspensionRecord).reason == UNDER_WAY:
        return Beginning(UNDER_WAY, (Compare(keys.SUSPENSION, "modify", "==", seen[3]),))
    if rows:
        topics = sum(key.startswith(keys.TOPICS) for key in rows)
        raise RecoveryError(
            f"the metadata store isn't empty, it has {len(rows)} keys, of which {topics} are topics: if brokers refuse "
            "it, `lowtide metadata recover` brings it forward; to have the backup instead of what is there, give "
            "--replace"
        )
    # A broker writes the first of these keys before anything else, another restore or recovery the second.
    return Beginning(
        UNDER_WAY, tuple(Compare(key, "create", "==", ABSENT) for key in (keys.CLUSTER_ID, keys.SUSPENSION))
    )


def plan_restore(
    backup: MetadataCopy,
    facts: Sequence[BrokerFacts],
    rows: Mapping[bytes, Row],
    *,
    without: Collection[BrokerId],
    history_id: str,
    raft_surplus: int,
) -> RecoveryPlan:
    """Plans like `plan_recovery`, with the backup as one more copy. Errors: RecoveryError."""
    newest = newest_of(backup, facts)
    return plan_recovery(facts, rows, without=without, history_id=history_id, raft_surplus=raft_surplus, newest=newest)
