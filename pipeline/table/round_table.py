"""A table as a round has found it, and the commit of the round's files to it.

The commit is done only if nobody else has made progress meanwhile, and if no erasure came between. Other commits may
come between: compactions, changes of the schema, foreign writers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowtide.pipeline.ranges import Positions
from lowtide.pipeline.table.committing import (
    HeadMovedError,
    RoundVerdict,
    TableChange,
    commit_change,
    delete_files,
    judge,
)
from lowtide.pipeline.table.progress import (
    MAIN,
    TableProgress,
    head_id,
    highest_positions,
    progress_properties,
    properties_of,
)
from lowtide.protocol.types import TopicId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

COMMITS_MAX: Final = 100
"""How often a round commits again because others commit."""


class LostRoundError(Exception):
    """Another commit makes the round worthless. Nothing of it is in the table. The next round begins anew."""

    def __init__(self, table: str, verdict: RoundVerdict) -> None:
        super().__init__(f"the round can't be committed to table {table}: {verdict.value}")
        self.verdict = verdict


class RoundTable:
    """A table, with its snapshot and progress at the beginning of a round."""

    def __init__(self, table: Table, before: TableProgress | None) -> None:
        self.table = table
        self.name = ".".join(table.name())
        self.before = before
        self.base = head_id(table.metadata)
        self._spec_id = table.metadata.default_spec_id

    @property
    def summary(self) -> Mapping[str, str]:
        """The summary of the newest snapshot."""
        head = self.table.metadata.snapshot_by_name(MAIN)
        return {} if head is None else properties_of(head)

    def commit(self, files: Sequence[DataFile], topic_id: TopicId, positions: Positions, round_id: str) -> Snapshot:
        """Commits the files of a round together with its progress, or deletes them.

        Errors: LostRoundError; CommitUnknownError, after which the files stay; those of `commit_change`.
        """
        # The table of dead letters may be ahead of this round.
        known = {} if self.before is None else self.before.positions
        reached = {place: max(offset, known.get(place, 0)) for place, offset in positions.items()}
        change = TableChange(added=files, properties=progress_properties(topic_id, known | reached, round_id))
        for _ in range(COMMITS_MAX):
            verdict = judge(self.table.metadata, self.base, self.before)
            if verdict is RoundVerdict.COMMIT_AGAIN and self.table.metadata.default_spec_id != self._spec_id:
                verdict = RoundVerdict.REPARTITIONED
            if verdict is not RoundVerdict.COMMIT_AGAIN:
                break
            try:
                return commit_change(self.table, change)
            except HeadMovedError as error:
                log.info("%s", error)
        if verdict is not RoundVerdict.UNCLEAR:
            self.delete(files)
        raise LostRoundError(self.name, verdict)

    def delete(self, files: Sequence[DataFile]) -> None:
        """Deletes files that are not committed."""
        delete_files(self.table.io, [one.file_path for one in files])

    def delete_dead_rounds(self) -> int:
        """Deletes the files of rounds that can't be committed any more, and returns their number. Never raises.

        A table whose files may belong to other tables too is left alone.
        """
        from lowtide.pipeline.table.loose import delete_dead_rounds  # noqa: PLC0415 - an extra

        if self.table.properties.get("gc.enabled", "true").lower() == "false":
            return 0
        try:
            return len(delete_dead_rounds(self.table))
        except Exception as error:  # noqa: BLE001 - storages and catalogs have errors of their own
            log.warning("table %s: files of rounds that died are left behind: %s", self.name, error)
            return 0

    # ------------------------------------------------------------------ what it has
    def highest(self, prefix: str, topic: str) -> Positions:
        """Returns the offsets after the highest one of each partition in the rows."""
        if self.base is None:
            return {}
        return highest_positions(self._places(prefix, None), topic)

    def offsets_between(self, start: Positions, until: Positions) -> dict[int, list[int]]:
        """Returns the offsets of the rows in these ranges, by partition; of a table without a prefix."""
        from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan, Or  # noqa: PLC0415 - an extra

        ranges = [(place, start.get(place, 0), end) for place, end in until.items() if end > start.get(place, 0)]
        if self.base is None or not ranges:
            return {}
        wanted: Any = None
        for place, low, high in ranges:
            one = And(
                EqualTo("partition", place.partition), GreaterThanOrEqual("offset", low), LessThan("offset", high)
            )
            wanted = one if wanted is None else Or(wanted, one)
        found: dict[int, list[int]] = {}
        for batch in self._places("", wanted):
            for partition, offset in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                found.setdefault(partition, []).append(offset)
        return found

    def _places(self, prefix: str, wanted: Any) -> Iterator[Any]:
        """Yields batches of partitions and offsets at the beginning of the round."""
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - an extra

        names = (f"{prefix}partition", f"{prefix}offset")
        scan = self.table.scan(AlwaysTrue() if wanted is None else wanted, selected_fields=names, snapshot_id=self.base)
        for batch in scan.to_arrow_batch_reader():
            yield batch.select(names)
