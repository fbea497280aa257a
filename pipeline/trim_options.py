"""Reads the options for deleting what a stream has consumed. Without them nothing is deleted.

    trim              off | commit | eager
    trimLag           keep the last records (`100000`) or those of the last time (`10 minutes`)
    trimLeaderOnly    a delete is done when the leader has it (KIP-1343)
    trimGroups        delete only what these groups have consumed too
    trimInterval      the shortest time between two trims
    trimBelowStart    delete also records below startingOffsets, which were never read
    commitGroupId     publish the query's committed positions as the offsets of this group

Sources: KIP-107; KIP-811, with which Kafka Streams purges its repartition topics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lowtide.pipeline.options import Options, parse_duration_ms

NAMES: Final = (
    "trim",
    "trimLag",
    "trimLeaderOnly",
    "trimGroups",
    "trimInterval",
    "trimTimeout",
    "trimBelowStart",
    "commitGroupId",
)

INTERVAL_MS: Final = 1000
TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimOptions:
    """Defines what to delete and commit after each batch. Can be pickled."""

    mode: str = "off"
    """`off`, `commit` (delete what Spark reports as committed, one batch late) or `eager` (also delete the last batch
    when Spark asks for the next one)."""
    lag_rows: int = 0
    lag_ms: int = 0
    leader_only: bool = False
    groups: tuple[str, ...] = ()
    interval_ms: int = INTERVAL_MS
    timeout_ms: int = TIMEOUT_MS
    commit_group: str | None = None

    @property
    def trims(self) -> bool:
        """Whether anything is deleted."""
        return self.mode != "off"

    @property
    def is_eager(self) -> bool:
        """Whether the last batch is deleted before there is another one."""
        return self.mode == "eager"


def trim_options(options: Options, *, is_stream: bool, starts_at_earliest: bool) -> TrimOptions:
    """Reads the options. Errors: OptionError."""
    mode = options.choice("trim", ("off", "commit", "eager")) or "off"
    lag_rows, lag_ms = _lag(options)
    groups = options.text("trimGroups")
    made = TrimOptions(
        mode=mode,
        lag_rows=lag_rows,
        lag_ms=lag_ms,
        leader_only=options.flag("trimLeaderOnly", default=False),
        groups=tuple(name for name in (part.strip() for part in (groups or "").split(",")) if name),
        interval_ms=options.duration_ms("trimInterval", default=INTERVAL_MS),
        timeout_ms=max(options.duration_ms("trimTimeout", default=TIMEOUT_MS), 1),
        commit_group=options.text("commitGroupId") or None,
    )
    below_start = options.flag("trimBelowStart", default=False)
    for name in NAMES:
        if name in options and not is_stream:
            options.refuse(name, "it works in streams only, because Spark does not report when a batch query is done")
        if name in options and name not in ("trim", "commitGroupId") and not made.trims:
            options.refuse(name, "it has no effect while trim is off")
    if groups is not None and not made.groups:
        options.refuse("trimGroups", "it names no group")
    if made.trims and not starts_at_earliest and not below_start:
        options.refuse(
            "trim",
            "a delete removes all records below an offset, but this query does not read from the beginning. Set "
            "startingOffsets to earliest, or set trimBelowStart to true if the records below may be deleted unread",
        )
    return made


def _lag(options: Options) -> tuple[int, int]:
    """Returns the records and the milliseconds to keep; one of them is 0. Errors: OptionError."""
    text = options.text("trimLag")
    if text is None:
        return 0, 0
    records = re.fullmatch(r"(\d{1,18})(?:\s*(?:records|rows))?", text)
    if records is not None:
        return int(records[1]), 0
    milliseconds = parse_duration_ms(text)
    if milliseconds is None:
        options.refuse(
            "trimLag", "it must be the number of records to keep, such as 100000, or a time, such as 10 minutes"
        )
    return 0, milliseconds
