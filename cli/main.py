"""The `lowtide` command: finds the subcommand and imports only that.

Exit codes: 0 done, 1 failed while running, 2 called or configured wrongly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

_USAGE = """\
usage: lowtide <command> [options]

commands:
  serve              run a broker
  dev                run a cluster of several brokers in one process, for laptops and tests
  keys               print every configuration key, as a page in Markdown
  topics explain     what keeps the oldest segment of a topic's partitions, and when it will go
  repair-log-start   keep what is readable of a damaged journal of log start offsets
  version            print the version
  help               print this; `lowtide <command> --help` says more
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("help", "--help", "-h"):
        print(_USAGE, end="")
        return 0 if words else 2
    name, rest = words[0], words[1:]
    if name in ("version", "--version"):
        from lowtide import __version__  # noqa: PLC0415

        print(__version__)
        return 0
    command = _command(name)
    if command is None:
        print(f"lowtide: there is no command {name!r}; `lowtide help` lists them.", file=sys.stderr)
        return 2
    return command(rest)


def _command(name: str) -> Callable[[Sequence[str]], int] | None:
    """The subcommand, imported now: `serve` must not pay for the others."""
    if name == "serve":
        from lowtide.cli.serve import serve  # noqa: PLC0415

        return serve
    if name == "dev":
        from lowtide.cli.dev import dev  # noqa: PLC0415

        return dev
    if name == "keys":
        from lowtide.cli.keys import keys  # noqa: PLC0415

        return keys
    if name == "topics":
        from lowtide.cli.topics import topics  # noqa: PLC0415

        return topics
    if name == "repair-log-start":
        from lowtide.cli.repair import repair_log_start  # noqa: PLC0415

        return repair_log_start
    return None


if __name__ == "__main__":
    sys.exit(main())
