"""`python -m tests.soak --minutes 480`: three brokers under a mixed load for hours, in pieces that add up.

Do memory, files and etcd stay flat? The load: a partition that is produced to, read from every replica and deleted by
records, whose history is checked, and whose topic is deleted every few minutes; a topic that retention deletes, with a
group (KIP-848) whose members come and go; a compacted topic; transactions; erasures by key and by header, and one that
stands; a topic that `lowtide table run` writes into an Iceberg table and trims; a share group and a streams group; one
record at a time, whose times are kept. All connections have TLS and a login. Brokers 1 and 2 are stopped in order and
started again, in turn; broker 3 lives through a piece, so its memory and descriptors show what a long life adds.

Everything is kept in `--folder`. The same command continues until all pieces have lasted so long together, whatever
ended the last one, SIGKILL of this program included. With `--with FILE`, pieces of other machines count too.

With `--earlier PYTHON`, the interpreter of an environment with another version of Lowtide, all begin as that version,
and each restart, of all three then, changes a broker to this tree's, and the next one back: an upgrade and the way
back, again and again. `--without` leaves out what that version lacks.

The end prints the report. Returns 0 when no history is broken, no broker reported a fault and nothing rises that must
not (`report.py`), otherwise 1; 2 if another soak uses the folder. Ctrl-C and SIGTERM end a piece early.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.campaign.machine import MARK, end_marked, step_back
from tests.chaos.client_processes import Keeper

from . import programs, samples
from .erasing import erase_people
from .kept import ROOT, SoakFolder
from .report import report, rising, trends
from .run import PARTS, Run, SoakCluster
from .samples import Piece
from .sharing import share
from .streaming import stream
from .tabling import TableWork
from .work import LIVES, MEMBERS, Sampler, check, come_and_go, create_topics, restart

PUBLISHED = ROOT / "docs/lab/soak.jsonl"
AGAIN_S = 60.0
"""Until a machine that had no time is tried again."""

LIVED = f"broker {LIVES} "


async def work(run: Run) -> None:
    """Does all of it until the end. Errors: HistoryError, AssertionError."""
    await create_topics(run)
    keeper, sampler, table = Keeper(run.client), Sampler(run), TableWork(run)
    writers = [f"write {programs.RETAINED}", f"write {programs.COMPACTED}", f"move {programs.MOVED}"]
    jobs = [check(run), sampler.probe(), sampler.sample(), restart(run), come_and_go(run, keeper)]
    parts = run.options.parts
    if "erasures" in parts:
        jobs.append(erase_people(run))
    if "share" in parts:
        writers.append(f"write {programs.QUEUED}")
        jobs.append(share(run))
    if "streams" in parts:
        jobs.append(stream(run))
    if "table" in parts:
        writers.append(f"write {programs.TABLED}")
        jobs += [table.write(), table.compare()]
    keeper.keep(*writers, *MEMBERS)
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
        await sampler.write()  # What was checked at the end counts.
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        table.kill()
        await keeper.rest()
        for name in (*keeper.clients,):
            await keeper.terminate(name)
        await keeper.close()


async def piece(options: argparse.Namespace, folder: SoakFolder, left_s: float) -> Run:
    """Runs a piece, and keeps what failed in it. Returns the run."""
    cluster = SoakCluster(folder.path / "cluster", options.parts)
    if options.earlier:
        cluster.pythons = dict.fromkeys(cluster.ids, options.earlier)
    run = Run(cluster, folder, options, left_s)
    watching = asyncio.create_task(run.watch())
    try:
        async with cluster:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, run.end)
            await work(run)
            cluster.check_no_faults()
    except Exception as error:
        traceback.print_exc()
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        if run.was_starved(error):
            run.was_ended_early = True
            print(f"the machine had no time for the brokers, the piece ends: {what}", flush=True)
        else:
            folder.failed(what)
    watching.cancel()
    for what in run.reported:
        if what.startswith("failed: ") and not run.was_ended_early:
            folder.failed(what)
    return run


def judged(pieces: list[Piece], *, has_earlier: bool = False) -> list[str]:
    """Returns what failed in all pieces, and what rises."""
    failed = [f"{each.began}: {reason}" for each in pieces for reason in each.failed]
    if has_earlier:  # No broker lives long.
        return failed
    return failed + [f"{name} rises" for name in rising(trends(pieces), [LIVED])]


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="three brokers under a mixed load, with rolling restarts"
    )
    parser.add_argument("--minutes", type=float, default=480.0, help="how long, all pieces together")
    parser.add_argument("--piece-minutes", type=float, help="end after so long, whatever is left")
    parser.add_argument("--restart-minutes", type=float, default=10.0, help="between rolling restarts")
    parser.add_argument(
        "--checked-minutes", type=float, default=5.0, help="the life of a topic whose history is checked"
    )
    parser.add_argument("--member-minutes", type=float, default=3.0, help="between changes of groups' members")
    parser.add_argument("--erase-seconds", type=float, default=60.0, help="between rounds of erasures")
    parser.add_argument("--sample-seconds", type=float, default=15.0, help="between samples")
    parser.add_argument(
        "--earlier", help="the interpreter of an environment with another version of Lowtide: upgrades, and ways back"
    )
    parser.add_argument("--without", default="", help=f"leaves out some of {','.join(PARTS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/soak", help="keeps everything")
    parser.add_argument("--with", type=Path, dest="others", help="published pieces of other machines, which count too")
    parser.add_argument("--report", action="store_true", help="print the report of all pieces, and end")
    parser.add_argument("--publish", action="store_true", help=f"add the samples to {PUBLISHED.name}, and end")
    parser.add_argument("--nice", type=int, default=0, help="the priority; at 19 a busy machine starves the brokers")
    options = parser.parse_args(arguments)
    left_out = {name for name in options.without.split(",") if name}
    if unknown := left_out - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    options.parts = set(PARTS) - left_out
    return options


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    options = options_of(arguments)
    folder = SoakFolder(options.folder.resolve())

    def pieces() -> list[Piece]:
        others = samples.read_published(options.others) if options.others else []
        return samples.joined(others, samples.pieces_of(folder))

    if options.publish:
        known = samples.joined(samples.read_published(PUBLISHED), samples.pieces_of(folder))
        PUBLISHED.write_bytes(samples.published(known))
    if options.publish or options.report:
        print("\n".join(report(pieces(), LIVED)))
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):  # Before it runs, they interrupt it.
        signal.signal(number, signal.default_int_handler)
    try:
        with folder.locked():
            soak(options, folder, sum(each.seconds for each in pieces()))
    except BlockingIOError:
        print(f"another soak uses {folder.path}")
        return 2
    found = pieces()
    failed = judged(found, has_earlier=bool(options.earlier))
    print("\n".join(report(found, LIVED)))
    print("\n".join(f"FAILED {line}" for line in failed) or "nothing failed")
    return 1 if failed else 0


def soak(options: argparse.Namespace, folder: SoakFolder, done_s: float) -> None:
    """Runs a piece, if there is time left, and after one that the machine starved another one.

    What a killed program left running is ended first.
    """
    end_marked(folder.path)
    left_s = options.minutes * 60 - done_s
    if options.piece_minutes:
        left_s = min(left_s, options.piece_minutes * 60)
    if left_s <= 0:
        return
    os.environ[MARK] = str(folder.path)  # All processes of the piece inherit it.
    step_back(options.nice)
    until_s = time.monotonic() + left_s
    while (left_s := until_s - time.monotonic()) > 0:
        run = asyncio.run(piece(options, folder, left_s))
        print(f"{run.seconds / 60:.0f} minutes; clients: {dict(run.reported)}", flush=True)
        if not run.was_ended_early:
            return
        end_marked(folder.path)
        time.sleep(AGAIN_S)


if __name__ == "__main__":
    sys.exit(main())
