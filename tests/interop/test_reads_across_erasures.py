"""Other clients read across erased records, in both isolation levels: each gets every live record once and in order,
none of the erased ones, and continues at the end.

Each client reads while the broker filters erased records in memory, and when its files are rewritten.
`tests/clients/test_erase_by_key.py` does the same with the clients of Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lowtide import BlockingAdminClient

from . import kafkajs, load
from .erased_topics import COMMITTED, GONE, LAST, UNCOMMITTED, ErasedTopic, ErasedTopics
from .franz_go import FranzGo
from .lowtide_process import LowtideProcess
from .members import QUICK, Member, outputs_of, until
from .tools import EACH_VERSION, JavaClient

pytestmark = pytest.mark.interop

LEVELS = (UNCOMMITTED, COMMITTED)
NEVER_REWRITES = str(Path(__file__).with_name("never_rewrites.py"))
KAFKAJS_CODECS = ("none", "gzip")
"""Others need more packages."""

Reads = dict[tuple[str, str], list[int]]
"""The offsets of records by topic and isolation level."""


class Erased:
    """A broker with erased records."""

    def __init__(self, bootstrap: str, made: ErasedTopics) -> None:
        self.bootstrap = bootstrap
        self.made = made

    def topics(self, codecs: tuple[str, ...] = load.CODECS) -> list[ErasedTopic]:
        return [topic for topic in self.made.topics if topic.codec in codecs]


@pytest.fixture(scope="module", params=["filtered", "rewritten"])
def erased(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Erased]:
    rewrites = request.param == "rewritten"
    program = ("-m", "lowtide.cli.main") if rewrites else (NEVER_REWRITES,)
    with LowtideProcess(
        tmp_path_factory.mktemp("lowtide") / "data", program=program, http_listeners="", **QUICK
    ) as broker:
        with BlockingAdminClient(broker.bootstrap) as admin:
            made = ErasedTopics(broker.bootstrap, admin, timeout=load.DEADLINE_S if rewrites else 1.0)
        yield Erased(broker.bootstrap, made)


@pytest.fixture(scope="session")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with kafka-go and sarama, built."""
    if shutil.which("go") is None:
        assert os.environ.get("CI_INTEROP") != "1", "CI_INTEROP=1, but go not installed"
        pytest.skip("go not installed")
    program, source = tmp_path_factory.mktemp("readers") / "readers", Path(__file__).parent / "readers"
    done = subprocess.run(["go", "build", "-o", program, "."], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def got(member: Member) -> Reads:
    found: Reads = defaultdict(list)
    for line in member.said("got"):
        assert line["key"].encode() != GONE, line
        found[line["topic"], line["isolation"]].append(line["offset"])
    return dict(found)


def live(topics: list[ErasedTopic]) -> Reads:
    return {(topic.name, level): list(topic.live[level]) for topic in topics for level in LEVELS if topic.live[level]}


def also_ends_of_transactions(topics: list[ErasedTopic]) -> Reads:
    """Returns what kafka-go gets of any broker: it knows neither control batches nor aborted transactions."""
    return {
        (topic.name, level): [
            offset for offset in sorted(topic.live[UNCOMMITTED] + topic.markers) if offset < topic.position(level)
        ]
        for topic in topics
        for level in LEVELS
        if topic.live[level]
    }


def check_reads(
    erased: Erased, command: list[str], topics: list[ErasedTopic], expected: Callable[[list[ErasedTopic]], Reads] = live
) -> None:
    """Runs a client that reads to the end, and then gets one more record of each topic. Checks its positions, if it has
    any.
    """

    def has_positions() -> bool:
        told = {(line["topic"], line["isolation"]): line["position"] for line in member.said("position")}
        return not told or told == {(topic.name, level): topic.position(level) for topic in topics for level in LEVELS}

    def differences() -> object:
        wanted, found = expected(topics), got(member)
        told = [(key, wanted.get(key), found.get(key)) for key in wanted | found if wanted.get(key) != found.get(key)]
        return (
            told,
            outputs_of(member)[0][1],
            [line for line in member.lines if line["what"] not in {"got", "position"}],
        )

    with Member(command) as member:
        for _ in range(2):
            until(lambda: got(member) == expected(topics) and has_positions(), differences)
            assert not member.said("failed"), differences()
            erased.made.write_last()
        until(lambda: got(member) == expected(topics), differences)
        assert LAST.decode() in {line["key"] for line in member.said("got")}
        member.leave()


@EACH_VERSION
def test_the_java_client(erased: Erased, jars: Path, tmp_path: Path) -> None:
    names = ",".join(topic.name for topic in erased.topics())
    check_reads(erased, JavaClient(jars, erased.bootstrap, tmp_path).command("gaps", topics=names), erased.topics())


def test_franz_go(erased: Erased, franz_go_program: Path) -> None:
    names = ",".join(topic.name for topic in erased.topics())
    go = FranzGo(franz_go_program, erased.bootstrap)
    check_reads(erased, go.command("gaps", topic=names, timeout="5m"), erased.topics())


def test_sarama(erased: Erased, readers: Path) -> None:
    names = ",".join(topic.name for topic in erased.topics())
    check_reads(erased, [str(readers), "sarama", erased.bootstrap, names], erased.topics())


def test_kafka_go(erased: Erased, readers: Path) -> None:
    """It gets no erasure as a record, and no batch without records, at which it ends the program."""
    names = ",".join(topic.name for topic in erased.topics())
    command = [str(readers), "kafka-go", erased.bootstrap, names]
    check_reads(erased, command, erased.topics(), also_ends_of_transactions)


def test_kafkajs(erased: Erased) -> None:
    if shutil.which("npm") is None:
        assert os.environ.get("CI_INTEROP") != "1", "CI_INTEROP=1, but npm not installed"
        pytest.skip("npm not installed")
    topics = erased.topics(KAFKAJS_CODECS)
    program = str(kafkajs.fetch() / "gaps.js")
    check_reads(erased, ["node", program, erased.bootstrap, ",".join(topic.name for topic in topics)], topics)
