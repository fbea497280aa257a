"""Files of replicas by partition, in the form of Kafka's `kafka-reassign-partitions`.

    {"version": 1, "partitions": [{"topic": "flights", "partition": 0, "replicas": [4, 2, 3]}]}

`log_dirs` is read where it says "any", which is what Kafka's tool prints; nothing else moves between log directories here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lowtide.cli.outcome import misused
from lowtide.protocol.types import BrokerId, TopicPartition
from lowtide.runtime.filesystem import FileSystem


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: int
    replicas: list[int]
    log_dirs: list[str] = []


class _Moves(msgspec.Struct, forbid_unknown_fields=True):
    partitions: list[_Row]
    version: int = 1


def read_move_file(path: str, files: FileSystem) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The replicas that a file wants. Errors: CommandError for one that can't be read, or means nothing."""
    try:
        moves = msgspec.json.decode(files.read_bytes(path), type=_Moves)
    except OSError as error:
        raise misused(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise misused(f"{path} has no moves: {error}.") from None
    found: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for row in moves.partitions:
        key = TopicPartition(row.topic, row.partition)
        if key in found:
            raise misused(f"{path} has {key} twice.")
        if not row.replicas or len(set(row.replicas)) < len(row.replicas) or min(row.replicas) < 0:
            raise misused(f"{path}: the replicas of {key} are {row.replicas}: allowed are ids of brokers, each once.")
        if set(row.log_dirs) - {"any"}:
            raise misused(f"{path}: {key} has log_dirs: allowed is any.")
        found[key] = tuple(row.replicas)
    return found


def move_file(replicas: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> bytes:
    """The content of a file that wants these replicas."""
    rows = [_Row(key.topic, key.partition, list(each), ["any"] * len(each)) for key, each in replicas.items()]
    return msgspec.json.format(msgspec.json.encode(_Moves(rows)), indent=2) + b"\n"
