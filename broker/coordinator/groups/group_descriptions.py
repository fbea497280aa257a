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
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.pending import Pending
from lowtide.protocol.errors import ErrorCode

Row = TypeVar("Row")
Response = TypeVar("Response")


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

    def answer(self, group_ids: list[str], operations: int) -> Response | Pending[Response]:
        """Returns the response, once everything in it is committed. `operations` are the permitted ones."""
        rows: dict[str, Row | None] = dict.fromkeys(group_ids)
        if not rows:
            return self._respond([])
        pending: Pending[Response] = Pending()
        left = len(rows)

        def note(group_id: str, row: Row | None) -> None:
            nonlocal left
            rows[group_id] = row if row is not None else self._failed(group_id, ErrorCode.UNKNOWN_SERVER_ERROR)
            left -= 1
            if not left:
                pending.complete(self._respond([row for row in rows.values() if row is not None]))

        self._groups.broker.turns.ask(pending, self._ask(list(rows), operations, note))
        return pending

    def _ask(
        self, names: list[str], operations: int, note: Callable[[str, Row | None], None]
    ) -> Generator[None, None, bool]:
        for group_id in names:
            refusal = self._groups.check_group_id(group_id)
            shard = refusal if refusal is not None else self._groups.find(group_id)
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
