"""`lowtide metadata`: compares the metadata with what log directories know, and recovers them.

Works on log directories that no broker uses, on files that `export` wrote on other machines, and on the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from lowtide.cli.call import Call, local
from lowtide.cli.confirmation import confirm
from lowtide.cli.metadata_stores import LogDirs, StoreOptions, run_on_store, store_file
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, print_table, remark
from lowtide.cli.recovering import (
    RecoveryOptions,
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
    typer.Argument(metavar="FILE…", help="files that `lowtide metadata export` wrote on other machines"),
]


@app.callback()
def metadata() -> None:
    """Compare the metadata with what log directories know, and recover them after an old backup was restored."""


@app.command()
@local
def status(
    call: Call,
    files: Files = None,
    *,
    log_dirs: LogDirs = None,
    store: StoreOptions,
) -> ExitCode:
    """Show what log directories and the store know, and whether the store is up to date.

    Changes nothing; brokers must be stopped. The exit code is 0 if the store is up to date, and 1 if it must be
    recovered.
    """
    facts = _facts(files, log_dirs)
    path = store_file(store, facts[0].directories[0].path, several=len(facts) > 1)
    rows, revision, surplus = look(store, path)
    reason = planned(lambda: is_needed(facts, rows, revision, surplus))
    table = [_known(each) for each in facts]
    if call.output is Output.JSON:
        brokers = [dict(zip(("broker", "history", "revision", "log_directories"), row, strict=True)) for row in table]
        print_json({"store": {"revision": revision, "raft_surplus": surplus, "behind": reason}, "brokers": brokers})
    else:
        print_table(("broker", "history", "revision", "log directories"), table)
        print(f"The metadata store is at revision {revision}." if rows else "The metadata store is empty.")
        print("It is up to date." if reason is None else f"It must be recovered: {reason}.")
    return ExitCode.DONE if reason is None else ExitCode.FAILED


@app.command()
@local
def export(
    call: Call,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="the file to write; it contains configurations, no records")
    ],
    *,
    log_dirs: Annotated[
        str, typer.Option("--log-dirs", metavar="DIR,DIR", help="all log directories of the broker, as in log.dirs")
    ],
) -> ExitCode:
    """Write what the log directories of one broker know to a file, for `recover` on another machine.

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
            f"Broker {facts.broker_id} knows the metadata up to revision {copy.revision}, and has "
            f"{plural(count, 'replica')}: {file}"
        )
    return ExitCode.DONE


@app.command()
@local
def recover(
    call: Call,
    files: Files = None,
    *,
    log_dirs: LogDirs = None,
    options: RecoveryOptions,
    store: StoreOptions,
) -> ExitCode:
    """Recover the metadata from what all brokers know, after an old backup was restored or the store was lost.

    All brokers must be stopped. Topics, configurations and deletes come from the broker with the newest metadata. The
    leader of a partition will be a replica with all acknowledged records and deletes. If it is interrupted, run it
    again.
    """
    facts = _facts(files, log_dirs)
    path = store_file(store, facts[0].directories[0].path, several=len(facts) > 1)
    rows, revision, surplus = look(store, path)
    if planned(lambda: is_needed(facts, rows, revision, surplus)) is None:
        print("Nothing to do: the metadata store is up to date.")
        return ExitCode.DONE
    history_id = topic_id_text(system_random().randbytes(16))
    plan = planned(
        lambda: plan_recovery(
            facts, rows, without=options.without or (), history_id=history_id, raft_surplus=least_surplus(surplus)
        )
    )
    print_plan(call, plan, dry_run=options.dry_run)
    check_losses(plan, accepted=options.accept_loss)
    if options.dry_run:
        return ExitCode.DONE
    if not options.yes:
        confirm("Are all brokers of the cluster stopped, and shall the metadata be recovered?")
    run_on_store(written(store, path, plan))
    remark("The metadata are recovered. Start the brokers.")
    return ExitCode.DONE


def _facts(files: Sequence[str] | None, log_dirs: Sequence[str] | None) -> list[BrokerFacts]:
    """Returns the facts from the given files or directories. Errors: CommandError."""
    if not files and not log_dirs:
        raise misused("give files of `lowtide metadata export`, or --log-dirs.")
    return given_facts(files, log_dirs)


def _known(facts: BrokerFacts) -> tuple[int, str, int, str]:
    copy = planned(facts.read_copy)
    return facts.broker_id, copy.history_id, copy.revision, ", ".join(each.path for each in facts.directories)
