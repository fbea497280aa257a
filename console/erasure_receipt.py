"""What the ledger says about one erasure, for a receipt: as a document, as an export, or signed by the console's key.

A signed receipt is that of `lowtide erasures receipt`: it is the next one in the chain of the key, which the command
line can use too.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import msgspec

from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.receipts.envelope import ReceiptError
from lowtide.admin.receipts.issuing import Place, described, make_receipt, not_covered, partitions_of
from lowtide.admin.receipts.ledger import Ledger, LedgerReader, NoLedgerError, export_lines
from lowtide.admin.receipts.signing_keys import SigningKeyError, signing_key
from lowtide.admin.receipts.statement import rfc3339
from lowtide.admin.replica_erasing import clean_replicas
from lowtide.console import arguments
from lowtide.console.answers import RefusedError, bad
from lowtide.console.erasure_ledger import STEP, denied_sentence, ledger_sentence, replicas_now
from lowtide.console.person_erasure import broker_rows
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.types import BrokerId, TopicPartition
from lowtide.runtime.filesystem import OsFileSystem

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.receipts.issuing import PartitionLedger
    from lowtide.console.arguments import Parameters
    from lowtide.console.sessions import ConsolePorts, ConsoleSession

RECEIPT_RECORDS_MAX: Final = 100_000
"""Records of the ledger about one erasure, and records that these name, in one receipt of the page."""


CONFIRM_S: Final = 10.0
"""How long the brokers are asked again."""

CONFIRMED_PARTITIONS_MAX: Final = 2_000


class AskedReceipt(NamedTuple):
    """What a receipt needs."""

    erasure_id: UUID
    ledger: Ledger
    found: dict[Place, PartitionLedger]
    replicas: dict[Place, tuple[BrokerId, ...]]
    nonce: bytes | None
    """Of an erasure of this session."""
    nonces: tuple[bytes, ...]
    """The nonce, if it is asked for."""


async def receipt(session: ConsoleSession, given: Parameters, ports: ConsolePorts) -> dict[str, Any]:
    """Returns what the ledger says about an erasure, as a document and as an export, which can be signed.

    Errors: RefusedError, AdminError.
    """
    asked = await _asked(session, given)
    try:
        return await asyncio.to_thread(_document, asked, ports.clock.wall_ms())
    except ReceiptError as error:
        raise RefusedError(HTTPStatus.CONFLICT, ledger_sentence(error)) from None


def _document(asked: AskedReceipt, now_ms: int) -> dict[str, Any]:
    """Returns the document and the export; of many partitions this takes a while. Errors: ReceiptError."""
    partitions = described(asked.found, asked.replicas)
    document = {
        "signed": False,
        "issued_at": rfc3339(now_ms),
        "cluster_id": asked.ledger.cluster_id,
        "erasure_id": str(asked.erasure_id),
        "nonces": [each.hex() for each in asked.nonces],
        "partitions": partitions,
        "not_covered": not_covered(partitions),
    }
    return {
        "document": msgspec.json.format(msgspec.json.encode(document), indent=2).decode(),
        "export": b"".join(export_lines(asked.ledger)).decode(),
        "has_nonce": asked.nonce is not None,
        "clean": not any(each.not_confirmed for each in partitions),
    }


async def signed_receipt(session: ConsoleSession, given: Parameters, ports: ConsolePorts) -> dict[str, Any]:
    """Signs the next receipt with the key of the console. Errors: RefusedError, AdminError."""
    path = ports.signing_key
    if path is None:
        raise RefusedError(HTTPStatus.CONFLICT, "This console has no signing key: lowtide console --signing-key.")
    asked = await _asked(session, given)
    now_ms = ports.clock.wall_ms()

    def signed() -> tuple[bytes, bool]:
        clean = not any(each.not_confirmed for each in described(asked.found, asked.replicas))
        with signing_key(OsFileSystem(), path) as key:
            content = key.sign(
                lambda link: make_receipt(
                    link,
                    asked.ledger.cluster_id,
                    str(asked.erasure_id),
                    asked.found,
                    asked.replicas,
                    asked.nonces,
                ),
                now_ms,
            )
        return content, clean

    try:
        content, clean = await asyncio.to_thread(signed)
    except SigningKeyError as error:
        raise RefusedError(HTTPStatus.CONFLICT, str(error)) from None
    except OSError as error:
        raise RefusedError(HTTPStatus.CONFLICT, f"{error.filename}: {error.strerror}.") from None
    return {"receipt": content.decode(), "clean": clean}


async def confirm(session: ConsoleSession, given: Parameters, _: ConsolePorts) -> dict[str, Any]:
    """Asks the brokers that were not clean again; the ledger gets their answers. Nothing else is erased.

    Errors: RefusedError, AdminError.
    """
    erasure_id = uuid_of(given)
    found = (await _of_one(session.client, erasure_id))[1]
    call = session.client.call(CONFIRM_S)
    view = await call.view(None)
    names = {topic.topic_id: topic for topic in view.topics.values() if topic.topic_id is not None}
    goals: dict[TopicPartition, EraseGoal] = {}
    for (topic_id, number), each in found.items():
        topic = names.get(topic_id)
        if topic is not None and number in topic.partitions:
            goals[TopicPartition(topic.name, number)] = goal_of(each)
    if len(goals) > CONFIRMED_PARTITIONS_MAX:
        raise bad(f"The erasure has {len(goals)} partitions, and the page asks about {CONFIRMED_PARTITIONS_MAX}.")
    cleaned = await clean_replicas(call, goals, view, erasure_id)
    return {"brokers": broker_rows(cleaned), "gone": len(found) - len(goals)}


def goal_of(ledger: PartitionLedger) -> EraseGoal:
    """Returns what each replica must have erased."""
    ends = [each.erasures_end if each.erasures_end >= 0 else key[0] for key, each in ledger.named.items()]
    starts = [each.log_start_offset for each in ledger.named.values()]
    if not ledger.named:
        ends = [each.erasures_end for each in ledger.clean.values()]
        starts = [each.offset for each in ledger.clean.values()]
    return EraseGoal(max(*starts, 0), max(*ends, 0))


async def _asked(session: ConsoleSession, given: Parameters) -> AskedReceipt:
    """Reads what a receipt needs. Errors: RefusedError, AdminError."""
    erasure_id = uuid_of(given)
    ledger, found = await _of_one(session.client, erasure_id)
    job = session.work.erasures.get(str(erasure_id))
    nonce = job.named.nonce if job is not None and job.named is not None else None
    wanted = nonce if arguments.flag(given, "nonce") else None
    replicas = await replicas_now(session.client)
    return AskedReceipt(erasure_id, ledger, found, replicas, nonce, () if wanted is None else (wanted,))


def uuid_of(given: Parameters) -> UUID:
    """Reads the id of an erasure. Errors: RefusedError."""
    try:
        return UUID(arguments.text(given, "id", longest=64))
    except ValueError:
        raise bad("id must be the id of an erasure, a UUID.") from None


async def _of_one(client: AdminClient, erasure_id: UUID) -> tuple[Ledger, dict[Place, PartitionLedger]]:
    """Returns the records of the ledger about one erasure. Errors: RefusedError, AdminError."""
    reader, ledger, number = LedgerReader(client), Ledger("", {}), 0
    try:
        ledger.cluster_id = await reader.cluster_id()
        async for key, value in reader.rows():
            number += 1
            if erasure_id.bytes in key:
                ledger.add(key, value)
                if len(ledger.rows) > RECEIPT_RECORDS_MAX:
                    raise _too_large(erasure_id)
            if number % STEP == 0:
                await asyncio.sleep(0)
        found = partitions_of(ledger.entries(), erasure_id.bytes)
    except NoLedgerError:
        found = {}
    except ReceiptError as error:
        raise RefusedError(HTTPStatus.CONFLICT, ledger_sentence(error)) from None
    except BrokerAnsweredError as error:
        raise RefusedError(HTTPStatus.FORBIDDEN, denied_sentence(error)) from None
    if not found:
        raise RefusedError(HTTPStatus.NOT_FOUND, "The ledger has no record of this erasure.")
    named = sum(len(run.timestamps) for each in found.values() for one in each.named.values() for run in one.records)
    if named > RECEIPT_RECORDS_MAX:
        raise _too_large(erasure_id)
    return ledger, found


def _too_large(erasure_id: UUID) -> RefusedError:
    return RefusedError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"This receipt is too large for the page: use lowtide erasures receipt {erasure_id}.",
    )
