"""The port to the metadata store: compare-and-swap transactions, leases, watches.

A store is an ordered map of byte keys with one revision, an integer that rises by one with every transaction that
changes anything. A key records the revisions of its creation and of its last change, and comparisons use those, never
values: that is cheap, a value that returns to an earlier state can't fool it, and it works the same in SQLite and in
etcd. A revision serves as broker epoch, as metadata offset and as version for compare-and-swap.

Guards: a transaction is applied as a whole or not at all, under one revision, and is durable before `transact` returns.
A watch delivers every revision, in order, each as a whole.

`keys`, `records` and `image` give the keys their meaning; `session` registers and fences brokers.

The limits are etcd's, asserted for every engine, so that what works on the embedded store also works on etcd. Source:
etcd's API guide (KV, Lease and Watch services).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

Revision: TypeAlias = int
LeaseId: TypeAlias = int

NO_LEASE: Final[LeaseId] = 0
"""The lease of a key that lives until it is deleted."""

ABSENT: Final = 0
"""The revision and lease of a key that doesn't exist, in a comparison."""

MAX_TRANSACTION_OPERATIONS: Final = 128
"""Comparisons, operations and alternative operations of one transaction, each. Source: etcd's `--max-txn-ops`."""

MAX_TRANSACTION_BYTES: Final = 1_572_864
"""The whole encoded transaction: comparisons and both branches. Source: etcd's `--max-request-bytes`."""

OPERATION_BYTES: Final = 64
"""The most overhead of a comparison or an operation beside key and value, and of a transaction: tags, lengths,
numbers."""

CompareField: TypeAlias = Literal["create", "modify", "lease"]
CompareOperator: TypeAlias = Literal["==", "!=", "<", ">"]


class MetadataStoreError(Exception):
    """The store could not carry out a request."""


class UnavailableError(MetadataStoreError):
    """The store was not reached or refused: nothing was applied."""


class AccessDeniedError(UnavailableError):
    """The store denies access: nothing was applied, and nothing will be until its permissions change."""


class AmbiguousError(MetadataStoreError):
    """No answer arrived: the transaction may have been applied, or may still be. The caller reads and decides."""


class LeaseGoneError(MetadataStoreError):
    """The lease expired or was revoked, and its keys are deleted."""


class CompactedError(MetadataStoreError):
    """A watch asked for revisions that were compacted: read the whole range again and watch from there."""


class KeyValue(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One key at some revision. `create_revision` is that of its first put since it last didn't exist."""

    key: bytes
    value: bytes
    create_revision: Revision
    modify_revision: Revision
    lease: LeaseId = NO_LEASE


class Compare(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A condition on one key. A key that doesn't exist has create revision, modify revision and lease 0."""

    key: bytes
    field: CompareField
    operator: CompareOperator
    argument: int


class Put(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """Write a key; with a lease it is deleted when the lease ends."""

    key: bytes
    value: bytes
    lease: LeaseId = NO_LEASE


class Delete(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """Delete a key; no error if it doesn't exist."""

    key: bytes


class Get(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """Read a key, including the effects of earlier operations of the transaction."""

    key: bytes


Operation: TypeAlias = Put | Delete | Get


class TransactionResult(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The result of a transaction.

    `succeeded`: whether all comparisons held. `revision`: that of the change, or the store's if nothing changed.
    `gets`: one per executed `Get`, in order; None for a missing key.
    """

    succeeded: bool
    revision: Revision
    gets: tuple[KeyValue | None, ...] = ()


class KeyEvent(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One changed key. `value` is None for a deletion; `create_revision` and `lease` are then 0."""

    key: bytes
    value: bytes | None
    create_revision: Revision
    modify_revision: Revision
    lease: LeaseId = NO_LEASE


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """All changes of one revision, in the order of the transaction."""

    revision: Revision
    events: tuple[KeyEvent, ...]


class MetadataStore(Protocol):
    """The port. Implementations: `memory` (simulator), `embedded` (SQLite), etcd."""

    async def get(self, key: bytes) -> KeyValue | None:
        """Reads one key linearizably: all transactions answered before are visible. Errors: UnavailableError."""

    async def range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        """Reads all keys that begin with `prefix`, ordered by key, at the returned revision.

        Errors: UnavailableError.
        """

    async def revision(self) -> Revision:
        """Reads the store's revision linearizably: no earlier answer had a larger one.

        Errors: UnavailableError.
        """

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Runs `operations` if all of `compares` hold, else `otherwise`, in one durable revision.

        Errors: UnavailableError (not applied), AmbiguousError (unknown), LeaseGoneError (a put with an expired lease;
        not applied).
        """

    async def lease_grant(self, time_to_live_ms: int) -> LeaseId:
        """Creates a lease that ends unless it is kept alive. Errors: UnavailableError."""

    async def lease_keep_alive(self, lease: LeaseId) -> None:
        """Restarts the lease's time to live. Errors: LeaseGoneError, UnavailableError."""

    async def lease_revoke(self, lease: LeaseId) -> None:
        """Ends the lease and deletes its keys in one revision; no error if it is gone.

        Errors: UnavailableError, AmbiguousError.
        """

    def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        """Yields every batch from `start_revision` (inclusive), reduced to keys under `prefix`, without empty batches.

        Never ends by itself. A start above the store's revision waits for it. Errors: CompactedError, UnavailableError.
        """

    @property
    def connections(self) -> int:
        """How often a connection to the store was opened. When it rises, the store may have another state."""

    async def raft_surplus(self) -> int | None:
        """Returns how many more entries the store's raft log has than the store has revisions; None if unsupported.

        Each revision takes an entry, and some entries create no revision, so the number never falls while the store
        lives. A store restored from a snapshot keeps its revision and restarts its raft log. The result may be slightly
        too large, never too small. Errors: UnavailableError.
        """

    def require_raft_surplus(self, least: int) -> None:
        """Makes every new connection to a store with a smaller surplus fail with StoreWentBackError."""


class OwnedStore(MetadataStore, Protocol):
    """A store, for the code that opened it."""

    @property
    def failure(self) -> str | None:
        """Why the store can't be used until it is opened again; None while it works."""

    async def close(self) -> None:
        """Finishes running requests, then refuses everything."""


def check_transaction(
    compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation]
) -> None:
    """Asserts that every engine accepts this transaction: size limits, and no key written twice in one branch."""
    assert max(len(compares), len(operations), len(otherwise)) <= MAX_TRANSACTION_OPERATIONS, (
        f"a transaction of {len(compares)} comparisons, {len(operations)} and {len(otherwise)} operations "
        "is over the limit"
    )
    size_bytes = OPERATION_BYTES + sum(OPERATION_BYTES + len(compare.key) for compare in compares)
    for branch in (operations, otherwise):
        written: set[bytes] = set()
        for operation in branch:
            size_bytes += OPERATION_BYTES + len(operation.key)
            if type(operation) is Get:
                continue
            assert operation.key not in written, f"{operation.key!r} is written twice in one transaction"
            written.add(operation.key)
            if type(operation) is Put:
                size_bytes += len(operation.value)
    assert size_bytes <= MAX_TRANSACTION_BYTES, f"a transaction of {size_bytes} bytes is over the limit"
