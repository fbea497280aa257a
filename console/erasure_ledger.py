"""The ledger of erasures on the page: a row for each erasure, without the offsets of its records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.receipts.envelope import ReceiptError
from lowtide.admin.receipts.issuing import Place, kind_name
from lowtide.admin.receipts.ledger import Ledger, LedgerReader, NoLedgerError, export_lines, ledger_entry
from lowtide.console.answers import RefusedError, sentence_of
from lowtide.protocol.erasure_ledger_records import CleanKey, CleanReplica, NamedKey, NamedRecords
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerId

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.protocol.erasure_ledger_records import LedgerEntry

LEDGER_BYTES_MAX: Final = 16 << 20
"""How much of the ledger a page reads, at its end."""

ERASURES_SHOWN_MAX: Final = 1_000
TOPICS_SHOWN: Final = 20
STEP: Final = 50
"""Records of the ledger that are read without a break for the event loop: about two milliseconds."""

NO_RIGHT: Final = "You may not read the ledger: it needs READ on __lowtide_erasures."


@dataclass(slots=True)
class LedgerPlaceRow:
    """What the ledger has about one erasure of one partition."""

    topic: str = ""
    records: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """How many records each search named, by its end, leader epoch and part."""
    erasures_end: int = -1
    below: int = 0
    clean: dict[BrokerId, tuple[int, int]] = field(default_factory=dict)
    """The brokers that have reported, with the end of the erasures and the offset below which they are clean."""

    def missing(self, replicas: tuple[BrokerId, ...]) -> set[BrokerId]:
        """Returns the brokers that are not known to be clean."""
        done = {
            broker for broker, (end, below) in self.clean.items() if end >= self.erasures_end and below >= self.below
        }
        return {*replicas, *self.clean} - done


@dataclass(slots=True)
class LedgerErasure:
    """What the ledger has about one erasure, without the offsets of its records."""

    named_ms: int | None = None
    changed_ms: int = 0
    principals: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    is_replay: bool = False
    is_committed: bool = True
    places: dict[Place, LedgerPlaceRow] = field(default_factory=dict)

    def add(self, entry: LedgerEntry) -> None:
        """Adds a record of the ledger. Errors: ReceiptError for an unknown kind."""
        key, value = entry.key, entry.value
        if not isinstance(key, NamedKey | CleanKey) or value is None:
            return
        place = self.places.setdefault((key.topic_id, key.partition), LedgerPlaceRow())
        if isinstance(key, NamedKey) and isinstance(value, NamedRecords):
            place.topic = value.topic
            place.records[key.searched_to, key.leader_epoch, key.part] = sum(
                len(each.timestamps) for each in value.records
            )
            place.erasures_end = max(place.erasures_end, value.erasures_end)
            place.below = max(place.below, value.log_start_offset)
            self.kinds.add(kind_name(value.kind))
            self.is_replay |= value.is_replay
            self.named_ms = value.named_ms if self.named_ms is None else min(self.named_ms, value.named_ms)
            self._note(value.principal, max(value.named_ms, value.committed_ms))
        elif isinstance(key, CleanKey) and isinstance(value, CleanReplica):
            place.topic = value.topic
            place.clean[key.broker_id] = (value.erasures_end, value.offset)
            self._note(value.principal, value.clean_ms)

    def _note(self, principal: str, at_ms: int) -> None:
        self.principals.add(principal)
        self.changed_ms = max(self.changed_ms, at_ms)

    def row(self, erasure_id: UUID, replicas: Mapping[Place, tuple[BrokerId, ...]]) -> dict[str, Any]:
        """Returns the erasure for the page. `replicas` are those of now, without partitions that are gone."""
        topics = sorted({place.topic for place in self.places.values()})
        missing = sorted(set().union(*(each.missing(replicas.get(key, ())) for key, each in self.places.items())))
        return {
            "id": str(erasure_id),
            "named_ms": self.named_ms,
            "changed_ms": self.changed_ms,
            "principals": sorted(self.principals),
            "kinds": sorted(self.kinds) or ["beginning"],
            "replay": self.is_replay,
            "topics": topics[:TOPICS_SHOWN],
            "topic_count": len(topics),
            "partitions": len(self.places),
            "records": sum(sum(each.records.values()) for each in self.places.values()),
            "missing": missing,
        }


async def ledger_page(client: AdminClient) -> dict[str, Any]:
    """Returns the erasures of the ledger, the newest first; without the right, a sentence. Errors: AdminError."""
    reader, found = LedgerReader(client, LEDGER_BYTES_MAX), dict[bytes, LedgerErasure]()
    try:
        await reader.cluster_id()
        number = 0
        async for key, value in reader.rows():
            number += 1
            entry = ledger_entry(key, value)
            if entry is not None and isinstance(entry.key, NamedKey | CleanKey):
                found.setdefault(bytes(entry.key.erasure_id), LedgerErasure()).add(entry)
            if number % STEP == 0:
                await asyncio.sleep(0)
    except NoLedgerError:
        return _nothing(None)
    except ReceiptError as error:
        return _nothing(ledger_sentence(error))
    except BrokerAnsweredError as error:
        return _nothing(denied_sentence(error))
    replicas = await replicas_now(client)
    rows = sorted(found.items(), key=lambda item: -item[1].changed_ms)
    return {
        "known": True,
        "trouble": None,
        "erasures": [each.row(UUID(bytes=key), replicas) for key, each in rows[:ERASURES_SHOWN_MAX]],
        "left_out": max(0, len(rows) - ERASURES_SHOWN_MAX),
        "is_cut": reader.is_cut,
    }


def _nothing(trouble: str | None) -> dict[str, Any]:
    """Returns the page without a ledger; without a `trouble`, nothing was ever erased."""
    return {"known": trouble is None, "trouble": trouble, "erasures": [], "left_out": 0, "is_cut": False}


def ledger_sentence(error: ReceiptError) -> str:
    """Returns what is wrong with the ledger or a receipt."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


def denied_sentence(error: BrokerAnsweredError) -> str:
    """Returns why the ledger can't be read."""
    return NO_RIGHT if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED else sentence_of(error)


async def replicas_now(client: AdminClient) -> dict[Place, tuple[BrokerId, ...]]:
    """Returns the replicas of now by topic id. Errors: AdminError."""
    view = await client.call().view(None)
    return {
        (topic.topic_id, number): partition.replicas
        for topic in view.topics.values()
        if topic.topic_id is not None
        for number, partition in topic.partitions.items()
    }


async def ledger_export(client: AdminClient) -> dict[str, Any]:
    """Returns the whole ledger as JSON lines. Errors: RefusedError, AdminError."""
    reader = LedgerReader(client, LEDGER_BYTES_MAX)
    try:
        ledger, number = Ledger(await reader.cluster_id(), {}), 0
        async for key, value in reader.rows():
            ledger.add(key, value)
            number += 1
            if number % STEP == 0:
                await asyncio.sleep(0)
    except ReceiptError as error:
        raise RefusedError(HTTPStatus.CONFLICT, ledger_sentence(error)) from None
    except BrokerAnsweredError as error:
        raise RefusedError(HTTPStatus.FORBIDDEN, denied_sentence(error)) from None
    if reader.is_cut:
        raise RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The ledger is too large for the page: use lowtide erasures export."
        )
    return {"export": b"".join(export_lines(ledger)).decode(), "records": len(ledger.rows)}
