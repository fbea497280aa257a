"""Apache Kafka from Maven: its jars in a cache, one KRaft node as a process, and DumpLogSegments."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

VERSION = "4.4.0"
"""Whose clients, tools and node all tests use, unless they ask for each of `VERSIONS`."""

VERSIONS = (VERSION, "4.3.1", "3.9.1")
"""Versions whose producer, consumer, administrator, groups and tools must work."""

LOG4J_VERSION = "2.25.5"
"""The version that Kafka 4.4 depends on; without this binding neither the node nor the tools would log anything."""

CACHE = Path(__file__).parent / ".cache"
CLUSTER_ID = "bG93dGlkZS1pbnRlcm9wMA"
NODE_ID = 1
FETCH_TIMEOUT_S = 300
START_TIMEOUT_S = 60.0
TOOL_TIMEOUT_S = 120

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>lowtide</groupId><artifactId>interop</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-streams</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>{log4j_version}</version></dependency>
</dependencies></project>
"""
LOG4J = """Configuration:
  Appenders: {Console: {name: ERR, target: SYSTEM_ERR, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}}
  Loggers: {Root: {level: WARN, AppenderRef: {ref: ERR}}}
"""
PROPERTIES = """process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={node_id}@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.segment.bytes=1048576
log.index.interval.bytes=512
log.cleaner.enable=false
"""


def fetch_jars(version: str = VERSION) -> Path:
    """Returns the folder with Kafka's jars; Maven downloads missing ones.

    Errors: CalledProcessError with Maven's output.
    """
    pom = POM.format(version=version, log4j_version=LOG4J_VERSION)
    folder = CACHE / f"kafka-{version}-{zlib.crc32((pom + LOG4J).encode()):08x}"
    if folder.exists():
        return folder
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        building = Path(name) / "kafka"
        building.mkdir()
        (building / "pom.xml").write_text(pom)
        (building / "log4j2.yaml").write_text(LOG4J)
        command = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(building / "pom.xml"),
            "dependency:copy-dependencies",
            "-DoutputDirectory=libs",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        assert done.returncode == 0, f"Maven could not bring Kafka {version}: {done.stdout[-1500:]}{done.stderr[-500:]}"
        building.rename(folder)
    return folder


def java(jars: Path, *arguments: str, options: Sequence[str] = ("-Xmx512m",), classes: str = "") -> list[str]:
    """Returns the command that runs a class of Kafka, or one in the folder `classes`."""
    path = f"{classes}:{jars}/libs/*" if classes else f"{jars}/libs/*"
    return ["java", *options, "-cp", path, f"-Dlog4j2.configurationFile={jars}/log4j2.yaml", *arguments]


class DumpedRecord(NamedTuple):
    """A record in the output of DumpLogSegments."""

    offset: int
    key: str
    payload: str


class Dump(NamedTuple):
    """The output of DumpLogSegments for some files."""

    text: str

    @property
    def records(self) -> list[DumpedRecord]:
        found = re.finditer(r"^\| offset: (\d+) .*? key: (.*?) payload: (.*)$", self.text, re.MULTILINE)
        return [DumpedRecord(int(match[1]), match[2], match[3]) for match in found]

    @property
    def invalid(self) -> list[str]:
        """The lines with errors: a batch that is not valid, an index that does not fit its log, offsets that jump.

        This leaves out a line that the tool prints for every segment with a base offset above 0: "-1 is followed by"
        its base.
        """
        text = re.sub(
            r"^Non-consecutive offsets in \S*?0*(\d+)\.log\n\s*-1 is followed by \1$", "", self.text, flags=re.MULTILINE
        )
        words = re.compile(
            r"isvalid: false|mismatch|non.?consecutive|is followed by|is truncated|corrupt|exception|error occurred",
            re.IGNORECASE,
        )
        return [line for line in text.splitlines() if words.search(line)]


def dump(jars: Path, files: list[Path], *, records: bool = True) -> Dump:
    """Runs DumpLogSegments over segments, record by record or only batches, and checks indexes among `files`."""
    names = ",".join(str(file) for file in files)
    depth = ["--deep-iteration", "--print-data-log"] if records else []
    command = java(jars, "org.apache.kafka.tools.DumpLogSegments", *depth, "--files", names)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    # On some damage the tool ends with an exception, which counts as an error.
    return Dump(f"{done.stdout}\n{done.stderr}")


class Kafka:
    """One KRaft node on its own directory; it can be started and stopped repeatedly."""

    def __init__(
        self,
        jars: Path,
        folder: Path,
        ports: Sequence[int],
        options: Sequence[str] = ("-Xmx512m",),
        settings: Sequence[str] = (),
    ) -> None:
        """`options` are those of the JVM; `settings` replace lines of the configuration with the same key."""
        self._jars = jars
        self._options = options
        self._properties = folder / "server.properties"
        self._log = folder / "kafka.log"
        self.directory = folder / "data"
        self.bootstrap = f"127.0.0.1:{ports[0]}"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(exist_ok=True)
        node_id = next((line.removeprefix("node.id=") for line in settings if line.startswith("node.id=")), NODE_ID)
        given = PROPERTIES.format(node_id=node_id, port=ports[0], controller_port=ports[1], directory=self.directory)
        self._properties.write_text("\n".join([given, *settings]))
        command = java(jars, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties))
        subprocess.run(command, check=True, capture_output=True, timeout=TOOL_TIMEOUT_S)

    def start(self) -> None:
        """Starts and waits until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                java(self._jars, "kafka.Kafka", str(self._properties), options=self._options), stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            try:
                if admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                continue
        raise TimeoutError(f"Kafka does not answer after {START_TIMEOUT_S} s: {self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Stops cleanly. May be called when it does not run."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(START_TIMEOUT_S)
            raise
        finally:
            self._process = None

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(START_TIMEOUT_S)
        self._process = None

    def words(self) -> str:
        """Returns its output: warnings and errors."""
        return self._log.read_text()


def replace_folder(source: Path, target: Path, *, keep: str) -> None:
    """Replaces `target` by a copy of `source`, except for its file `keep`."""
    kept = (target / keep).read_bytes()
    shutil.rmtree(target)
    shutil.copytree(source, target)
    (target / keep).write_bytes(kept)
