"""`replay_erasures` asks the leaders for named records under the ids of the erasures, and then each replica once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from lowtide.admin import AdminError, BrokerAnsweredError, EraseUnsupportedError
from lowtide.admin.replay_plan import LedgerPlace, replay_plan
from lowtide.admin.replaying import Replay, replay_erasures
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.erasure_ledger_records import LedgerEntry
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition

from .ledger_rows import ERASURE, PLACE, TOPIC_ID, clean, named
from .scripted import HANG_UP, ScriptedCluster, simulated
from .test_erase_by_key import ALL, ERASURES_END, LOG_START, erases, erasing, finding, searches

COMMITMENT = b"c" * 32
BEGINNING = UUID(int=0x40)
HERE = TopicPartition("flights", 0)


def beginning(offset: int) -> LedgerEntry:
    entry = clean(1, erasures_end=-1)
    assert entry.value is not None
    return LedgerEntry(
        msgspec.structs.replace(entry.key, erasure_id=BEGINNING.bytes),
        msgspec.structs.replace(entry.value, offset=offset),
    )


def restored(cluster: ScriptedCluster, *, topic_id: bytes = TOPIC_ID, name: str = "flights") -> None:
    cluster.add_topic(name, 1, topic_id=topic_id)
    cluster.partition(name, 0).replicas = cluster.partition(name, 0).isr = ALL
    cluster.scripts[None, ApiKey.FIND_RECORDS] = finding(ErrorCode.NONE)
    cluster.scripts[None, ApiKey.ERASE_RECORDS] = erasing


async def replay(cluster: ScriptedCluster, *entries: LedgerEntry, **options: Any) -> Replay:
    async with cluster.client() as admin:
        return await replay_erasures(admin, replay_plan(entries or [named(commitment=COMMITMENT)]), **options)


def test_the_leader_gets_names_kind_and_commitment_and_all_replicas_confirm() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        restored(cluster)
        [row] = (await replay(cluster)).partitions
        assert (row.erasure_id, row.partition, row.named, row.found, row.absent) == (ERASURE, HERE, 3, 2, 1)
        assert (row.erased_by, row.not_erased_by, row.error) == (ALL, {}, None)
        [asked] = searches(cluster)
        assert (asked.erase, asked.search_id, asked.named_kind, asked.commitment) == (
            True,
            ERASURE.bytes,
            0,
            COMMITMENT,
        )
        assert asked.topics[0].topic_id == TOPIC_ID
        assert [(each.first_offset, len(each.timestamps)) for each in asked.topics[0].partitions[0].named] == [
            (103, 1),
            (107, 2),
        ]
        assert sorted(erases(cluster)) == [(broker, LOG_START, ERASURES_END) for broker in ALL]

    simulated(test)


def test_an_erasure_without_a_commitment_is_repeated_too() -> None:
    """A client may have sent none; that it erases is not told by the commitment."""

    async def test(cluster: ScriptedCluster) -> None:
        restored(cluster)
        await replay(cluster, named(commitment=b""))
        assert [(each.erase, each.commitment) for each in searches(cluster)] == [(True, b"")]

    simulated(test)


def test_a_dry_run_erases_nothing_and_has_an_id_of_its_own() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        restored(cluster)
        replayed = await replay(cluster, named(), beginning(5), dry_run=True)
        assert [(each.named, each.found, each.erased_by) for each in replayed.partitions] == [(3, 2, ())]
        [asked] = searches(cluster)
        assert (asked.erase, asked.commitment, asked.search_id != ERASURE.bytes) == (False, b"", True)
        assert erases(cluster) == []

    simulated(test)


def test_nothing_is_erased_if_a_broker_is_too_old() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        restored(cluster)
        cluster.scripts[3, ApiKey.ERASE_RECORDS] = lambda *_: HANG_UP
        with pytest.raises(EraseUnsupportedError, match="nothing is erased: broker 3 does not answer"):
            await replay(cluster)
        assert (searches(cluster), erases(cluster)) == ([], [])

    simulated(test)


def test_what_a_leader_refuses_is_the_error_of_the_row() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        restored(cluster)
        cluster.scripts[None, ApiKey.FIND_RECORDS] = finding(ErrorCode.POLICY_VIOLATION, message="Compacted.")
        [row] = (await replay(cluster)).partitions
        assert isinstance(row.error, BrokerAnsweredError)
        assert "Compacted." in str(row.error)
        assert (row.erased_by, erases(cluster)) == ((), [])

    simulated(test)


@pytest.mark.parametrize(("start", "is_deleted"), [(4, False), (5, True), (9, True)])
def test_a_beginning_is_erased_only_below_the_log_start(start: int, *, is_deleted: bool) -> None:
    """Protects records that were written after the restore: the ledger doesn't tell them from the deleted ones."""

    async def test(cluster: ScriptedCluster) -> None:
        restored(cluster)
        cluster.partition("flights", 0).log_start = start
        replayed = await replay(cluster, beginning(5))
        [found] = replayed.beginnings
        assert (found.erasure_id, found.offset, found.log_start_offset) == (BEGINNING, 5, start)
        assert found.is_deleted is is_deleted
        assert sorted(erases(cluster)) == ([(broker, 5, 0) for broker in ALL] if is_deleted else [])
        assert [each.erased_by for each in replayed.partitions] == ([ALL] if is_deleted else [])
        assert cluster.deletes() == []

    simulated(test)


def test_an_unknown_log_start_is_no_deleted_beginning() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        restored(cluster)
        cluster.partition("flights", 0).leader = -1
        [found] = (await replay(cluster, beginning(5), timeout=5)).beginnings
        assert isinstance(found.log_start_offset, AdminError)
        assert not found.is_deleted

    simulated(test)


def test_a_topic_with_another_id_is_found_by_name_and_a_missing_one_is_gone() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        restored(cluster, topic_id=b"\7" * 16)
        replayed = await replay(cluster)
        assert (replayed.renamed, replayed.gone) == ({TOPIC_ID: "flights"}, [])
        [asked] = searches(cluster)
        assert asked.topics[0].topic_id == b"\7" * 16, "a topic that is created again meanwhile is refused"

    simulated(test)

    async def gone(cluster: ScriptedCluster) -> None:
        restored(cluster, topic_id=b"\7" * 16, name="other")
        replayed = await replay(cluster)
        assert (replayed.gone, replayed.partitions, searches(cluster)) == ([LedgerPlace(*PLACE)], [], [])

    simulated(gone)
