"""Trims the topic behind the table: deletes records that the table has had for a while.

Other consumers have this time to read them. It runs from the commit of the round, and is found again in the snapshots
after a restart. Nothing is deleted above the progress that the table has at this moment, also if somebody has rolled it
back. A failed trim is a warning: the next one deletes the same records too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lowtide.admin.configs import ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.pipeline.ranges import Positions, QueryProgress
from lowtide.pipeline.table.progress import TableProgress, history_of, progress_of
from lowtide.pipeline.trim import Trimmer
from lowtide.pipeline.trim_options import TrimOptions
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.runtime.clock import Clock

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from lowtide.admin.blocking import BlockingAdminClient

log = logging.getLogger(__name__)

AFTER_MS: Final = 3_600_000
"""How long records stay in the topic after the table has them, unless the user says otherwise."""

GROUPS_KEY: Final = "lowtide.retention.commitoffset.groups"
"""The topic's configuration that names the groups whose commits delete, and without which nothing is consumed."""

ROUNDS_MAX: Final = 1000
"""How many rounds the trimmer remembers. Beyond that it forgets every second one, and trims later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTrimSettings:
    """Says what is trimmed when."""

    after_ms: int = AFTER_MS
    groups: tuple[str, ...] = ()
    """Delete only what these groups have consumed too."""
    is_dry_run: bool = False


class TableTrimmer:
    """Trims one topic behind one table."""

    def __init__(
        self,
        settings: TableTrimSettings,
        make_admin: Callable[[], BlockingAdminClient],
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        """`tell` gets the sentences of a dry run."""
        self._settings = settings
        self._clock = clock
        self._tell = tell
        self._rounds: dict[str, TableProgress] = {}
        """By the id of the round, in the order of the commits."""
        self._told: Positions = {}
        self._trimmer = Trimmer(TrimOptions(mode="commit", groups=settings.groups), make_admin, clock)

    def on_table(self, metadata: TableMetadata) -> Positions:
        """Trims what is due by the snapshots of the table, in the background, and returns the offsets."""
        now = progress_of(metadata)
        if now is None:
            return {}
        self._remember(history_of(metadata), now)
        positions = due_positions(self._rounds.values(), now, self._clock.wall_ms() - self._settings.after_ms)
        if positions and self._settings.is_dry_run:
            for place, offset in sorted(positions.items()):
                if self._told.get(place) != offset:
                    self._tell(f"dry run: {place} would be trimmed to offset {offset}")
            self._told = positions
        elif positions:
            ids = {} if now.topic_id == ZERO_TOPIC_ID else {now.topic: now.topic_id}
            self._trimmer.offer(QueryProgress(positions, ids))
        return positions

    def finish(self, timeout_ms: int) -> bool:
        """Waits until what is due is trimmed or has failed. Returns False after `timeout_ms`."""
        return self._trimmer.finish(timeout_ms)

    def _remember(self, found: Iterable[TableProgress], now: TableProgress) -> None:
        """Keeps the first commit of each round. Its progress may have been carried on by later ones."""
        for one in found:
            known = self._rounds.get(one.round_id)
            if known is None or one.committed_ms < known.committed_ms:
                self._rounds[one.round_id] = one
        kept = [one for one in self._rounds.values() if one.topic_id == now.topic_id]
        if len(kept) > ROUNDS_MAX:
            del kept[1::2]
        self._rounds = {one.round_id: one for one in sorted(kept, key=lambda one: one.committed_ms)}


def due_positions(rounds: Iterable[TableProgress], now: TableProgress, until_ms: int) -> Positions:
    """Returns the offsets that the table has had since `until_ms`, and has still, above 0."""
    due: Positions = {}
    for one in rounds:
        if one.committed_ms <= until_ms and one.topic_id == now.topic_id:
            for place, offset in one.positions.items():
                due[place] = max(due.get(place, 0), offset)
    return {
        place: min(offset, now.positions[place])
        for place, offset in due.items()
        if min(offset, now.positions.get(place, 0)) > 0
    }


def groups_of_topic(admin: BlockingAdminClient, topic: str) -> tuple[str, ...]:
    """Returns the groups whose consumption the topic's retention waits for, because its configuration names them.

    A pattern means the groups that exist now. Brokers other than Lowtide's have no such configuration.
    Errors: AdminError, also if the user may not see the configuration: then nothing must be trimmed.
    """
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    found = admin.describe_configs([resource], keys=[GROUPS_KEY])[resource]
    if isinstance(found, AdminError):
        raise found
    entry = found.get(GROUPS_KEY)
    names = [name.strip() for name in ((entry.value if entry else None) or "").split(",") if name.strip()]
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    chosen = {name for name in names if not name.endswith("*")}
    if prefixes:
        chosen |= {name for name in admin.list_groups().groups if name.startswith(prefixes)}
    return tuple(sorted(chosen))
