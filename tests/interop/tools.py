"""Kafka's command line tools run as its own shell scripts do, and our small program with the Java client."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from .kafka import TOOL_TIMEOUT_S, VERSIONS, fetch_jars, java

EACH_VERSION = pytest.mark.parametrize("kafka_version", VERSIONS, indirect=True)
"""For tests of the clients and tools of each version of Kafka."""

SHORT_LIVED = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that starts quickly and has little work."""

JAVA_SOURCES = Path(__file__).parent / "java"
_TOOLS = "org.apache.kafka.tools"
MAIN_CLASSES: Mapping[str, str] = {
    "kafka-acls": f"{_TOOLS}.AclCommand",
    "kafka-broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{_TOOLS}.ClientMetricsCommand",
    "kafka-cluster": f"{_TOOLS}.ClusterTool",
    "kafka-configs": f"{_TOOLS}.ConfigCommand",
    "kafka-console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{_TOOLS}.ConsoleProducer",
    "kafka-console-share-consumer": f"{_TOOLS}.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": f"{_TOOLS}.ConsumerPerformance",
    "kafka-delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "kafka-delegation-tokens": f"{_TOOLS}.DelegationTokenCommand",
    "kafka-e2e-latency": f"{_TOOLS}.EndToEndLatency",
    "kafka-features": f"{_TOOLS}.FeatureCommand",
    "kafka-get-offsets": f"{_TOOLS}.GetOffsetShell",
    "kafka-groups": f"{_TOOLS}.GroupsCommand",
    "kafka-leader-election": f"{_TOOLS}.LeaderElectionCommand",
    "kafka-log-dirs": f"{_TOOLS}.LogDirsCommand",
    "kafka-metadata-quorum": f"{_TOOLS}.MetadataQuorumCommand",
    "kafka-producer-perf-test": f"{_TOOLS}.ProducerPerformance",
    "kafka-reassign-partitions": f"{_TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": f"{_TOOLS}.ReplicaVerificationTool",
    "kafka-share-consumer-perf-test": f"{_TOOLS}.ShareConsumerPerformance",
    "kafka-share-groups": f"{_TOOLS}.consumer.group.ShareGroupCommand",
    "kafka-streams-application-reset": f"{_TOOLS}.StreamsResetter",
    "kafka-streams-groups": f"{_TOOLS}.streams.StreamsGroupCommand",
    "kafka-topics": f"{_TOOLS}.TopicCommand",
    "kafka-transactions": f"{_TOOLS}.TransactionsCommand",
    "kafka-verifiable-consumer": f"{_TOOLS}.VerifiableConsumer",
    "kafka-verifiable-producer": f"{_TOOLS}.VerifiableProducer",
    "kafka-verifiable-share-consumer": f"{_TOOLS}.VerifiableShareConsumer",
}
"""Script name: the class that it runs, as in Kafka's bin/."""

BOOTSTRAP_FIRST = ("kafka-features", "kafka-metadata-quorum", "kafka-transactions")
"""They want to know the cluster before their sub-command."""


class Ran(NamedTuple):
    """The output and exit code of a tool."""

    exit_code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Standard output, line by line."""
        return self.out.splitlines()


class Tools:
    """The tools against one broker. `folder` has files that the JVMs share, and those that they unpack."""

    def __init__(self, jars: Path, bootstrap: str, folder: Path) -> None:
        self._jars = jars
        self.bootstrap = bootstrap
        shared = folder / "classes.jsa"
        unpacked = f"-Djava.io.tmpdir={folder}"
        self._options = (*SHORT_LIVED, unpacked, f"-XX:ArchiveClassesAtExit={shared}")
        assert (
            self.call("kafka-topics", "--list").exit_code == 0
        )  # its classes, parsed once: others need half the time to start
        self._options = (*SHORT_LIVED, unpacked, f"-XX:SharedArchiveFile={shared}")

    def call(self, tool: str, *arguments: str, stdin: str = "") -> Ran:
        """Runs a tool to its end. Errors: TimeoutExpired if it hangs."""
        servers = ("--bootstrap-server", self.bootstrap)
        words = (MAIN_CLASSES[tool], *((*servers, *arguments) if tool in BOOTSTRAP_FIRST else (*arguments, *servers)))
        command = java(self._jars, *words, options=self._options)
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        return Ran(done.returncode, done.stdout, done.stderr)

    def watch(self, tool: str, *arguments: str, until: str) -> list[str]:
        """Runs a tool that never ends, and ends it when a line contains `until`.

        Returns the lines up to there, of both outputs.
        """
        command = java(self._jars, MAIN_CLASSES[tool], *arguments, options=self._options)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            ended = threading.Timer(TOOL_TIMEOUT_S, process.kill)
            ended.start()
            try:
                assert process.stdout is not None
                lines = []
                for line in process.stdout:
                    lines.append(line.rstrip("\n"))
                    if until in line:
                        return lines
            finally:
                ended.cancel()
                process.kill()
        raise AssertionError(lines)

    @contextmanager
    def running(self, tool: str, *arguments: str) -> Iterator[Iterator[str]]:
        """A tool that never ends, with the lines of its output; it is killed at the end, or when it hangs."""
        command = java(self._jars, MAIN_CLASSES[tool], *arguments, options=self._options)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            ended = threading.Timer(TOOL_TIMEOUT_S, process.kill)
            ended.start()
            try:
                assert process.stdout is not None
                yield (line.rstrip("\n") for line in process.stdout)
            finally:
                ended.cancel()
                process.kill()

    def run(self, tool: str, *arguments: str, stdin: str = "") -> Ran:
        """Runs a tool that must succeed, without an error."""
        ran = self.call(tool, *arguments, stdin=stdin)
        assert ran.exit_code == 0, ran
        complaints = [
            line for line in ran.err.splitlines() if " WARN " in line or " ERROR " in line or "Exception" in line
        ]
        assert complaints == [], ran
        return ran


class JavaClient:
    """The program in `java/`, compiled into `folder`, against one broker.

    It is compiled with the jars of the newest Kafka, and runs with `jars`, which may be older.
    """

    def __init__(self, jars: Path, bootstrap: str, folder: Path, jvm_options: Sequence[str] = SHORT_LIVED) -> None:
        self._jars = jars
        self._bootstrap = bootstrap
        self._folder = folder
        self._jvm_options = jvm_options
        sources = sorted(str(source) for source in JAVA_SOURCES.glob("*.java"))
        command = ["javac", "-Xlint:all", "-proc:none", "-cp", f"{fetch_jars()}/libs/*", "-d", str(folder), *sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr

    def against(self, bootstrap: str) -> Self:
        """Returns the same, against another broker."""
        other = copy(self)
        other._bootstrap = bootstrap
        return other

    def command(self, *scenarios: str, **given: str) -> list[str]:
        """Returns the command that runs scenarios one after another, in one JVM; `given` are system properties."""
        options = (
            *self._jvm_options,
            f"-Djava.io.tmpdir={self._folder}",
            *(f"-Dinterop.{name}={value}" for name, value in given.items()),
        )
        return java(self._jars, "Interop", self._bootstrap, *scenarios, options=options, classes=str(self._folder))

    def see(self, *scenarios: str) -> dict[str, list[dict[str, Any]]]:
        """Runs scenarios. Returns the results of each, line by line."""
        command = self.command(*scenarios)
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
        seen: dict[str, list[dict[str, Any]]] = {scenario: [] for scenario in scenarios}
        for line in done.stdout.splitlines():
            found = json.loads(line)
            seen[found.pop("scenario")].append(found)
        return seen
