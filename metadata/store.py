"""The port to the cluster's metadata: compare-and-swap transactions, leases, watches.

A store is an ordered map of byte keys with one revision, an integer that grows by one with every transaction that
changes anything. A key remembers the revision that created it and the one that last changed it, and decisions compare
those, never values: that is cheap, it cannot be fooled by a value that came back, and it means the same in SQLite and
in etcd. A revision serves as broker epoch, as metadata offset and as version for compare-and-swap at once.

Guards: a transaction is applied whole or not at all, under one revision, and is durable before `transact` returns. What
a watch delivers is every revision, in order, each whole.

Does not do: the sense of the keys (`keys`, `records`, `image`), registration and fencing (`session`).

The limits are etcd's, asserted for every engine, so that what passes on the embedded store also passes on a cluster.
Source: etcd's API guide (KV, Lease and Watch services).
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
"""What a comparison sees as the revision and lease of a key that doesn't exist."""

MAX_TRANSACTION_OPERATIONS: Final = 128
"""Comparisons, operations and alternative operations of one transaction, each. Source: etcd's `--max-txn-ops`."""

MAX_TRANSACTION_BYTES: Final = 1_572_864
"""All of one transaction as it is sent: comparisons and both branches. Source: etcd's `--max-request-bytes`."""

OPERATION_BYTES: Final = 64
"""What a comparison or an operation may take besides its key and value, and the transaction besides both: tags, lengths, numbers."""

CompareField: TypeAlias = Literal["create", "modify", "lease"]
CompareOperator: TypeAlias = Literal["==", "!=", "<", ">"]


class MetadataStoreError(Exception):
    """The store could not do what it was asked for."""


class UnavailableError(MetadataStoreError):
    """The store was not reached or refused: nothing was applied."""


class AccessDeniedError(UnavailableError):
    """The store doesn't let us in, or not there: nothing was applied, and nothing will be until its permissions change."""


class AmbiguousError(MetadataStoreError):
    """Sent, but no answer came: the transaction may have been applied, or may yet be. The caller reads and decides."""


class LeaseGoneError(MetadataStoreError):
    """The lease expired or was revoked, and its keys are deleted."""


class CompactedError(MetadataStoreError):
    """A watch asked for revisions that are no longer kept: read the whole range again and watch from there."""


class KeyValue(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One key as it stands at some revision. `create_revision` is that of its first put since it last didn't exist."""

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
    """Read a key, as the operations before it in the same transaction left it."""

    key: bytes


Operation: TypeAlias = Put | Delete | Get


class TransactionResult(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How a transaction went.

    `succeeded`: whether all comparisons held. `revision`: that of the change, or the store's when nothing changed. `gets`: one
    per `Get` that ran, in order; None for a key that doesn't exist.
    """

    succeeded: bool
    revision: Revision
    gets: tuple[KeyValue | None, ...] = ()


class Event(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One key changed. `value` None: deleted, and then `create_revision` and `lease` are 0."""

    key: bytes
    value: bytes | None
    create_revision: Revision
    modify_revision: Revision
    lease: LeaseId = NO_LEASE


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """All changes of one revision, in the order in which the transaction made them."""

    revision: Revision
    events: tuple[Event, ...]


class MetadataStore(Protocol):
    """The port. Implementations: `memory` (simulator), `embedded` (SQLite), etcd."""

    async def get(self, key: bytes) -> KeyValue | None:
        """Read one key, linearizably: every transaction that was answered before is seen. Errors: UnavailableError."""
        ...

    async def range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        """Read all keys that begin with `prefix`, ordered by key, as they stand at the returned revision.

        Errors: UnavailableError.
        """
        ...

    async def revision(self) -> Revision:
        """The store's revision, read linearizably: no larger one was returned to any client before.

        Errors: UnavailableError.
        """
        ...

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Run `operations` if all of `compares` hold, else `otherwise`, in one durable revision.

        Errors: UnavailableError (not applied), AmbiguousError (unknown), LeaseGoneError (a put named a dead lease; not
        applied).
        """
        ...

    async def lease_grant(self, time_to_live_ms: int) -> LeaseId:
        """Begin a lease that ends unless it is kept alive. Errors: UnavailableError."""
        ...

    async def lease_keep_alive(self, lease: LeaseId) -> None:
        """Start the time of the lease again. Errors: LeaseGoneError, UnavailableError."""
        ...

    async def lease_revoke(self, lease: LeaseId) -> None:
        """End the lease now and delete its keys in one revision; no error if it is gone.

        Errors: UnavailableError, AmbiguousError.
        """
        ...

    def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        """Deliver every batch from `start_revision` (inclusive) on, reduced to keys under `prefix`; empty ones are left out.

        Never ends of itself. A start above the store's revision waits for it. Errors: CompactedError, UnavailableError.
        """
        ...

    @property
    def connections(self) -> int:
        """How often a connection to the store was opened; when it grows, the store may have another state."""
        ...

    async def raft_surplus(self) -> int | None:
        """How many entries the store's raft log has more than the store has revisions; None where that can't be asked.

        Each revision takes an entry, and some entries make no revision, so the number never falls while the store
        lives. A store that is restored from a snapshot keeps its revision and begins its raft log again. May be a
        little too large, never too small. Errors: UnavailableError.
        """
        ...

    def require_raft_surplus(self, least: int) -> None:
        """From now on refuse everything that comes over a new connection where the surplus is smaller: StoreWentBackError."""
        ...


class OwnedStore(MetadataStore, Protocol):
    """A store, as the code that opened it sees it."""

    @property
    def failure(self) -> str | None:
        """Why nothing can be decided on this store any more, until it is opened again; None while that is not so."""
        ...

    async def close(self) -> None:
        """Finish what was begun, then refuse everything."""
        ...


def check_transaction(
    compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation]
) -> None:
    """Assert that every engine would take this transaction: few enough operations, and no key written twice in one branch."""
    assert max(len(compares), len(operations), len(otherwise)) <= MAX_TRANSACTION_OPERATIONS, (
        f"a transaction of {len(compares)} comparisons, {len(operations)} and {len(otherwise)} operations is over the limit"
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
