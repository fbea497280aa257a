"""Translates between the port and etcd's messages.

Pure. Revision, comparison, lease and event have the same meaning in both, so each function only moves fields. In both,
the event of a deletion has create revision and lease 0.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from lowtide.metadata import etcd_rpc_pb2 as rpc
from lowtide.metadata.store import Batch, Compare, Delete, KeyEvent, KeyValue, Operation, Put, TransactionResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_OPERATORS: Final = {
    "==": rpc.Compare.EQUAL,
    "!=": rpc.Compare.NOT_EQUAL,
    "<": rpc.Compare.LESS,
    ">": rpc.Compare.GREATER,
}

ALL_KEYS: Final = (b"\0", b"\0")
"""The range of all keys; etcd has no empty key. Source: etcd's API guide."""


def key_range(prefix: bytes) -> tuple[bytes, bytes]:
    """Returns the range of exactly the keys that begin with `prefix`: its first key, and the first key after it."""
    if not prefix:
        return ALL_KEYS
    stem = prefix.rstrip(b"\xff")
    return prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


def transaction_request(
    compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation]
) -> rpc.TxnRequest:
    """Builds a transaction."""
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
    """Returns the result of a transaction."""
    reads = [each.response_range for each in response.responses if each.WhichOneof("response") == "response_range"]
    gets = tuple(key_value(read.kvs[0]) if read.kvs else None for read in reads)
    return TransactionResult(succeeded=response.succeeded, revision=response.header.revision, gets=gets)


def key_value(pair: rpc.KeyValue) -> KeyValue:
    """Returns one key."""
    return KeyValue(pair.key, pair.value, pair.create_revision, pair.mod_revision, pair.lease)


def watch_request(prefix: bytes, start_revision: int) -> rpc.WatchRequest:
    """Requests a watch under `prefix`. Large answers may come in fragments."""
    key, range_end = key_range(prefix)
    create = rpc.WatchCreateRequest(key=key, range_end=range_end, start_revision=start_revision, fragment=True)
    return rpc.WatchRequest(create_request=create)


def events_of(response: rpc.WatchResponse) -> list[KeyEvent]:
    """Returns the events of one answer of a watch, in etcd's order."""
    return [_event(event) for event in response.events]


def batches_of(events: Iterable[KeyEvent]) -> list[Batch]:
    """Groups consecutive events into a batch for each revision."""
    return [Batch(revision, tuple(group)) for revision, group in groupby(events, key=attrgetter("modify_revision"))]


def _event(event: rpc.Event) -> KeyEvent:
    pair = event.kv
    if event.type == rpc.Event.DELETE:
        return KeyEvent(pair.key, None, 0, pair.mod_revision)
    return KeyEvent(pair.key, pair.value, pair.create_revision, pair.mod_revision, pair.lease)
