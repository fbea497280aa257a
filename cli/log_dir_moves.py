"""Plans moves of replicas between the log directories of a broker, and watches them until all are done.

Brokers move replicas themselves: when the command ends early (Ctrl-C, a lost connection), moves in progress continue.

Sources: KIP-113, Kafka's `ReassignPartitionsCommand`, which compares the same answers of DescribeLogDirs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from lowtide.admin.errors import AdminError
from lowtide.admin.log_dirs import LogDir
from lowtide.cli.call import NetworkCall
from lowtide.cli.outcome import CommandError, misused
from lowtide.cli.printing import progress, remark
from lowtide.protocol.types import BrokerId, TopicPartition

POLL_S: Final = 0.5
"""The interval of requests for the progress."""

UNSEEN_MAX: Final = 20
"""A move counts as ended after so many answers without the replica or a copy in the new directory: ten seconds."""

Answers = Mapping[BrokerId, Mapping[str, LogDir] | AdminError]


class Replica(NamedTuple):
    """A replica of a partition on a broker."""

    broker_id: BrokerId
    partition: TopicPartition

    def __str__(self) -> str:
        return f"{self.partition} of broker {self.broker_id}"


class PlannedMove(msgspec.Struct, frozen=True):
    """The directory and the size of a replica."""

    directory: str
    size_bytes: int


def plan_moves(answers: Answers, partitions: Collection[TopicPartition], path: str) -> dict[Replica, PlannedMove]:
    """Returns the replicas of these partitions on the brokers that have the directory.

    Errors: CommandError if a partition can't be moved there on any broker.
    """
    found: dict[Replica, PlannedMove] = {}
    for key in partitions:
        holders = {
            broker_id: each
            for broker_id, each in answers.items()
            if not isinstance(each, AdminError) and _place(each, key)
        }
        moves = {Replica(broker_id, key): _here(each, key) for broker_id, each in holders.items() if path in each}
        if not holders:
            failed = [
                f"broker {broker_id}: {each}" for broker_id, each in answers.items() if isinstance(each, AdminError)
            ]
            where = ", ".join(f"broker {broker_id}" for broker_id in sorted(answers)) or "no broker"
            raise CommandError(
                f"no log directory of {where} has a replica of {key}{''.join(f'; {each}' for each in failed)}."
            )
        if not moves:
            have = "; ".join(
                f"broker {broker_id} has {', '.join(sorted(each))}" for broker_id, each in sorted(holders.items())
            )
            raise misused(f"--to {path} is invalid for {key}: it must be a log directory of its broker, and {have}.")
        found |= moves
    return found


class Moving:
    """The remaining moves to a directory, from the answers of brokers. Pure."""

    def __init__(self, replicas: Mapping[Replica, PlannedMove], path: str) -> None:
        self.left: dict[Replica, int] = {
            replica: each.size_bytes for replica, each in replicas.items() if each.directory != path
        }
        """The remaining bytes of each move."""
        self.failed: dict[Replica, AdminError] = {}
        self._path = path
        self._unseen: Counter[Replica] = Counter()

    def observe(self, answers: Answers) -> int:
        """Takes answers. Returns by how many bytes the rest has shrunk; appends may make it grow."""
        before = sum(self.left.values())
        for replica in list(self.left):
            directories = answers.get(replica.broker_id)
            if directories is None or isinstance(directories, AdminError):
                self._fail(
                    replica, f"{directories or 'its broker does not answer'}; the move continues if the broker runs"
                )
            else:
                self._look(replica, directories)
        return max(before - sum(self.left.values()), 0)

    def _look(self, replica: Replica, directories: Mapping[str, LogDir]) -> None:
        here, target = _place(directories, replica.partition), directories.get(self._path)
        copy = None if target is None else target.replicas.get(replica.partition)
        if here == self._path:
            del self.left[replica]
        elif copy is not None and here is not None:
            self._unseen[replica] = 0
            self.left[replica] = max(_here(directories, replica.partition).size_bytes - copy.size_bytes, 0)
        else:
            self._unseen[replica] += 1
            if target is not None and target.error is not None:
                self._fail(replica, f"its move was cancelled or failed: {target.error}")
            elif self._unseen[replica] > UNSEEN_MAX:
                where = "no online log directory has it" if here is None else f"it is in {here}"
                self._fail(replica, f"its move was cancelled or failed: {where}")

    def _fail(self, replica: Replica, reason: str) -> None:
        del self.left[replica]
        self.failed[replica] = AdminError(f"{replica}: {reason}")


async def follow(call: NetworkCall, moving: Moving) -> None:
    """Waits until all moves are done, and shows the progress on a terminal. Errors: AdminError."""
    replicas = list(moving.left)
    brokers, partitions = {each.broker_id for each in replicas}, {each.partition for each in replicas}
    try:
        with progress("moving", sum(moving.left.values()), is_bytes=True) as bar:
            while moving.left:
                answers = await call.client.describe_log_dirs(sorted(brokers), partitions=partitions)
                bar.advance(moving.observe(answers))
                if moving.left:
                    await asyncio.sleep(POLL_S)
    except BaseException:
        remark("\nMoves in progress continue. `lowtide log-dirs describe --partitions` shows them.")
        raise


def _place(directories: Mapping[str, LogDir], key: TopicPartition) -> str | None:
    """Returns the directory of the replica, not of a copy in progress."""
    return next(
        (path for path, each in directories.items() if key in each.replicas and not each.replicas[key].is_future), None
    )


def _here(directories: Mapping[str, LogDir], key: TopicPartition) -> PlannedMove:
    path = _place(directories, key)
    assert path is not None, key
    return PlannedMove(path, directories[path].replicas[key].size_bytes)
