"""`lowtide repair-log-start`: keep what is readable of a damaged journal of log start offsets, and say what is lost."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lowtide.runtime.filesystem import OsFileSystem
from lowtide.storage.errors import StorageError
from lowtide.storage.log_start.journal_repair import RepairReport, repair


def repair_log_start(arguments: Sequence[str]) -> int:
    """Run the subcommand; returns the exit code: 0 repaired or nothing to do, 1 it could not be done."""
    parser = argparse.ArgumentParser(
        prog="lowtide repair-log-start",
        description="Make a log directory usable whose journal of log start offsets is damaged. Every value that can be read is kept; "
        "deletes that were only in the damaged part may come back. The damaged files stay beside the new ones.",
    )
    parser.add_argument("--log-dir", required=True, metavar="DIR", help="the log directory; no broker may be using it")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
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
