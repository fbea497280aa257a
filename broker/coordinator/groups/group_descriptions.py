"""Describes the modern groups of one request.

Guards: a group is described once, however often it is listed; the response waits until everything in it is committed;
it has the order of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Generic, TypeVar

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.modern.modern_member import Assignment
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.joined_parts import JoinedParts
from lowtide.broker.pending import Answer
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode

Row = TypeVar("Row")
Response = TypeVar("Response")


def assignment_rows(assignment: Assignment, image: MetadataImage, row: Callable[..., Row]) -> list[Row]:
    """Returns a row for each topic of an assignment that still exists."""
    return [
        row(topic_id=topic_id, topic_name=image.topic_names[topic_id], partitions=sorted(numbers))
        for topic_id, numbers in assignment.items()
        if topic_id in image.topic_names
    ]


class GroupDescriptions(Generic[Row, Response]):
    """Descriptions of groups of one type."""

    def __init__(
        self,
        groups: GroupCoordinator,
        describe: Callable[[Shard[Groups], str, int], Generator[None, None, Row]],
        failed: Callable[[str, ErrorCode], Row],
        respond: Callable[[list[Row]], Response],
    ) -> None:
        """`describe` gets a group's shard and id and the operations to report, and yields after each member.

        `failed` returns a row with an error.
        """
        self._groups = groups
        self._describe = describe
        self._failed = failed
        self._respond = respond

    def answer(self, group_ids: list[str], operations: int) -> Answer[Response]:
        """Returns the response, once everything in it is committed. `operations` are the permitted ones."""
        rows: dict[str, Row | None] = dict.fromkeys(group_ids)
        if not rows:
            return self._respond([])
        joined = JoinedParts(lambda: self._respond([row for row in rows.values() if row is not None]), len(rows))

        def note(group_id: str, row: Row | None) -> None:
            rows[group_id] = row if row is not None else self._failed(group_id, ErrorCode.UNKNOWN_SERVER_ERROR)
            joined.arrived()

        broker = self._groups.broker
        broker.turns.ask(joined.pending, self._ask(list(rows), operations, note))
        return joined.pending

    def _ask(
        self, names: list[str], operations: int, note: Callable[[str, Row | None], None]
    ) -> Generator[None, None, bool]:
        for group_id in names:
            shard = self._groups.find_named(group_id)
            if isinstance(shard, ErrorCode):
                note(group_id, self._failed(group_id, shard))
            else:
                row = yield from self._describe(shard, group_id, operations)
                if shard.unloaded:
                    row = self._failed(group_id, ErrorCode.NOT_COORDINATOR)
                self._groups.when_readable(shard, group_id, partial(self._unless, group_id, row)).listen(
                    partial(note, group_id)
                )
            yield
        return True

    def _unless(self, group_id: str, row: Row, error: ErrorCode) -> Row:
        return row if error == ErrorCode.NONE else self._failed(group_id, error)
