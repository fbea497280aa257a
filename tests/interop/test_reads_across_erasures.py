"""Other clients read across erased records, in both isolation levels: each gets every live record once and in order,
none of the erased ones, and continues at the end.

Each client reads while the broker filters erased records in memory, and when its files are rewritten.
`tests/clients/test_erase_by_key.py` does the same with the clients of Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide import BlockingAdminClient

from ..pipeline.local_spark import local_spark  # noqa: TID252 tests are no package that could be named
from . import kafkajs, load
from .erased_topics import COMMITTED, GONE, LAST, PER_BATCH, UNCOMMITTED, ErasedTopic, ErasedTopics
from .franz_go import FranzGo
from .lowtide_process import LowtideProcess
from .members import QUICK, Member, outputs_of, until
from .test_share_groups import begin_early
from .test_spark import CONNECTOR
from .tools import EACH_VERSION, JavaClient

pytestmark = pytest.mark.interop

LEVELS = (UNCOMMITTED, COMMITTED)
NEVER_REWRITES = str(Path(__file__).with_name("never_rewrites.py"))
FILTERED_S = 3.0
"""How long an erasure waits for files that are never rewritten."""
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
    with (
        LowtideProcess(
            tmp_path_factory.mktemp("lowtide") / "data", program=program, http_listeners="", **QUICK
        ) as broker,
        BlockingAdminClient(broker.bootstrap) as admin,
    ):
        made = ErasedTopics(broker.bootstrap, admin, timeout=load.DEADLINE_S if rewrites else FILTERED_S)
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


SHARERS = ("java", "franz-go", "librdkafka")


@pytest.mark.parametrize("client", SHARERS)
def test_a_share_consumer(erased: Erased, request: pytest.FixtureRequest, tmp_path: Path, client: str) -> None:
    """It gets each live record once, and the start offset of the share group passes the erased ones."""
    group, topics = f"share-{client}", erased.topics()
    begin_early(erased.bootstrap, group)
    command = sharer(client, request, erased.bootstrap, group, ",".join(topic.name for topic in topics), tmp_path)
    with Member(command) as member:

        def has_all() -> bool:
            found: dict[str, list[int]] = defaultdict(list)
            for place, offset in member.read:
                found[place].append(offset)
            return {place: sorted(offsets) for place, offsets in found.items()} == {
                f"{topic.name}-0": topic.live[UNCOMMITTED] for topic in topics if topic.live[UNCOMMITTED]
            }

        for _ in range(2):
            until(has_all, lambda: (outputs_of(member), [(topic.name, topic.live[UNCOMMITTED]) for topic in topics]))
            erased.made.write_last()
        until(has_all, lambda: outputs_of(member))
        member.leave()
    check_starts(erased.bootstrap, group, topics)


@pytest.mark.parametrize("client", SHARERS)
def test_an_acquired_record_is_erased(
    erased: Erased, request: pytest.FixtureRequest, tmp_path: Path, client: str
) -> None:
    """No other member gets it when its member dies; the start offset of the share group passes it."""
    group, topic = (
        f"held-{client}",
        erased.made.topic(f"held-{client}-{request.node.callspec.id}", "none", [2, 3], range(10)),
    )
    begin_early(erased.bootstrap, group)
    member = partial(sharer, client, request, erased.bootstrap, group, topic.name, tmp_path)
    with ExitStack() as stack:
        holder = stack.enter_context(Member(member(how="hold")))
        until(lambda: len(holder.said("got")) >= PER_BATCH, lambda: outputs_of(holder))
        erased.made.erase(topic)
        holder.kill()
        other = stack.enter_context(Member(member()))
        for _ in range(2):  # The start offset is stored with the next acknowledgement.
            until(lambda: len(other.read) >= len(topic.live[UNCOMMITTED]), lambda: outputs_of(other))
            topic.batch()
        until(lambda: len(other.read) >= len(topic.live[UNCOMMITTED]), lambda: outputs_of(other))
        assert sorted(offset for _, offset in other.read) == topic.live[UNCOMMITTED]
        other.leave()
    check_starts(erased.bootstrap, group, [topic])


def check_starts(bootstrap: str, group: str, topics: list[ErasedTopic]) -> None:
    """Waits until the start offsets of a share group are the ends of the topics."""
    starts = partial(share_starts, bootstrap, group)
    until(
        lambda: starts() == {topic.name: topic.end for topic in topics},
        lambda: (starts(), [(topic.name, topic.end) for topic in topics]),
    )


def share_starts(bootstrap: str, group: str) -> dict[str, int]:
    """Returns the start offset of each topic in a share group."""
    with BlockingAdminClient(bootstrap) as admin:
        found = admin.list_share_group_offsets([group])[group]
    assert not isinstance(found, Exception), found
    return {partition.topic: offset.offset for partition, offset in found.items()}


def sharer(
    client: str,
    request: pytest.FixtureRequest,
    bootstrap: str,
    group: str,
    topics: str,
    folder: Path,
    how: str = "accept",
) -> list[str]:
    """Returns the command line of a member of a share group . `how` says what it does with records."""
    if client == "java":
        java = JavaClient(request.getfixturevalue("jars"), bootstrap, folder)
        return java.command("sharer", group=group, topic=topics, how=how)
    if client == "franz-go":
        go = FranzGo(request.getfixturevalue("franz_go_program"), bootstrap)
        return go.command("sharer", group=group, topic=topics, how=how, timeout="5m")
    return [sys.executable, str(Path(__file__).with_name("librdkafka_sharer.py")), bootstrap, group, topics, how]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    jars = {"spark.jars": CONNECTOR} if CONNECTOR else {}
    with local_spark(tmp_path_factory.mktemp("warehouse"), **jars) as session:
        yield session


@pytest.mark.parametrize("source", ["lowtide", "kafka"])
@pytest.mark.parametrize("level", LEVELS)
def test_spark(spark, erased: Erased, tmp_path: Path, source: str, level: str) -> None:
    """In one batch, and as a stream of small ones: with our source, and Kafka's, which doesn't report lost data."""
    if source == "kafka" and not CONNECTOR:
        pytest.skip("SPARK_KAFKA_JARS doesn't name the jars of Spark's Kafka connector")
    streamed: list[tuple[str, int]] = []
    options = {
        "kafka.bootstrap.servers": erased.bootstrap,
        "kafka.isolation.level": level,
        "startingOffsets": "earliest",
        "subscribe": ",".join(topic.name for topic in erased.topics()),
    }
    expected = sorted((topic.name, offset) for topic in erased.topics() for offset in topic.live[level])
    read = spark.read.format(source).options(**options).load().select("topic", "offset").collect()
    assert sorted((row.topic, row.offset) for row in read) == expected
    stream = spark.readStream.format(source).options(**options, maxOffsetsPerTrigger="100").load()

    def keep(frame, _number: int) -> None:
        streamed.extend((row.topic, row.offset) for row in frame.select("topic", "offset").collect())

    writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
    assert writer.trigger(availableNow=True).start().awaitTermination(180)
    assert sorted(streamed) == expected
