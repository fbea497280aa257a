"""Parses the command line: brokers, workloads, rounds."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .cluster import FILLED_IN, FILLED_IN_OF_SEVERAL
from .figures import MEBIBYTE
from .measure import TINY, Amounts
from .targets import LOWTIDE, LOWTIDE_OF_SEVERAL, LOWTIDE_TLS, TargetSpec
from .workloads import FLOOR, OF_CLUSTERS, WORKLOADS

OWN_NAME = "lowtide"

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PORT_MAX = 65_535

_EPILOG = """\
Lowtide itself is the first target, started from this working tree, unless a target has the name "lowtide" or
--only-given is given. Ratios are to the first target. Brokers that are started listen on a free port of 127.0.0.1.

With --brokers 3 every started target is three brokers. The command starts each of them and also gets {id}, {peer_port},
{peers} (1@127.0.0.1:7001,2@…) and {etcd}, the address of an etcd that is started first. A target given by address
counts as three brokers. Topics have a replica on each, and min.insync.replicas=2. CPU and memory are those of all.

  make bench
  make bench ARGS='--brokers 3 -w closed,replicated,failover'
  make bench ARGS='--start "kfake=kfake -port {port} -d {dir}" --target kafka=127.0.0.1:9092:4711 -r 5 --json out.json'

Workloads:
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The parsed command line."""

    targets: Sequence[TargetSpec]
    workloads: Sequence[str]
    rounds: int
    warm_rounds: int
    amounts: Amounts
    scratch: Path | None
    json: Path | None
    csv: Path | None


def parse_target(text: str) -> TargetSpec:
    """Reads `NAME=HOST:PORT` or `NAME=HOST:PORT:PID+PID`. Errors: ValueError with a message."""
    name, rest = _named(text)
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d+)(?::(\d+(?:\+\d+)*))?", rest)
    if match is None or not 0 < int(match[3]) <= _PORT_MAX:
        raise ValueError(f"{rest!r} is not HOST:PORT or HOST:PORT:PID")
    processes = tuple(map(int, match[4].split("+"))) if match[4] else ()
    return TargetSpec(name=name, address=(match[1] or match[2], int(match[3])), processes=processes)


def parse_start(text: str) -> TargetSpec:
    """Reads `NAME=COMMAND`; `{port}` and `{dir}` in it are filled in at each start, and more if several brokers are
    started.

    Errors: ValueError with a message.
    """
    name, rest = _named(text)
    words = tuple(shlex.split(rest))
    for word in words:
        try:
            word.format(**dict.fromkeys(FILLED_IN, "x"))
        except (KeyError, IndexError, ValueError):
            names = ", ".join(f"{{{each}}}" for each in FILLED_IN)
            raise ValueError(f"{word!r}: only {names} can be filled in; double other braces") from None
    if not any("{port}" in word for word in words) or not any("{dir}" in word for word in words):
        raise ValueError(f"the command of {name} needs {{port}} and {{dir}}: two brokers must not share them")
    return TargetSpec(name=name, command=words)


def _named(text: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals or not rest or not _NAME.fullmatch(name):
        raise ValueError(f"{text!r} does not begin with NAME=; names have letters, digits, '.', '_' and '-'")
    return name, rest


def parse_workloads(text: str) -> list[str]:
    """Reads names with commas between them. Errors: ValueError with a message."""
    known = [FLOOR, *WORKLOADS]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no workload {name!r}; there are {', '.join(known)}")
    return list(dict.fromkeys(names))


def _parser() -> argparse.ArgumentParser:
    lines = [f"  {FLOOR:<12} the load generator alone: what it could do with a broker that costs nothing"]
    for name, workload in WORKLOADS.items():
        kind = (
            f" ({'several ' * workload.several}started brokers only)"
            if workload.starts
            else " (several brokers only)" * workload.several
        )
        lines.append(f"  {name:<12} {workload.says}{kind}")
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="The same work on several Kafka brokers, in turn, and what it costs each of them.",
        epilog=_EPILOG + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    given: Any = {"action": "append", "default": [], "dest": "given"}
    add("--target", **given, type=_as_argument(parse_target), metavar="NAME=HOST:PORT[:PID[+PID]]",
        help="a broker that runs; PID (on this machine) lets its CPU and memory be seen")  # fmt: skip
    add("--start", **given, type=_as_argument(parse_start), metavar="NAME='COMMAND {port} {dir}'",
        help="a broker to start in a new directory, and to end")  # fmt: skip
    add("--only-given", action="store_true", help="do not add a Lowtide of this working tree")
    add("--brokers", type=_positive, default=1, help="how many brokers each target is (1)")
    add("-w", "--workloads", type=_as_argument(parse_workloads), metavar="NAME,NAME",
        help="default: all; of several brokers those that differ from one broker's")  # fmt: skip
    add("-r", "--rounds", type=_positive, default=3, help="measured rounds, each over all targets (3)")
    add("--warm", type=_natural, default=1, help="rounds before them that are not counted, where that makes sense (1)")
    add("--tiny", action="store_true", help="next to no work: shows that all works; its figures say nothing")
    add("--gb", type=float, help="GiB in the log before SIGKILL (1)")
    add("--segments", type=_numbers, metavar="N,N", help="sizes of the logs that are deleted from (1,100,1000)")
    add(
        "--trimmed",
        type=float,
        metavar="S",
        help="seconds for which a topic is filled and deleted at the same time (180)",
    )
    add("--purged", type=float, metavar="S", help="seconds for which all partitions are deleted every 100 ms (20)")
    add("--partitions", type=_positive, help="partitions of a large topic (1000)")
    add("--connections", type=_positive, help="idle connections (2000)")
    add("--failovers", type=_positive, help="leaders that are killed, one after the other (10)")
    add(
        "--scratch",
        type=Path,
        help=(
            "where directories for brokers are created: the disk that they are measured on (the system's for "
            "temporary files)"
        ),
    )
    add("--json", type=Path, help="write everything to this file")
    add("--csv", type=Path, help="write every figure of every round to this file")
    return parser


def parse_arguments(words: Sequence[str]) -> Arguments:
    """Reads the command line. Errors: SystemExit with a message, as argparse does."""
    parser = _parser()
    given = parser.parse_args(words)
    targets: list[TargetSpec] = given.given
    names = [target.name for target in targets]
    if not given.only_given and OWN_NAME not in names:
        is_one = given.brokers == 1
        own = TargetSpec(
            name=OWN_NAME, command=LOWTIDE if is_one else LOWTIDE_OF_SEVERAL, tls=LOWTIDE_TLS if is_one else ()
        )
        targets = [own, *targets]
    if not targets:
        parser.error("there is no target: give one, or leave out --only-given")
    if len(set(names)) != len(names):
        parser.error("two targets have the same name")
    targets = [dataclasses.replace(target, brokers=given.brokers) for target in targets]
    if given.brokers == 1 and any(
        f"{{{each}}}" in word for target in targets for word in target.command for each in FILLED_IN_OF_SEVERAL
    ):
        parser.error(
            f"one broker is started with {{port}} and {{dir}}; {', '.join(FILLED_IN_OF_SEVERAL)} are there with "
            "--brokers 3"
        )
    of_one = [name for name, workload in WORKLOADS.items() if not workload.several]
    workloads = given.workloads or [FLOOR, *(of_one if given.brokers == 1 else OF_CLUSTERS)]
    for name in workloads:
        if given.brokers == 1 and name != FLOOR and WORKLOADS[name].several:
            parser.error(f"the workload {name} is about several brokers: say --brokers 3")
    chosen = {
        "bytes_before_kill": None if given.gb is None else int(given.gb * 1024 * MEBIBYTE),
        "segments": given.segments,
        "partitions": given.partitions,
        "connections": given.connections,
        "failovers": given.failovers,
        "trimmed_s": given.trimmed,
        "purged_s": given.purged,
    }
    amounts = dataclasses.replace(
        TINY if given.tiny else Amounts(), **{name: value for name, value in chosen.items() if value is not None}
    )
    return Arguments(
        targets=targets,
        workloads=workloads,
        rounds=given.rounds,
        warm_rounds=given.warm,
        amounts=amounts,
        scratch=given.scratch,
        json=given.json,
        csv=given.csv,
    )


def _as_argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Returns a parser whose messages argparse shows."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_positive(word) for word in text.split(","))
