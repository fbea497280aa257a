"""What the port says, in etcd's messages, and back.

Pure. The port and etcd mean the same by revision, comparison, lease and event, so each function below only moves
fields. An event of a deletion has create revision and lease 0 in both.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from lowtide.metadata import etcd_rpc_pb2 as rpc
from lowtide.metadata.store import Batch, Compare, Delete, Event, KeyValue, Operation, Put, TransactionResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_OPERATORS: Final = {
    "==": rpc.Compare.EQUAL,
    "!=": rpc.Compare.NOT_EQUAL,
    "<": rpc.Compare.LESS,
    ">": rpc.Compare.GREATER,
}

ALL_KEYS: Final = (b"\0", b"\0")
"""The range of all keys; etcd knows no empty key. Source: etcd's API guide."""


def key_range(prefix: bytes) -> tuple[bytes, bytes]:
    """The range that has exactly the keys that begin with `prefix`: its first key, and the first one after it."""
    if not prefix:
        return ALL_KEYS
    stem = prefix.rstrip(b"\xff")
    return prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


def range_request(key: bytes, range_end: bytes, *, limit: int, revision: int) -> rpc.RangeRequest:
    """At most `limit` keys of a range as they stood at `revision`; 0 is now.

    Linearizable: a stale answer is never asked for.
    """
    return rpc.RangeRequest(key=key, range_end=range_end, limit=limit, revision=revision)


def transaction_request(
    compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation]
) -> rpc.TxnRequest:
    """See `MetadataStore.transact`."""
    return rpc.TxnRequest(
        compare=[_compare(compare) for compare in compares],
        success=[_operation(operation) for operation in operations],
        failure=[_operation(operation) for operation in otherwise],
    )


def _compare(compare: Compare) -> rpc.Compare:
    result, key, argument = _OPERATORS[compare.operator], compare.key, compare.argument
    if compare.field == "create":
        return rpc.Compare(result=result, target=rpc.Compare.CREATE, key=key, create_revision=argument)
    if compare.field == "modify":
        return rpc.Compare(result=result, target=rpc.Compare.MOD, key=key, mod_revision=argument)
    return rpc.Compare(result=result, target=rpc.Compare.LEASE, key=key, lease=argument)


def _operation(operation: Operation) -> rpc.RequestOp:
    if isinstance(operation, Put):
        return rpc.RequestOp(
            request_put=rpc.PutRequest(key=operation.key, value=operation.value, lease=operation.lease)
        )
    if isinstance(operation, Delete):
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=operation.key))
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=operation.key))


def transaction_result(response: rpc.TxnResponse) -> TransactionResult:
    """How the transaction went."""
    reads = [each.response_range for each in response.responses if each.WhichOneof("response") == "response_range"]
    gets = tuple(key_value(read.kvs[0]) if read.kvs else None for read in reads)
    return TransactionResult(succeeded=response.succeeded, revision=response.header.revision, gets=gets)


def key_value(pair: rpc.KeyValue) -> KeyValue:
    """One key as etcd has it."""
    return KeyValue(pair.key, pair.value, pair.create_revision, pair.mod_revision, pair.lease)


def watch_request(prefix: bytes, start_revision: int) -> rpc.WatchRequest:
    """Watch everything under `prefix`. Answers that are too long for one message may come in fragments."""
    key, range_end = key_range(prefix)
    create = rpc.WatchCreateRequest(key=key, range_end=range_end, start_revision=start_revision, fragment=True)
    return rpc.WatchRequest(create_request=create)


def events_of(response: rpc.WatchResponse) -> list[Event]:
    """The events of one answer of a watch, in etcd's order."""
    return [_event(event) for event in response.events]


def batches_of(events: Iterable[Event]) -> list[Batch]:
    """Events that follow each other, a batch for each revision."""
    return [Batch(revision, tuple(group)) for revision, group in groupby(events, key=attrgetter("modify_revision"))]


def _event(event: rpc.Event) -> Event:
    pair = event.kv
    if event.type == rpc.Event.DELETE:
        return Event(pair.key, None, 0, pair.mod_revision)
    return Event(pair.key, pair.value, pair.create_revision, pair.mod_revision, pair.lease)
