"""`lowtide restore`: a backup of the metadata into an empty store, with what the log directories that are left know besides."""

from __future__ import annotations

from typing import Annotated

import typer

from lowtide.cli.backup import read_backup
from lowtide.cli.call import Call, local
from lowtide.cli.confirmation import confirm
from lowtide.cli.metadata_stores import Ca, Cert, Key, LogDirs, Metadata, Place, run_on_store, store_file
from lowtide.cli.outcome import ExitCode
from lowtide.cli.printing import remark
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
    written,
)
from lowtide.metadata.restore import begin_restore, plan_restore
from lowtide.metadata.store_guard import least_surplus
from lowtide.protocol.types import topic_id_text
from lowtide.runtime.random import system_random

app = typer.Typer(add_completion=False)


@app.command()
@local
def restore(
    call: Call,
    file: Annotated[str, typer.Argument(metavar="FILE", help="what `lowtide backup` has written")],
    exports: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPORT…", help="what `lowtide metadata export` has written on other machines"),
    ] = None,
    *,
    log_dirs: LogDirs = None,
    without: Without = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="replace what the store has, where it isn't empty: that is lost")
    ] = False,
    accept_loss: AcceptLoss = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    metadata_ca: Ca = None,
    metadata_cert: Cert = None,
    metadata_key: Key = None,
) -> ExitCode:
    """Put a backup of the metadata into an empty store. All brokers must be stopped.

    The log directories that are left are given too, here (--log-dirs) or as files of `lowtide metadata export`: where
    they have seen more than the backup, the metadata are as they know them, so that nothing from after the backup is
    lost and nothing deleted comes back. If it is interrupted, run it again; no broker starts before it is complete.
    """
    backup = read_backup(file).copy
    facts = given_facts(exports, log_dirs)
    place = Place(metadata, metadata_ca, metadata_cert, metadata_key)
    path = store_file(place, facts[0].directories[0].path if facts else None, several=len(facts) > 1)
    rows, _, surplus = look(place, path)
    beginning = planned(lambda: begin_restore(backup, rows, replaces=replace))
    history_id = topic_id_text(system_random().randbytes(16))
    plan = planned(
        lambda: plan_restore(
            backup, facts, rows, without=without or (), history_id=history_id, raft_surplus=least_surplus(surplus)
        )
    )
    print_plan(call, plan, dry_run=dry_run)
    check_losses(plan, accepted=accept_loss)
    if dry_run:
        return ExitCode.DONE
    if not yes:
        confirm("Are all brokers of the cluster stopped, and shall the metadata be restored?")
    run_on_store(written(place, path, plan, beginning))
    remark("The metadata are restored. Start the brokers.")
    return ExitCode.DONE
