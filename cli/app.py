"""The commands that Typer parses, each imported when it is called; those that parse their own words stand here for help and completion."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from lowtide.cli.outcome import ExitCode
from lowtide.cli.own_commands import own_command
from lowtide.runtime.early_signals import restore_signals

BROKERS: Final = "Brokers"
CLUSTER: Final = "A cluster"
FILES: Final = "Files"
OTHERS: Final = "Others"


class Entry(NamedTuple):
    """A command of `lowtide`. Without a module it parses its words itself."""

    help: str
    panel: str
    module: str = ""


ENTRIES: Final = {
    "serve": Entry("run a broker", BROKERS),
    "dev": Entry("run a cluster of several brokers in one process, for laptops and tests", BROKERS),
    "certificates": Entry(
        "create and renew certificates, passwords and settings of a secure cluster", BROKERS, "certificates"
    ),
    "keys": Entry("print every configuration key of a broker, as a page in Markdown", BROKERS),
    "metrics": Entry("print every metric of a broker, as a page in Markdown", BROKERS),
    "console": Entry("show a cluster in a browser on this machine", CLUSTER, "console"),
    "cluster": Entry(
        "the brokers, the controller, what is wrong; elections, and moves of replicas", CLUSTER, "cluster"
    ),
    "topics": Entry(
        "list, describe, create, change, delete topics, and explain what keeps their oldest segments", CLUSTER, "topics"
    ),
    "configs": Entry("what is set for topics, brokers and groups, and changes of it", CLUSTER, "configs"),
    "quotas": Entry("how much of the brokers users, client ids and addresses may use", CLUSTER, "quotas"),
    "groups": Entry("list and describe consumer groups, set their offsets, delete them", CLUSTER, "groups"),
    "acls": Entry("list, allow, deny, remove rules of access control, and say which decides", CLUSTER, "acls"),
    "records": Entry("delete records, sweep many partitions, show records, write some", CLUSTER, "records"),
    "users": Entry("who logs in by SCRAM: add, list, remove users", CLUSTER, "users"),
    "tokens": Entry("logins for a time: create, list, renew, end delegation tokens", CLUSTER, "tokens"),
    "log-dirs": Entry(
        "log directories of brokers, how much space partitions take, and moves between them", CLUSTER, "log_dirs"
    ),
    "top": Entry("brokers, disks, topics by rate, deletes that wait and groups by lag, live", CLUSTER, "top"),
    "metadata": Entry(
        "compare the metadata with what log directories know, bring them forward after a restore", FILES, "metadata"
    ),
    "backup": Entry(
        "write the metadata to one file, also while brokers run, and show what such a file holds", FILES, "backup"
    ),
    "restore": Entry(
        "put a backup of the metadata into an empty store, with what log directories know besides", FILES, "restore"
    ),
    "dump-log": Entry("say what is in the files of a log, also damaged ones; reads only", FILES, "dump_log"),
    "repair-log-start": Entry("keep what is readable of a damaged journal of log start offsets", FILES),
    "version": Entry("print the version", OTHERS),
    "help": Entry("print this", OTHERS),
}
"""In the order of the help."""

_ERROR_CLASSES: Final = typer.BadParameter.__mro__
CallError: Final[Any] = next(each for each in _ERROR_CLASSES if each.__name__ == "ClickException")
"""What all errors of parsing are; Typer has it, but no public name for it."""


class _Commands(TyperGroup):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(ENTRIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = ENTRIES.get(cmd_name)
        if entry is None:
            return None
        app = import_module(f"lowtide.cli.{entry.module}").app if entry.module else _passed_on(cmd_name)
        restore_signals()
        command: Any = get_command(app)
        command.name, command.help, command.short_help = cmd_name, command.help or entry.help, entry.help
        command.rich_help_panel = entry.panel
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As Typer does, which suggests only commands that are imported: `topic` means `topics`."""
        try:
            return super().resolve_command(ctx, args)
        except CallError as error:
            if similar := get_close_matches(args[0], ENTRIES):
                error.message = f"{error.message.rstrip('.')}. Did you mean {', '.join(map(repr, similar))}?"
            raise


def _passed_on(name: str) -> typer.Typer:
    """A command that parses its words itself."""
    app = typer.Typer(add_completion=False)

    @app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
    def pass_on(context: typer.Context) -> int:
        command = own_command(name)
        return run(["--help"]) if command is None else command(context.args)

    return app


def run(words: Sequence[str]) -> int:
    """Parses the words and runs what they say; returns the exit code."""
    if (
        sys.modules.get("rich", sys) is None
    ):  # `serve` and `dev` keep structlog from importing it; they ran in this process before.
        del sys.modules["rich"]
    app = typer.Typer(
        cls=_Commands,
        add_completion=True,
        pretty_exceptions_enable=False,
        help="Runs brokers of Lowtide, and administers clusters that speak Kafka's protocol.",
    )
    app.callback()(lambda: None)
    command: Any = get_command(app)
    return ended(lambda: command.main(args=list(words), prog_name="lowtide", standalone_mode=False))


def ended(command: Callable[[], Any]) -> int:
    """Runs a command that is parsed; its exit code, and for errors of parsing a sentence on standard error."""
    try:
        code = command()
    except CallError as error:
        context = getattr(error, "ctx", None)
        name = context.command_path if context is not None else "lowtide"
        sentence = error.format_message().rstrip(".\n")
        if (
            "\n" in sentence
        ):  # The help of a group that was called without a command; Typer's later versions have printed it.
            print(sentence, file=sys.stderr)
        elif sentence:
            print(
                f"{name}: {sentence}{'' if sentence.endswith('?') else '.'} `{name} --help` says more.", file=sys.stderr
            )
        return ExitCode.MISUSED
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    return int(code or 0)
