"""The state of a store without a server: keys, revision, leases, and recent history for watches.

Pure: no waiting, no disk, time is passed in. A transaction is first staged on an overlay. It changes the state only
when the store has made it durable (`commit`), so a failed write has no effect. Several transactions may be staged on
one overlay, each under its own revision, for a group commit.

Guards: the revision rises by one per transaction that changes something; all keys of a lease are deleted in one
revision; history has no gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from lowtide.metadata.store import (
    ABSENT,
    NO_LEASE,
    Batch,
    CompactedError,
    Compare,
    Delete,
    Get,
    KeyEvent,
    KeyValue,
    LeaseGoneError,
    LeaseId,
    Operation,
    Put,
    Revision,
    TransactionResult,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HISTORY_REVISIONS: Final = 4096
"""The least number of revisions kept in memory for watches; a watch that falls further behind reads the range again. A
thousand partitions created in chunks of a hundred are 10 revisions of about 20 kB each."""

LEASES_PER_BOOT: Final = 1 << 32
"""Lease ids are the boot number times this plus a count, so that no id is used twice, not even after a crash."""


class Staged:
    """Evaluated, uncommitted transactions: an overlay over the engine's keys, and the batches to write."""

    __slots__ = ("batches", "ended_leases", "overlay", "revision")

    def __init__(self, revision: Revision) -> None:
        self.revision = revision
        self.overlay: dict[bytes, KeyValue | None] = {}
        self.batches: list[Batch] = []
        self.ended_leases: list[LeaseId] = []


class _Lease:
    """A live lease, or one whose keys are being deleted (`ending`)."""

    __slots__ = ("deadline_ms", "ending", "keys", "time_to_live_ms")

    def __init__(self, time_to_live_ms: int, deadline_ms: int) -> None:
        self.time_to_live_ms = time_to_live_ms
        self.deadline_ms = deadline_ms
        self.ending = False
        self.keys: dict[bytes, None] = {}  # Ordered, so that the order of deletions doesn't depend on hashes.


class Engine:
    """Keys with their revisions, leases, history. `boot` counts the processes that opened the store, from 1."""

    def __init__(self, *, boot: int, revision: Revision, keys: Iterable[KeyValue]) -> None:
        """Starts from durable `keys` at `revision`. History begins here, and no lease is alive."""
        self._boot = boot
        self._leases_granted = 0
        self._keys: dict[bytes, KeyValue] = {pair.key: pair for pair in keys}
        self._leases: dict[LeaseId, _Lease] = {}
        self._history: list[Batch] = []
        self.revision = revision

    @property
    def keys(self) -> Mapping[bytes, KeyValue]:
        return self._keys

    @property
    def compacted_revision(self) -> Revision:
        """The newest revision that a watch can no longer get."""
        return self.revision - len(self._history)

    def range(self, prefix: bytes) -> list[KeyValue]:
        """Returns all keys under `prefix`, in order."""
        return [self._keys[key] for key in sorted(key for key in self._keys if key.startswith(prefix))]

    def stage(self) -> Staged:
        return Staged(self.revision)

    def evaluate(
        self,
        staged: Staged,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> TransactionResult:
        """Runs one transaction on the overlay. Errors: LeaseGoneError, which leaves the overlay unchanged."""
        succeeded = all(self._holds(staged, compare) for compare in compares)
        branch = operations if succeeded else otherwise
        for operation in branch:
            if type(operation) is Put and operation.lease != NO_LEASE and not self._is_alive(operation.lease):
                raise LeaseGoneError(f"lease {operation.lease} of {operation.key!r} is gone")
        gets, events = self._run(staged, branch)
        if events:
            staged.revision += 1
            staged.batches.append(Batch(staged.revision, tuple(events)))
        return TransactionResult(succeeded, staged.revision, tuple(gets))

    def stage_lease_end(self, staged: Staged, lease: LeaseId) -> None:
        """Stages the deletion of an ending lease's keys, in one revision without a limit of operations."""
        held = self._leases.get(lease)
        if held is None:
            return
        assert held.ending, f"lease {lease} is alive"
        staged.ended_leases.append(lease)
        candidates = dict.fromkeys([*held.keys, *staged.overlay])
        keys = [key for key in candidates if (pair := self._current(staged, key)) is not None and pair.lease == lease]
        self._stage_deletion(staged, keys)

    def stage_orphans(self, staged: Staged) -> None:
        """Stages the deletion of keys of an earlier process's leases, in one revision."""
        orphans = (key for key, pair in self._keys.items() if pair.lease != NO_LEASE and pair.lease not in self._leases)
        self._stage_deletion(staged, sorted(orphans))

    def _stage_deletion(self, staged: Staged, keys: Sequence[bytes]) -> None:
        _, events = self._run(staged, [Delete(key) for key in keys])
        if events:
            staged.revision += 1
            staged.batches.append(Batch(staged.revision, tuple(events)))

    def commit(self, staged: Staged) -> None:
        """Applies what was staged and is durable now. The overlay must follow the current revision."""
        assert staged.revision - len(staged.batches) == self.revision, (
            f"staged on another revision than {self.revision}"
        )
        for key, pair in staged.overlay.items():
            self._release_from_lease(key)
            if pair is None:
                self._keys.pop(key, None)
            else:
                self._keys[key] = pair
                lease = self._leases.get(pair.lease)
                if lease is not None:
                    lease.keys[key] = None
        for ended in staged.ended_leases:
            self._leases.pop(ended, None)
        self.revision = staged.revision
        self._history += staged.batches
        if len(self._history) > 2 * HISTORY_REVISIONS:
            del self._history[:-HISTORY_REVISIONS]

    def _run(self, staged: Staged, branch: Sequence[Operation]) -> tuple[list[KeyValue | None], list[KeyEvent]]:
        """Applies the operations to the overlay under the next revision. Returns what was read and what changed."""
        revision = staged.revision + 1
        gets: list[KeyValue | None] = []
        events: list[KeyEvent] = []
        for operation in branch:
            key = operation.key
            current = self._current(staged, key)
            if isinstance(operation, Get):
                gets.append(current)
            elif isinstance(operation, Put):
                created = revision if current is None else current.create_revision
                staged.overlay[key] = KeyValue(key, operation.value, created, revision, operation.lease)
                events.append(KeyEvent(key, operation.value, created, revision, operation.lease))
            elif isinstance(operation, Delete):
                if current is not None:
                    staged.overlay[key] = None
                    events.append(KeyEvent(key, None, ABSENT, revision))
            else:
                assert_never(operation)
        return gets, events

    def _current(self, staged: Staged, key: bytes) -> KeyValue | None:
        return staged.overlay[key] if key in staged.overlay else self._keys.get(key)

    def _holds(self, staged: Staged, compare: Compare) -> bool:
        pair = self._current(staged, compare.key)
        if pair is None:
            actual = ABSENT
        elif compare.field == "create":
            actual = pair.create_revision
        elif compare.field == "modify":
            actual = pair.modify_revision
        else:
            actual = pair.lease
        match compare.operator:
            case "==":
                return actual == compare.argument
            case "!=":
                return actual != compare.argument
            case "<":
                return actual < compare.argument
            case ">":
                return actual > compare.argument

    def grant_lease(self, time_to_live_ms: int, now_ms: int) -> LeaseId:
        """Grants a lease. `now_ms` is monotonic time."""
        assert time_to_live_ms > 0, f"a lease of {time_to_live_ms} ms"
        self._leases_granted += 1
        lease = self._boot * LEASES_PER_BOOT + self._leases_granted
        self._leases[lease] = _Lease(time_to_live_ms, now_ms + time_to_live_ms)
        return lease

    def keep_lease_alive(self, lease: LeaseId, now_ms: int) -> None:
        """Extends a lease to a whole time to live from `now_ms`. Errors: LeaseGoneError."""
        if not self._is_alive(lease):
            raise LeaseGoneError(f"lease {lease} is gone")
        held = self._leases[lease]
        held.deadline_ms = now_ms + held.time_to_live_ms

    def restart_leases(self, now_ms: int) -> None:
        """Restarts the time of every lease after a period without renewals, as etcd does when its leader changes."""
        for held in self._leases.values():
            held.deadline_ms = now_ms + held.time_to_live_ms

    def next_lease_deadline(self) -> int | None:
        """Returns when the first live lease ends (monotonic ms), or None without one."""
        return min((held.deadline_ms for held in self._leases.values() if not held.ending), default=None)

    def expired_leases(self, now_ms: int) -> list[LeaseId]:
        """Returns the live leases that are over at `now_ms`, oldest first."""
        return [lease for lease, held in self._leases.items() if held.deadline_ms <= now_ms and not held.ending]

    def begin_lease_end(self, lease: LeaseId) -> bool:
        """Marks a lease as ended before its keys are deleted. Returns False if it was already."""
        if not self._is_alive(lease):
            return False
        self._leases[lease].ending = True
        return True

    def _is_alive(self, lease: LeaseId) -> bool:
        held = self._leases.get(lease)
        return held is not None and not held.ending

    def _release_from_lease(self, key: bytes) -> None:
        pair = self._keys.get(key)
        lease = self._leases.get(pair.lease) if pair is not None else None
        if lease is not None:
            lease.keys.pop(key, None)

    def batches_from(self, revision: Revision, limit: int) -> list[Batch]:
        """Returns at most `limit` batches from `revision` (inclusive).

        Errors: CompactedError if it is no longer kept.
        """
        if revision <= self.compacted_revision:
            message = f"revision {revision} is compacted: {self.compacted_revision + 1} is the first that is kept"
            raise CompactedError(message)
        start = revision - self.compacted_revision - 1
        return self._history[start : start + limit]
