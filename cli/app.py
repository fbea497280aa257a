"""The commands that Typer parses. Each is imported on use; the others are listed for help and completion."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from lowtide.cli.outcome import ExitCode
from lowtide.cli.own_commands import own_command
from lowtide.runtime.early_signals import restore_signals


class Entry(NamedTuple):
    """A command of `lowtide`. Without a module, `own_commands` has it."""

    help: str
    panel: str
    module: str = ""


BROKERS: Final = "Brokers"
CLUSTER: Final = "A cluster"
FILES: Final = "Files"
OTHERS: Final = "Others"

ENTRIES: Final = {
    "serve": Entry("Run a broker.", BROKERS),
    "dev": Entry("Run a cluster of several brokers in one process, for laptops and tests.", BROKERS),
    "certificates": Entry(
        "Create and renew the certificates and settings of a secure cluster.", BROKERS, "certificates"
    ),
    "keys": Entry("Print all configuration keys of a broker, as a Markdown page.", BROKERS),
    "metrics": Entry("Print all metrics of a broker, as a Markdown page.", BROKERS),
    "console": Entry("Show a cluster in a browser, on this machine or for others.", CLUSTER, "console"),
    "console-users": Entry("Add, list and remove the console's own users.", CLUSTER, "console_users"),
    "cluster": Entry("Show brokers, controller and problems; move replicas and leaders.", CLUSTER, "cluster"),
    "topics": Entry("List, describe, create, change and delete topics; explain their retention.", CLUSTER, "topics"),
    "configs": Entry("Show and change the configuration of topics, brokers and groups.", CLUSTER, "configs"),
    "quotas": Entry("Show and change quotas of users, client ids and addresses.", CLUSTER, "quotas"),
    "groups": Entry("List and describe groups, reset their offsets, delete them.", CLUSTER, "groups"),
    "acls": Entry("List, create, remove and explain ACLs.", CLUSTER, "acls"),
    "records": Entry("Find, erase, delete, sweep, show and produce records.", CLUSTER, "records"),
    "table": Entry("Write topics into Iceberg tables with Spark; show their progress.", CLUSTER, "table"),
    "erasures": Entry("Show the ledger of erasures; issue and verify signed receipts.", CLUSTER, "erasures"),
    "users": Entry("Add, list and remove users that log in by SCRAM.", CLUSTER, "users"),
    "tokens": Entry("Create, list, renew and expire delegation tokens.", CLUSTER, "tokens"),
    "log-dirs": Entry(
        "Show log directories and sizes of partitions; move partitions between them.", CLUSTER, "log_dirs"
    ),
    "verify-deletes": Entry(
        "Test whether a cluster keeps deleted records deleted while brokers are killed.", CLUSTER, "verify_deletes"
    ),
    "top": Entry("Show brokers, disks, topics, pending deletes and group lags, live.", CLUSTER, "top"),
    "metadata": Entry("Compare the metadata with what log directories know, and recover them.", FILES, "metadata"),
    "backup": Entry("Write the metadata to a file, also while brokers run; check such a file.", FILES, "backup"),
    "restore": Entry("Restore a backup of the metadata into an empty store.", FILES, "restore"),
    "dump-log": Entry("Show the files of a log, also damaged ones.", FILES, "dump_log"),
    "repair-log-start": Entry("Keep what is readable of a damaged log start journal.", FILES),
    "version": Entry("Print the version.", OTHERS),
    "help": Entry("Print this help.", OTHERS),
}
"""In the order of the help."""

_ERROR_CLASSES: Final = typer.BadParameter.__mro__
CallError: Final[Any] = next(each for each in _ERROR_CLASSES if each.__name__ == "ClickException")
"""The base of all parsing errors, which has no public name in Typer."""


class _Commands(TyperGroup):
    """Imports a command on use."""

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
        """Suggests commands that are not imported too: `topics` for `topic`."""
        try:
            return super().resolve_command(ctx, args)
        except CallError as error:
            if similar := get_close_matches(args[0], ENTRIES):
                error.message = f"{error.message.rstrip('.')}. Did you mean {', '.join(map(repr, similar))}?"
            raise


def _passed_on(name: str) -> typer.Typer:
    """Returns a command that parses its words itself."""
    app = typer.Typer(add_completion=False)

    @app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
    def pass_on(context: typer.Context) -> int:
        command = own_command(name)
        return run(["--help"]) if command is None else command(context.args)

    return app


def _options(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    """Lists `--version` in the help; `main` answers it without Typer."""


def run(words: Sequence[str]) -> int:
    """Parses and runs a command line; returns the exit code."""
    if (
        sys.modules.get("rich", sys) is None
    ):  # `serve` or `dev` ran in this process, and kept structlog from importing it.
        del sys.modules["rich"]
    app = typer.Typer(
        cls=_Commands,
        add_completion=True,
        pretty_exceptions_enable=False,
        help="Runs brokers of Lowtide, and administers clusters that speak Kafka's protocol.",
    )
    app.callback()(_options)
    command: Any = get_command(app)
    return ended(lambda: command.main(args=list(words), prog_name="lowtide", standalone_mode=False))


def ended(command: Callable[[], Any]) -> int:
    """Runs a command; returns its exit code. Prints a parsing error as a sentence."""
    try:
        code = command()
    except CallError as error:
        context = getattr(error, "ctx", None)
        name = context.command_path if context is not None else "lowtide"
        sentence = error.format_message().rstrip(".\n")
        if "\n" in sentence:  # The help of a group without a command; later versions of Typer have printed it already.
            print(sentence, file=sys.stderr)
        elif sentence:
            print(f"{name}: {sentence}{'' if sentence.endswith('?') else '.'} See `{name} --help`.", file=sys.stderr)
        return ExitCode.MISUSED
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    return int(code or 0)
