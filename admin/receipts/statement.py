"""What a receipt says, and what the statement about a new signing key says. Both are canonical JSON without floats."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from lowtide.admin.receipts.envelope import RECEIPT_TYPE, ROTATION_TYPE, ReceiptError, SignedPayload, canonical_json
from lowtide.runtime.json_text import decode_json

NO_DIGEST: Final = "0" * 64
"""`previous` of the first statement of a chain."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Time: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")]
"""RFC 3339 in UTC with milliseconds: times compare as texts."""

KindName: TypeAlias = Literal["keys", "header", "offsets"]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of everything in a statement."""


class ErasedRun(_Part, frozen=True, kw_only=True):
    """Records with consecutive offsets of one leader epoch. There is a timestamp for each, in milliseconds."""

    first_offset: Number
    leader_epoch: int
    timestamps: list[int]


class LeaderSearch(_Part, frozen=True, kw_only=True):
    """One search of a partition by its leader, and the commit of the erasure. Ends are exclusive."""

    principal: str
    kind: KindName
    commitment: Digest | None
    leader: int
    leader_epoch: int
    part: int
    searched_from: int
    searched_to: int
    log_start_offset: int
    records: Number
    runs: list[ErasedRun]
    named_at: Time
    committed_at: Time | None
    erasures_end: int | None
    is_replay: bool = False
    """Whether only records that an export of a ledger names were looked for, and not the selector."""


class Confirmation(_Part, frozen=True, kw_only=True):
    """The report of a broker that its files are clean. The ids are Kafka's text, as in `meta.properties`."""

    broker: int
    principal: str
    directory: str
    directory_id: str
    erased_below: int
    erasures_end: int | None
    confirmed_at: Time


class PartitionStatement(_Part, frozen=True, kw_only=True):
    """What happened to a partition. Without a search, only its beginning was erased.

    `not_confirmed` has all replicas only if `replicas_known`.
    """

    topic: str
    topic_id: str
    partition: Number
    searches: list[LeaderSearch]
    confirmed: list[Confirmation]
    not_confirmed: list[int]
    replicas_known: bool


class NamedFiles(_Part, frozen=True, kw_only=True):
    """Some files of a table: how many, the first of them by name, and the digest of all names.

    The digest is SHA-256 of the sorted names, each with a line feed after it.
    """

    count: Number
    names: list[str]
    digest: Digest


class TableStatement(_Part, frozen=True, kw_only=True):
    """What an erasure did to a table (Iceberg), and when nothing of the rows was left in its files."""

    table: str
    table_uuid: str
    location: str
    erasure_id: str
    fence: Number
    """The snapshot that the erasure committed."""
    fenced_at: Time
    rows: Number
    files_searched: Number
    replaced: NamedFiles
    """The data files that had such rows."""
    written: NamedFiles
    """The data files that took their place."""
    deleted: NamedFiles
    """All deleted files: data, statistics, manifests, lists of manifests, metadata files."""
    snapshots_removed: list[int]
    """The first of them, if there were many."""
    snapshots_count: Number
    confirmed_at: Time


class ChainLink(_Part, frozen=True, kw_only=True):
    """What every statement has. `number` begins with 1; `previous` is the digest of the statement before it."""

    version: Literal[1] = 1
    number: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    previous: Digest
    issued_at: Time
    key_id: Digest


class ErasureReceipt(ChainLink, frozen=True, kw_only=True):
    """The statement about one erasure."""

    cluster_id: str
    erasure_id: str
    nonces: list[Digest]
    """Those that the issuer gave, in hexadecimal."""
    partitions: list[PartitionStatement]
    not_covered: list[str]
    tables: list[TableStatement] | msgspec.UnsetType = msgspec.UNSET
    """Absent if the erasure reached no table."""


class KeyRotation(ChainLink, frozen=True, kw_only=True):
    """The last statement of a key: the chain continues with the new one (32 bytes in hexadecimal)."""

    new_key: Digest
    new_key_id: Digest


Statement: TypeAlias = ErasureReceipt | KeyRotation

_TYPES: Final[dict[str, type[ErasureReceipt | KeyRotation]]] = {
    RECEIPT_TYPE: ErasureReceipt,
    ROTATION_TYPE: KeyRotation,
}


def payload_type_of(statement: Statement) -> str:
    """Returns the type that the envelope of a statement has."""
    return RECEIPT_TYPE if isinstance(statement, ErasureReceipt) else ROTATION_TYPE


def read_statement(signed: SignedPayload) -> Statement:
    """Reads a payload. Errors: ReceiptError for another type, another form, and for a key id that differs."""
    kind = _TYPES.get(signed.payload_type)
    if kind is None:
        raise ReceiptError("its payload has an unknown type")
    try:
        statement = decode_json(signed.payload, kind)
    except ValueError as error:
        raise ReceiptError(f"its payload can't be read: {error}") from None
    if canonical_json(statement) != signed.payload:
        raise ReceiptError("its payload is not in the form in which receipts are written")
    if statement.key_id != signed.key_id:
        raise ReceiptError("the key ids in the envelope and in the payload differ")
    if isinstance(statement, KeyRotation) and sha256(bytes.fromhex(statement.new_key)).hexdigest() != (
        statement.new_key_id
    ):
        raise ReceiptError("the new key has another id")
    return statement


def rfc3339(time_ms: int) -> str:
    """Returns a time as UTC text with milliseconds. Errors: ReceiptError for a time that is no date.

    >>> rfc3339(1_600_000_000_001)
    '2020-09-13T12:26:40.001Z'
    """
    try:
        text = datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        raise ReceiptError(f"{time_ms} ms is not a date") from None
    return f"{text.rjust(19, '0')}.{time_ms % 1000:03d}Z"
