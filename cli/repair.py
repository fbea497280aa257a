"""`lowtide repair-log-start`: keeps what is readable of a damaged log start journal, and shows what is lost."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lowtide.runtime.filesystem import OsFileSystem
from lowtide.storage.errors import StorageError
from lowtide.storage.log_start.journal_repair import RepairReport, repair


def repair_log_start(arguments: Sequence[str]) -> int:
    """Runs the command; returns 0 if the journal is repaired or sound, and 1 if it can't be repaired."""
    parser = argparse.ArgumentParser(
        prog="lowtide repair-log-start",
        description="Repair the log start journal of a log directory. All readable values are kept; records whose "
        "deletes were only in the damaged part may come back. The damaged files stay beside the new ones.",
    )
    parser.add_argument("--log-dir", required=True, metavar="DIR", help="the log directory; no broker may use it")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    options = parser.parse_args(arguments)
    try:
        report = repair(OsFileSystem(), options.log_dir, dry_run=options.dry_run)
    except (StorageError, OSError) as error:
        print(f"lowtide repair-log-start: {error}", file=sys.stderr)
        return 1
    _print(report, dry_run=options.dry_run)
    return 0


def _print(report: RepairReport, *, dry_run: bool) -> None:
    if not report.damage:
        print("Nothing is damaged, nothing was done.")
        return
    for name, reason in report.damage.items():
        print(f"damaged: {name}: {reason}")
    print(f"readable frames of the journal: {report.frames}")
    for first, last in report.lost_sequences:
        print(f"lost frames: {first} to {last}")
    for partition, offset in report.kept.items():
        print(f"log start: {partition} {offset}")
    for name in report.set_aside:
        print(f"kept aside: {name}")
    print("Nothing was changed (--dry-run)." if dry_run else "Repaired.")
