"""Makes the statement about one erasure from the records of the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from lowtide.admin.receipts.envelope import ReceiptError
from lowtide.admin.receipts.statement import (
    ChainLink,
    Confirmation,
    ErasedRun,
    ErasureReceipt,
    KindName,
    LeaderSearch,
    PartitionStatement,
    TableStatement,
    rfc3339,
)
from lowtide.protocol.erasure_ledger_records import (
    CleanReplica,
    LedgerEntry,
    NamedKey,
    NamedRecords,
    SelectorKind,
    StandingKey,
)
from lowtide.protocol.types import BrokerId, LeaderEpoch, Offset, TopicId, topic_id_text

Place: TypeAlias = tuple[TopicId, int]
"""A partition, by topic id."""

ALWAYS: tuple[str, ...] = (
    "Consumers may have copied the records before they were erased, to other topics, files, databases and logs.",
    "Backups, snapshots of volumes, mirrors in other clusters and freed blocks of disks may still have the records.",
    "Former replicas that had left their brokers before the erasure have not confirmed.",
    "Records that arrived at or after the end of the search were not searched.",
    "The receipt repeats what brokers reported. Copies of their log directories can refute it.",
)


TABLES: tuple[str, ...] = (
    "Copies of a table's rows in other tables, files and results of queries are not covered.",
    "What was committed to a table after its fence was not searched.",
)

ONLY_TABLES: tuple[str, ...] = ("The ledger has no record of this erasure: no topic was searched.",)


class PartitionLedger(msgspec.Struct):
    """The records of the ledger about one erasure of one partition."""

    named: dict[tuple[Offset, LeaderEpoch, int], NamedRecords]
    """By the exclusive end of the search, its leader epoch, and its part."""
    clean: dict[BrokerId, CleanReplica]

    def topic(self) -> str:
        """Returns the topic's name in one of the records."""
        return next(iter([each.topic for each in self.named.values()] + [each.topic for each in self.clean.values()]))


def partitions_of(entries: Iterable[LedgerEntry], erasure_id: bytes) -> dict[Place, PartitionLedger]:
    """Collects the records of one erasure in the order of the ledger: later ones replace earlier ones."""
    found: dict[Place, PartitionLedger] = {}
    for entry in entries:
        key, value = entry.key, entry.value
        if isinstance(key, StandingKey) or key.erasure_id != erasure_id:
            continue
        each = found.setdefault((key.topic_id, key.partition), PartitionLedger({}, {}))
        if isinstance(key, NamedKey):
            if isinstance(value, NamedRecords):
                each.named[key.searched_to, key.leader_epoch, key.part] = value
            else:
                each.named.pop((key.searched_to, key.leader_epoch, key.part), None)
        elif isinstance(value, CleanReplica):
            each.clean[key.broker_id] = value
        else:
            each.clean.pop(key.broker_id, None)
    return {place: each for place, each in found.items() if each.named or each.clean}


def make_receipt(  # noqa: PLR0913  what the statement says, each by its name
    link: ChainLink,
    cluster_id: str,
    erasure_id: str,
    found: Mapping[Place, PartitionLedger],
    replicas: Mapping[Place, Collection[BrokerId]] | None,
    nonces: Collection[bytes],
    tables: Sequence[TableStatement] = (),
) -> ErasureReceipt:
    """Returns the statement about an erasure. `replicas` are those of now, None if unknown.

    Errors: ReceiptError if neither the ledger nor a table has anything about it, or if values are invalid.
    """
    if not found and not tables:
        raise ReceiptError("the ledger has no record of this erasure")
    partitions = described(found, replicas)
    return ErasureReceipt(
        number=link.number,
        previous=link.previous,
        issued_at=link.issued_at,
        key_id=link.key_id,
        cluster_id=cluster_id,
        erasure_id=erasure_id,
        nonces=[each.hex() for each in nonces],
        partitions=partitions,
        not_covered=[
            *not_covered(partitions),
            *(TABLES if tables else ()),
            *(ONLY_TABLES if not found else ()),
        ],
        tables=list(tables) or msgspec.UNSET,
    )


def not_covered(partitions: Iterable[PartitionStatement]) -> list[str]:
    """Returns what the statements about partitions don't prove, in sentences."""
    return [*ALWAYS, *(sentence for each in partitions for sentence in _missing(each))]


def described(
    found: Mapping[Place, PartitionLedger], replicas: Mapping[Place, Collection[BrokerId]] | None
) -> list[PartitionStatement]:
    """Returns what the ledger says about the partitions, sorted by topic. Errors: ReceiptError for invalid values."""
    return sorted(
        (_partition(place, each, None if replicas is None else replicas.get(place)) for place, each in found.items()),
        key=lambda each: (each.topic, each.topic_id, each.partition),
    )


def _partition(place: Place, found: PartitionLedger, replicas: Collection[BrokerId] | None) -> PartitionStatement:
    searches = [_search(*key, value) for key, value in sorted(found.named.items(), key=lambda item: item[0])]
    end = max((each.erasures_end or -1 for each in searches), default=-1)
    starts = [each.log_start_offset for each in searches] or [each.offset for each in found.clean.values()]
    below = max(starts)
    brokers = sorted(found.clean)
    clean = [broker for broker in brokers if found.clean[broker].erasures_end >= end]
    clean = [broker for broker in clean if found.clean[broker].offset >= below]
    return PartitionStatement(
        topic=found.topic(),
        topic_id=topic_id_text(place[0]),
        partition=place[1],
        searches=searches,
        confirmed=[_confirmation(broker, found.clean[broker]) for broker in clean],
        not_confirmed=sorted({*brokers, *(replicas or ())} - set(clean)),
        replicas_known=replicas is not None,
    )


def kind_name(kind: int) -> KindName:
    """Returns the name of a selector's kind. Errors: ReceiptError for an unknown one."""
    names: dict[int, KindName] = {
        SelectorKind.KEYS: "keys",
        SelectorKind.HEADER: "header",
        SelectorKind.OFFSETS: "offsets",
    }
    if kind not in names:
        raise ReceiptError(f"the ledger has a selector of the unknown kind {kind}")
    return names[kind]


def _search(searched_to: Offset, leader_epoch: LeaderEpoch, part: int, value: NamedRecords) -> LeaderSearch:
    return LeaderSearch(
        principal=value.principal,
        kind=kind_name(value.kind),
        commitment=bytes(value.commitment).hex() or None,
        leader=value.leader_id,
        leader_epoch=leader_epoch,
        part=part,
        searched_from=value.searched_from,
        searched_to=searched_to,
        log_start_offset=value.log_start_offset,
        records=sum(len(each.timestamps) for each in value.records),
        runs=[
            ErasedRun(first_offset=each.first_offset, leader_epoch=each.leader_epoch, timestamps=each.timestamps)
            for each in value.records
        ],
        named_at=rfc3339(value.named_ms),
        committed_at=None if value.committed_ms < 0 else rfc3339(value.committed_ms),
        erasures_end=None if value.erasures_end < 0 else value.erasures_end,
        is_replay=value.is_replay,
    )


def _confirmation(broker: BrokerId, value: CleanReplica) -> Confirmation:
    return Confirmation(
        broker=broker,
        principal=value.principal,
        directory=value.directory,
        directory_id=topic_id_text(value.directory_id),
        erased_below=value.offset,
        erasures_end=None if value.erasures_end < 0 else value.erasures_end,
        confirmed_at=rfc3339(value.clean_ms),
    )


def _missing(each: PartitionStatement) -> list[str]:
    """Returns what is not covered in a partition, in sentences."""
    where = f"{each.topic}-{each.partition}"
    sentences = []
    if each.not_confirmed:
        sentences.append(f"{where}: not confirmed by broker {', '.join(map(str, each.not_confirmed))}.")
    if not each.replicas_known:
        sentences.append(f"{where}: its replicas were unknown to the issuer, so other brokers may have the records.")
    if any(search.is_replay for search in each.searches):
        sentences.append(f"{where}: a replay erased what an export names; nothing else was searched for then.")
    if any(search.committed_at is None for search in each.searches):
        sentences.append(f"{where}: the ledger has no commit of an erasure that was begun.")
    return sentences
