"""`lowtide erasures`: shows the ledger of erasures, issues signed receipts from it, and verifies them offline."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Final, TypeVar
from uuid import UUID

import typer

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.receipts.commitment import NONCE_BYTES
from lowtide.admin.receipts.envelope import ReceiptError, key_id_of
from lowtide.admin.receipts.issuing import PartitionLedger, Place, described, make_receipt, partitions_of
from lowtide.admin.receipts.ledger import Ledger, export_lines
from lowtide.admin.receipts.signing_keys import PUBLIC_SUFFIX, SigningKeyError, create_key, read_public_key, signing_key
from lowtide.admin.receipts.statement import PartitionStatement, rfc3339
from lowtide.cli.call import Call, NetworkCall, local, network
from lowtide.cli.erase_table import TableReachOptions, table_statements
from lowtide.cli.find import KeyFormat, check_erasure_id, selector_of
from lowtide.cli.ledger_reading import entries_of, read_export, read_ledger
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, print_json, printable
from lowtide.cli.replay import replay
from lowtide.cli.verified_receipts import DiskQuestion, verified
from lowtide.protocol.erasure_ledger_records import LedgerEntry, StandingKey
from lowtide.protocol.types import BrokerId
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import OsFileSystem

app = typer.Typer(add_completion=False, no_args_is_help=True)
keys_app = typer.Typer(add_completion=False, no_args_is_help=True)
standing_app = typer.Typer(add_completion=False, no_args_is_help=True)
app.add_typer(standing_app, name="standing", help="List and end standing erasures (`records erase --standing`).")
app.add_typer(keys_app, name="key", help="Create, rotate and show the key that signs receipts.")
app.command("replay")(replay)

T = TypeVar("T")

LIST_COLUMNS: Final = ("erasure", "named at", "principal", "kind", "partitions", "records", "not confirmed by")
STANDING_COLUMNS: Final = ("erasure", "begun at", "ends at", "principal", "keys", "topics")
SHOW_COLUMNS: Final = (
    "topic", "partition", "searched from", "searched to", "records", "committed at", "confirmed by", "not confirmed by",
)  # fmt: skip

SigningKeyFile = Annotated[str, typer.Option("--signing-key", metavar="FILE", help="the private key, in PEM")]
FromExport = Annotated[
    str | None,
    typer.Option("--from-export", metavar="FILE", help="read this file of `lowtide erasures export`, and no cluster"),
]
ErasureId = Annotated[UUID, typer.Argument(metavar="ID", help="the erasure id that `records erase` shows")]


@app.callback()
def erasures() -> None:
    """Show the ledger of erasures, issue signed receipts from it, and verify them without a broker."""


@keys_app.command("create")
@local
def create(call: Call, path: Annotated[str, typer.Argument(metavar="FILE", help="the new private key")]) -> ExitCode:
    """Create a signing key, its public key FILE.pub, and its chain FILE.chain. Nothing is replaced."""
    key_id = _with_key(lambda: create_key(OsFileSystem(), path))
    return _key_shown(call, path, key_id)


@keys_app.command("rotate")
@local
def rotate(
    call: Call,  # noqa: ARG001 - the form of all commands
    new: Annotated[str, typer.Argument(metavar="NEW", help="the new private key")],
    *,
    signing_key_file: SigningKeyFile,
) -> ExitCode:
    """Create a key that continues the chain. Prints the statement that the old key signs: keep it with the receipts.

    The old key signs nothing after that. If the command was interrupted, run it again.
    """

    def rotated() -> bytes:
        with signing_key(OsFileSystem(), signing_key_file) as key:
            return key.rotate(new, SystemClock().wall_ms())

    _print_bytes(_with_key(rotated))
    return ExitCode.DONE


@keys_app.command("show")
@local
def show_key(
    call: Call, path: Annotated[str, typer.Argument(metavar="FILE", help="a private key; its FILE.pub is read")]
) -> ExitCode:
    """Show the id of a key."""
    public = path if path.endswith(PUBLIC_SUFFIX) else path + PUBLIC_SUFFIX
    return _key_shown(call, path, _with_key(lambda: key_id_of(read_public_key(OsFileSystem(), public))))


def _key_shown(call: Call, path: str, key_id: str) -> ExitCode:
    public = path.removesuffix(PUBLIC_SUFFIX) + PUBLIC_SUFFIX
    if call.output is Output.JSON:
        print_json({"key_id": key_id, "public_key": public})
    else:
        print(f"key {key_id}\npublic key {printable(public)}")
    return ExitCode.DONE


def _with_key(work: Callable[[], T]) -> T:
    """Runs what uses a key. Errors: CommandError."""
    try:
        return work()
    except SigningKeyError as error:
        raise misused(str(error)) from None
    except OSError as error:
        raise misused(f"{error.filename}: {error.strerror}.") from None


@app.command()
@network
async def receipt(
    call: NetworkCall,
    erasure_id: Annotated[UUID | None, typer.Argument(metavar="[ID]", help="the erasure id")] = None,
    *,
    signing_key_file: SigningKeyFile,
    nonce: Annotated[
        list[str] | None,
        typer.Option("--nonce", metavar="HEX", help="the nonce that `records erase` showed; - reads standard input"),
    ] = None,
    from_export: FromExport = None,
    last: Annotated[bool, typer.Option("--last", help="print the last statement of the key again; signs none")] = False,
    reach: TableReachOptions,
) -> ExitCode:
    """Print a signed receipt of an erasure.

    Whoever has a nonce can test whether a key was the erased one: with --nonce it is in the receipt.
    """
    if last == (erasure_id is not None):
        raise misused("give the erasure id or --last.")
    if erasure_id is None:
        _print_bytes(_with_key(lambda: _last(signing_key_file)))
        return ExitCode.DONE
    nonces = [_nonce(text) for text in nonce or []]
    wanted = str(erasure_id)
    ledger = await _ledger(call, from_export)
    found = partitions_of(entries_of(ledger), erasure_id.bytes)
    tables = table_statements(reach, erasure_id)
    if not found and not tables:
        raise CommandError(f"the ledger has no record of the erasure {wanted}.")
    replicas = None if from_export else await _replicas(call, found)

    def signed() -> bytes:
        with signing_key(OsFileSystem(), signing_key_file) as key:
            return key.sign(
                lambda link: make_receipt(link, ledger.cluster_id, wanted, found, replicas, nonces, tables),
                SystemClock().wall_ms(),
            )

    _print_bytes(_with_key(signed))
    return ExitCode.DONE


def _last(path: str) -> bytes:
    with signing_key(OsFileSystem(), path) as key:
        content = key.last()
    if content is None:
        raise CommandError(f"{path} has signed nothing yet.")
    return content


def _nonce(text: str) -> bytes:
    """Returns the nonce. Errors: CommandError, without the nonce."""
    try:
        nonce = bytes.fromhex((sys.stdin.readline(1024) if text == "-" else text).strip())
    except ValueError:
        raise misused("--nonce must have hexadecimal digits.") from None
    if len(nonce) != NONCE_BYTES:
        raise misused(f"--nonce has {len(nonce)} bytes instead of {NONCE_BYTES}.")
    return nonce


async def _ledger(call: NetworkCall, from_export: str | None) -> Ledger:
    if from_export is None:
        return await read_ledger(call)
    return read_export(from_export)


async def _replicas(call: NetworkCall, found: dict[Place, PartitionLedger]) -> dict[Place, tuple[BrokerId, ...]]:
    """Returns the replicas of now, without partitions that are gone. Errors: AdminError."""
    topics = {each.topic() for each in found.values()}
    return {
        (topic.topic_id, number): partition.replicas
        for topic in (await call.client.describe_topics(sorted(topics))).values()
        if isinstance(topic, TopicDescription) and topic.topic_id is not None
        for number, partition in topic.partitions.items()
    }


@app.command()
@local
def verify(
    call: Call,
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="receipts and statements about new keys")],
    *,
    public_key: Annotated[
        list[str], typer.Option("--public-key", metavar="FILE", help="a key to trust; may be repeated")
    ],
    log_dirs: Annotated[
        list[str] | None,
        typer.Option("--log-dirs", metavar="DIR,DIR", help="copies of log directories to search; may be repeated"),
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="a key to search for; --keys-from hides it")
    ] = None,
    keys_from: Annotated[
        str | None,
        typer.Option("--keys-from", metavar="FILE", help="a file with a key in each line; - reads standard input"),
    ] = None,
    key_format: Annotated[KeyFormat, typer.Option("--key-format", help="how keys are written")] = KeyFormat.TEXT,
    nonce: Annotated[
        list[str] | None, typer.Option("--nonce", metavar="HEX", help="a nonce that the receipts don't have")
    ] = None,
) -> ExitCode:
    """Verify receipts, and search copies of log directories for what they say was erased. Needs no broker.

    The exit code is 0 if everything is verified, 1 if something is wrong, and 2 if a file can't be read.
    """
    trusted = [_with_key(partial(read_public_key, OsFileSystem(), path)) for path in public_key]
    directories = [path for text in log_dirs or [] for path in text.split(",") if path]
    keys = selector_of(key or [], keys_from, None, key_format).keys if key or keys_from else frozenset[bytes]()
    question = DiskQuestion(directories=directories, keys=keys, nonces=[_nonce(text) for text in nonce or []])
    report = verified(OsFileSystem(), files, trusted, question)
    if call.output is Output.JSON:
        print_json(report.value())
    else:
        print(*map(printable, report.lines()), sep="\n")
    return ExitCode.FAILED if report.findings else ExitCode.DONE


@app.command("list")
@network
async def list_erasures(call: NetworkCall, *, from_export: FromExport = None) -> ExitCode:
    """List the erasures that the ledger has. Needs READ on __lowtide_erasures."""
    grouped: dict[bytes, list[LedgerEntry]] = {}
    for entry in entries_of(await _ledger(call, from_export)):
        if not isinstance(entry.key, StandingKey):
            grouped.setdefault(entry.key.erasure_id, []).append(entry)
    rows = [_list_row(UUID(bytes=each), _described(partitions_of(own, each))) for each, own in grouped.items()]
    call.show({"erasures": [dict(zip(_names(LIST_COLUMNS), row, strict=True)) for row in rows]}, LIST_COLUMNS, rows)
    return ExitCode.DONE


@app.command()
@network
async def show(call: NetworkCall, erasure_id: ErasureId, *, from_export: FromExport = None) -> ExitCode:
    """Show what the ledger has about one erasure. Needs READ on __lowtide_erasures."""
    found = partitions_of(entries_of(await _ledger(call, from_export)), erasure_id.bytes)
    if not found:
        raise CommandError(f"the ledger has no record of the erasure {erasure_id}.")
    partitions = _described(found, None if from_export else await _replicas(call, found))
    rows = [
        (
            each.topic, each.partition, search.searched_from, search.searched_to, search.records, search.committed_at,
            ", ".join(str(one.broker) for one in each.confirmed), _brokers(each.not_confirmed),
        )
        for each in partitions
        for search in each.searches
    ]  # fmt: skip
    call.show({"erasure_id": str(erasure_id), "partitions": partitions}, SHOW_COLUMNS, rows)
    return ExitCode.DONE


@standing_app.command("list")
@network
async def list_standing(call: NetworkCall) -> ExitCode:
    """List the standing erasures. Needs READ on __lowtide_erasures."""
    found = await call.client.describe_standing_erasures()
    rows = [
        (
            str(each.erasure_id), rfc3339(each.begun_ms), rfc3339(each.ends_ms), each.principal, each.key_count,
            ", ".join((*each.topics, *each.patterns)),
        )
        for each in sorted(found, key=lambda each: each.begun_ms)
    ]  # fmt: skip
    shown = [dict(zip(_names(STANDING_COLUMNS), row, strict=True)) for row in rows]
    call.show({"standing": shown}, STANDING_COLUMNS, rows)
    return ExitCode.DONE


@standing_app.command("end")
@network
async def end_standing(call: NetworkCall, erasure_id: ErasureId) -> ExitCode:
    """End a standing erasure before its time. What it has erased stays erased. Needs DELETE on its topics."""
    check_erasure_id(erasure_id)
    await call.client.end_standing_erasure(erasure_id)
    call.show({"erasure_id": str(erasure_id), "ended": True}, ("erasure",), [(str(erasure_id),)])
    return ExitCode.DONE


@app.command()
@network
async def export(call: NetworkCall) -> ExitCode:
    """Print the ledger as JSON lines, for --from-export and for safekeeping. Needs READ on __lowtide_erasures."""
    for line in export_lines(await read_ledger(call)):
        print(line.decode(), end="")
    return ExitCode.DONE


def _described(
    found: dict[Place, PartitionLedger], replicas: dict[Place, tuple[BrokerId, ...]] | None = None
) -> list[PartitionStatement]:
    try:
        return described(found, replicas)
    except ReceiptError as error:
        raise CommandError(f"{error}.") from None


def _list_row(erasure_id: UUID, partitions: list[PartitionStatement]) -> tuple[object, ...]:
    searches = [search for each in partitions for search in each.searches]
    confirming = {one.principal for each in partitions for one in each.confirmed}
    return (
        str(erasure_id),
        min((each.named_at for each in searches), default=None),
        ", ".join(sorted({each.principal for each in searches} | confirming)),
        ", ".join(sorted({each.kind for each in searches})) or "beginning",
        len(partitions),
        sum(each.records for each in searches),
        _brokers(sorted({broker for each in partitions for broker in each.not_confirmed})),
    )


def _brokers(brokers: list[BrokerId]) -> str:
    return ", ".join(map(str, brokers))


def _names(columns: tuple[str, ...]) -> list[str]:
    return [each.replace(" ", "_") for each in columns]


def _print_bytes(content: bytes) -> None:
    print(content.decode(), end="")
