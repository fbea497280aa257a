"""`lowtide metadata`: whether the metadata are as the log directories remember them, and bringing them forward where they aren't.

Works on log directories that no broker uses, on files that `export` made of them on other machines, and on the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from lowtide.cli.call import Call, local
from lowtide.cli.confirmation import confirm
from lowtide.cli.metadata_stores import Ca, Cert, Key, LogDirs, Metadata, Place, run_on_store, store_file
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, print_table, remark
from lowtide.cli.recovering import (
    AcceptLoss,
    DryRun,
    Without,
    Yes,
    check_losses,
    given_facts,
    look,
    planned,
    print_plan,
    surveyed,
    written,
)
from lowtide.metadata.broker_facts import BrokerFacts, encode_facts
from lowtide.metadata.recovery import is_needed, plan_recovery
from lowtide.metadata.store_guard import least_surplus
from lowtide.protocol.types import topic_id_text
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.random import system_random

app = typer.Typer(add_completion=False, no_args_is_help=True)


Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE…", help="what `lowtide metadata export` has written on other machines"),
]


@app.callback()
def metadata() -> None:
    """Compare the metadata with what log directories remember of them, and bring them forward after a backup was restored."""


@app.command()
@local
def status(
    call: Call,
    files: Files = None,
    *,
    log_dirs: LogDirs = None,
    metadata: Metadata = None,
    metadata_ca: Ca = None,
    metadata_cert: Cert = None,
    metadata_key: Key = None,
) -> ExitCode:
    """Show what log directories and the store know, and whether the store may be acted upon.

    Changes nothing; brokers must be stopped.
    Ends with 0 if the store is as the directories know it, with 1 if it has to be brought forward.
    """
    facts = _facts(files, log_dirs)
    place = Place(metadata, metadata_ca, metadata_cert, metadata_key)
    path = store_file(place, facts[0].directories[0].path, several=len(facts) > 1)
    rows, revision, surplus = look(place, path)
    reason = planned(lambda: is_needed(facts, rows, revision, surplus))
    table = [_known(each) for each in facts]
    if call.output is Output.JSON:
        brokers = [dict(zip(("broker", "history", "revision", "log_directories"), row, strict=True)) for row in table]
        print_json({"store": {"revision": revision, "raft_surplus": surplus, "behind": reason}, "brokers": brokers})
    else:
        print_table(("broker", "history", "revision", "log directories"), table)
        print(f"The metadata store is at revision {revision}." if rows else "The metadata store is empty.")
        print("It is as the log directories know it." if reason is None else f"It must be brought forward: {reason}.")
    return ExitCode.DONE if reason is None else ExitCode.FAILED


@app.command()
@local
def export(
    call: Call,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="is written; it holds the configurations, not the records")
    ],
    *,
    log_dirs: Annotated[
        str, typer.Option("--log-dirs", metavar="DIR,DIR", help="all log directories of the broker, as in log.dirs")
    ],
) -> ExitCode:
    """Write to a file what the log directories of one broker know, for `recover` on another machine.

    The broker must be stopped.
    """
    facts = surveyed(log_dirs)
    try:
        OsFileSystem().replace_file(file, encode_facts(facts))
    except OSError as error:
        raise CommandError(f"{file} can't be written: {error.strerror}.") from error
    copy = planned(facts.read_copy)
    count = sum(len(directory.replicas) for directory in facts.directories)
    if call.output is Output.JSON:
        print_json(
            {"broker": facts.broker_id, "revision": copy.revision, "history": copy.history_id, "replicas": count}
        )
    else:
        print(
            f"Broker {facts.broker_id} knows the metadata up to revision {copy.revision}, and has {plural(count, 'replica')}: {file}"
        )
    return ExitCode.DONE


@app.command()
@local
def recover(
    call: Call,
    files: Files = None,
    *,
    log_dirs: LogDirs = None,
    without: Without = None,
    accept_loss: AcceptLoss = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    metadata_ca: Ca = None,
    metadata_cert: Cert = None,
    metadata_key: Key = None,
) -> ExitCode:
    """Bring the metadata forward to what all brokers know, after a backup was restored or everything was lost.

    All brokers must be stopped. Topics, configurations and deletes are as the broker knows them that has seen the most.
    A partition is led by a replica that has all acknowledged records and deletes; the others follow it. If it is
    interrupted, run it again.
    """
    facts = _facts(files, log_dirs)
    place = Place(metadata, metadata_ca, metadata_cert, metadata_key)
    path = store_file(place, facts[0].directories[0].path, several=len(facts) > 1)
    rows, revision, surplus = look(place, path)
    if planned(lambda: is_needed(facts, rows, revision, surplus)) is None:
        print("Nothing has to be done: the metadata store is as the log directories know it.")
        return ExitCode.DONE
    history_id = topic_id_text(system_random().randbytes(16))
    plan = planned(
        lambda: plan_recovery(
            facts, rows, without=without or (), history_id=history_id, raft_surplus=least_surplus(surplus)
        )
    )
    print_plan(call, plan, dry_run=dry_run)
    check_losses(plan, accepted=accept_loss)
    if dry_run:
        return ExitCode.DONE
    if not yes:
        confirm("Are all brokers of the cluster stopped, and shall the metadata be brought forward?")
    run_on_store(written(place, path, plan))
    remark("The metadata are brought forward. Start the brokers.")
    return ExitCode.DONE


def _facts(files: Sequence[str] | None, log_dirs: Sequence[str] | None) -> list[BrokerFacts]:
    """What brokers know; at least one of them. Errors: CommandError."""
    if not files and not log_dirs:
        raise misused("Neither files of `lowtide metadata export` nor --log-dirs are given.")
    return given_facts(files, log_dirs)


def _known(facts: BrokerFacts) -> tuple[int, str, int, str]:
    copy = planned(facts.read_copy)
    return facts.broker_id, copy.history_id, copy.revision, ", ".join(each.path for each in facts.directories)
