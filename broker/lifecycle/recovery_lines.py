"""Log lines of a start after an unclean stop: how much was checked, how long that took, and which logs were repaired."""

from __future__ import annotations

from typing import Any, Final

from lowtide.storage.directory.log_manager import LogManager

LOGS_NAMED: Final = 20
"""One line each; of the others one says how many they are."""


def tell_recoveries(log_manager: LogManager, took_ms: int, log: Any) -> None:
    """After the logs were loaded. `took_ms`: the loading of all directories."""
    for found in log_manager.directories.recoveries:
        event = (
            "log directory was stopped cleanly"
            if found.was_clean
            else "log directory is recovered after an unclean stop"
        )
        log.info(
            event,
            directory=found.directory,
            logs=found.logs,
            segments_checked=found.segments_checked,
            bytes_cut=found.bytes_cut,
            duration_ms=took_ms,
        )
    mended = sorted(log_manager.directories.load_reports.items())
    for key, report in mended[:LOGS_NAMED]:
        is_cut = report.bytes_cut or report.segments_dropped
        (log.warning if is_cut else log.info)(
            "log is repaired",
            partition=str(key),
            bytes_cut=report.bytes_cut,
            reason=report.reason,
            segments_dropped=report.segments_dropped,
            indexes_rebuilt=report.indexes_rebuilt,
            leader_epochs_rebuilt=report.epochs_rebuilt,
            begins_at_its_log_start=report.restarted_at_log_start,
            log_end_offset=log_manager.logs[key].log_end_offset if key in log_manager.logs else None,
        )
    if len(mended) > LOGS_NAMED:
        bytes_cut = sum(report.bytes_cut for _, report in mended[LOGS_NAMED:])
        log.info("more logs are repaired", logs=len(mended) - LOGS_NAMED, bytes_cut=bytes_cut)
