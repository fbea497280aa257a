"""`lowtide restore`: restores a backup of the metadata, with what the remaining log directories know."""

from __future__ import annotations

from typing import Annotated

import typer

from lowtide.cli.backup import read_backup
from lowtide.cli.call import Call, local
from lowtide.cli.confirmation import confirm
from lowtide.cli.metadata_stores import LogDirs, StoreOptions, run_on_store, store_file
from lowtide.cli.outcome import ExitCode
from lowtide.cli.printing import remark
from lowtide.cli.recovering import (
    RecoveryOptions,
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
    file: Annotated[str, typer.Argument(metavar="FILE", help="a file that `lowtide backup` wrote")],
    exports: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPORT…", help="files that `lowtide metadata export` wrote on other machines"),
    ] = None,
    *,
    log_dirs: LogDirs = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="replace the contents of a store that is not empty; they are lost")
    ] = False,
    options: RecoveryOptions,
    store: StoreOptions,
) -> ExitCode:
    """Restore a backup of the metadata into an empty store. All brokers must be stopped.

    Give the remaining log directories too, with --log-dirs or as files of `lowtide metadata export`. If they have newer
    metadata than the backup, those are used, so that nothing created since is lost, and nothing deleted comes back. If
    it is interrupted, run it again; no broker starts before it is complete.
    """
    backup = read_backup(file).copy
    facts = given_facts(exports, log_dirs)
    path = store_file(store, facts[0].directories[0].path if facts else None, several=len(facts) > 1)
    rows, _, surplus = look(store, path)
    beginning = planned(lambda: begin_restore(backup, rows, replaces=replace))
    history_id = topic_id_text(system_random().randbytes(16))
    plan = planned(
        lambda: plan_restore(
            backup,
            facts,
            rows,
            without=options.without or (),
            history_id=history_id,
            raft_surplus=least_surplus(surplus),
        )
    )
    print_plan(call, plan, dry_run=options.dry_run)
    check_losses(plan, accepted=options.accept_loss)
    if options.dry_run:
        return ExitCode.DONE
    if not options.yes:
        confirm("Are all brokers of the cluster stopped, and shall the metadata be restored?")
    run_on_store(written(store, path, plan, beginning))
    remark("The metadata are restored. Start the brokers.")
    return ExitCode.DONE
