"""Record the frames that real clients and a real broker exchange, through a proxy between them.

    python -m tests.wire.golden.capture --broker 127.0.0.1:9092 --listen 127.0.0.1:9093 [--groups|--transactions]
    [--java JARS] [CLIENT ...]

The broker must advertise the proxy's address (`advertised.listeners=PLAINTEXT://127.0.0.1:9093`), otherwise the clients
bypass the proxy after their first Metadata. Clients run one after another; each uses all APIs of `KEPT`, or with
`--groups` those of `GROUPS`, with `group.initial.rebalance.delay.ms=0`, or with `--transactions` those of
`TRANSACTIONS`. Of each API and version the requests of at most `FRAME_BYTES_MAX` that differ in length are kept,
because they differ in form, and the shortest and the longest response.

The broker's requests to itself pass through the proxy too: AddPartitionsToTxn in version 5 and WriteTxnMarkers are
Kafka's own.

The output is `captured/<client>.jsonl`, `captured/<client>_groups.jsonl` or `captured/<client>_transactions.jsonl`, a
JSON object a line:

    client     name and version            api        the API's name as in `ApiKey`
    version    the API version             direction  "request" or "response"
    hex        the frame without its size in front, header included
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import confluent_kafka

from lowtide.protocol.api_keys import ApiKey
from tests.clients.configuring import AiokafkaConfigurer, Configurer, ConfluentConfigurer, KafkaPythonConfigurer
from tests.clients.driver import Driver, OutgoingRecord, until
from tests.clients.driver_aiokafka import Aiokafka
from tests.clients.driver_confluent import Confluent
from tests.clients.driver_kafka_python import KafkaPython
from tests.clients.driver_kcat import Kcat
from tests.clients.group_members import KEEPERS, AiokafkaKeeper, KafkaPythonKeeper, Keeper, Member, kcat_group, member
from tests.clients.growing import GROWERS, KafkaPythonGrower
from tests.clients.transformers import TRANSFORMERS

FOLDER = Path(__file__).parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FRAME_BYTES_MAX = 1500
KEPT = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.METADATA,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.PRODUCE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DELETE_RECORDS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
    }
)

GROUPS = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
    }
)

TRANSACTIONS = frozenset(
    {
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    }
)

PARTS = {"": KEPT, "groups": GROUPS, "transactions": TRANSACTIONS}

Frames = dict[tuple[ApiKey, int, str], set[bytes]]


class Proxy:
    """Forwards bytes unchanged and keeps a copy of each whole frame."""

    def __init__(self, broker: tuple[str, int], kept: frozenset[ApiKey]) -> None:
        self._broker = broker
        self._kept = kept
        self.frames: Frames = {}
        self.recording = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection of a client until either side closes it."""
        broker_reader, broker_writer = await asyncio.open_connection(*self._broker)
        asked: dict[int, tuple[ApiKey, int]] = {}
        with suppress(asyncio.CancelledError):  # at the end of the run
            await asyncio.gather(
                self._pump(reader, broker_writer, lambda frame: self._on_request(frame, asked)),
                self._pump(broker_reader, writer, lambda frame: self._on_response(frame, asked)),
            )

    @staticmethod
    async def _pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_frame: Callable[[bytes], None]
    ) -> None:
        try:
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size))
                on_frame(frame)
                writer.write(size + frame)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _on_request(self, frame: bytes, asked: dict[int, tuple[ApiKey, int]]) -> None:
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        asked[correlation_id] = (ApiKey(key), version)
        self._keep(ApiKey(key), version, "request", frame)

    def _on_response(self, frame: bytes, asked: dict[int, tuple[ApiKey, int]]) -> None:
        key, version = asked.pop(int.from_bytes(frame[:4]))
        self._keep(key, version, "response", frame)

    def _keep(self, key: ApiKey, version: int, direction: str, frame: bytes) -> None:
        if self.recording and key in self._kept and len(frame) <= FRAME_BYTES_MAX:
            self.frames.setdefault((key, version, direction), set()).add(frame)


@contextmanager
def proxy_running(listen: tuple[str, int], broker: tuple[str, int], kept: frozenset[ApiKey]) -> Iterator[Proxy]:
    """Runs a proxy on its own loop."""
    loop = asyncio.new_event_loop()
    proxy = Proxy(broker, kept)
    server = loop.run_until_complete(asyncio.start_server(proxy.serve, *listen))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def end(server: asyncio.Server) -> None:
    """Stops listening, and cancels tasks that still wait for a closed client."""
    server.close()
    waiting = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


CONFIGURERS: dict[str, Callable[[str], Configurer]] = {
    kind.name: kind for kind in (ConfluentConfigurer, KafkaPythonConfigurer, AiokafkaConfigurer)
}


def exercise(kind: Callable[[str], Driver], bootstrap: str) -> None:
    """Makes a client use every API of `KEPT`."""
    driver = kind(bootstrap)
    grower = GROWERS[driver.name](bootstrap)
    topic = f"captured-{uuid.uuid4().hex[:8]}"
    driver.create_topic(topic, 2, {"retention.ms": "3600000"})
    produce_and_consume(driver, topic)
    driver.delete_records(topic, {0: 3, 1: -1})
    configure(CONFIGURERS[driver.name](bootstrap), topic)
    if isinstance(driver, KafkaPython):
        for topics in ({topic: [0, 1]}, {}, None):
            driver.log_directories(topics)
        for partition in (0, 1):
            driver.producers(topic, partition)
    grower.grow(topic, 3)
    grower.grow(topic, 5, [[grower.cluster().controller_id]] * 2)
    grower.grow(topic, 5)
    if isinstance(grower, KafkaPythonGrower):
        grower.page([topic, f"{topic}-missing"], 2000)
        grower.page([], 2)
        grower.page([topic], 2, (topic, 2))
    driver.delete_topic(topic)


def configure(configurer: Configurer, topic: str) -> None:
    """Requests a topic's configuration, and changes it in every way that the client has."""
    configurer.describe("TOPIC", topic, ["retention.ms", "cleanup.policy"])
    if configurer.is_incremental:
        configurer.alter("TOPIC", topic, {"retention.ms": ("DELETE", ""), "cleanup.policy": ("APPEND", "compact")})
    configurer.replace("TOPIC", topic, {"retention.ms": "7200000"})
    if isinstance(configurer, KafkaPythonConfigurer):
        configurer.list()


def exercise_kcat(driver: Driver, administrator: Driver, proxy: Proxy) -> None:
    """Makes kcat use its functions, with a topic that another client creates without being recorded."""
    topic = f"captured-{uuid.uuid4().hex[:8]}"
    proxy.recording = False
    administrator.create_topic(topic, 2, {})
    proxy.recording = True
    produce_and_consume(driver, topic)
    proxy.recording = False
    administrator.delete_topic(topic)


def produce_and_consume(driver: Driver, topic: str) -> None:
    """Writes with every codec, reads, and asks for topics and offsets."""
    driver.partition_count(topic)
    for codec in CODECS:
        headers = () if codec == "none" else (("header", codec.encode()),)
        driver.produce(topic, [OutgoingRecord(b"key", codec.encode() * 20, None, headers)] * 2, codec=codec)
    driver.produce(topic, [OutgoingRecord(b"key", b"idempotent")], idempotent=True)
    with driver.reader(topic, 0, 1, reset="earliest") as reader:
        reader.read(10)
    driver.offsets(topic, [0, 1])
    driver.offset_for_time(topic, 0, 1_700_000_000_000)


def exercise_groups(name: str, bootstrap: str) -> None:
    """Makes a client use every API of `GROUPS`."""
    topic = group = f"captured-{uuid.uuid4().hex[:8]}"
    administrator = Confluent(bootstrap)
    administrator.create_topic(topic, 2, {})
    if name == "kcat":
        administrator.produce(topic, [OutgoingRecord(b"key", b"value")] * 4)
        kcat_group(bootstrap, topic, group, 4)
        return
    for instance_id in (None, "one"):
        administrator.produce(topic, [OutgoingRecord(b"key", b"value")])
        with member(name, bootstrap, topic, group, instance_id) as one:
            until(lambda one=one: bool(one.poll()))
            one.commit()
            until(heartbeats_are_over(one))
            if instance_id is None and name in KEEPERS:
                KEEPERS[name](bootstrap).describe(group)
    if name in KEEPERS:
        look_after(KEEPERS[name](bootstrap), group, topic)
    else:
        AiokafkaKeeper(bootstrap).look(group)


def exercise_transactions(name: str, bootstrap: str) -> None:
    """Makes a client read from one topic and write to another, in a committed transaction and in an aborted one."""
    source = group = f"captured-{uuid.uuid4().hex[:8]}"
    administrator = Confluent(bootstrap)
    for topic in (source, f"{source}-2"):
        administrator.create_topic(topic, 1, {})
    administrator.produce(source, [OutgoingRecord(b"key", b"value")] * 2)
    worker = TRANSFORMERS[name](bootstrap, group, f"{group}-id", source, f"{source}-2")
    worker.begin(1)
    worker.commit()
    worker.begin(1)
    worker.abort()
    worker.close()


def heartbeats_are_over(one: Member) -> Callable[[], bool]:
    """Polls for half a second, in which each client sends a heartbeat."""
    end = time.monotonic() + 0.5

    def over() -> bool:
        one.poll()
        return time.monotonic() > end

    return over


def look_after(keeper: Keeper, group: str, topic: str) -> None:
    """List, describe and delete."""
    keeper.groups()
    keeper.commit(f"{group}-2", topic, {0: 1, 1: 2})
    keeper.committed(f"{group}-2", topic)
    if isinstance(keeper, KafkaPythonKeeper):
        keeper.delete_offsets(f"{group}-2", topic, [0])
    keeper.delete(f"{group}-2")


def run_java(bootstrap: str, jars: Path, *what: str) -> None:
    """Runs JavaClient.java from its source."""
    command = [
        "java",
        "-cp",
        f"{jars}/libs/*",
        str(FOLDER / "JavaClient.java"),
        bootstrap,
        f"captured-{uuid.uuid4().hex[:8]}",
        *what,
    ]
    subprocess.run(command, check=True, timeout=120)


def kcat_version() -> str:
    """Returns kcat's version and that of its librdkafka."""
    words = subprocess.run(["kcat", "-V"], check=True, capture_output=True, text=True).stdout
    kcat, librdkafka = (words.split(name)[1].split()[0] for name in ("Version ", "librdkafka "))
    return f"kcat {kcat} (librdkafka {librdkafka})"


def library_version(name: str) -> str:
    """Returns the name and version of a Python client, with that of its C library."""
    beneath = f" (librdkafka {confluent_kafka.libversion()[0]})" if name == Confluent.name else ""
    return f"{name} {importlib.metadata.version(name)}{beneath}"


def write(path: Path, client: str, frames: Frames) -> None:
    """Writes the frames that are kept."""
    lines = []
    for (key, version, direction), found in sorted(frames.items()):
        by_length = {len(frame): frame for frame in sorted(found)}
        lengths = sorted(by_length)
        for length in lengths if direction == "request" else dict.fromkeys((lengths[0], lengths[-1])):
            frame = by_length[length]
            entry = {"client": client, "api": key.name, "version": version, "direction": direction, "hex": frame.hex()}
            lines.append(json.dumps(entry) + "\n")
    path.write_text("".join(lines))


def address(text: str) -> tuple[str, int]:
    """Returns host and port of `host:port`."""
    host, port = text.rsplit(":", 1)
    return host, int(port)


def main(arguments: Sequence[str] | None = None) -> None:
    """Capture what the command line requests."""
    parser = argparse.ArgumentParser(description="Record the frames of real clients.")
    parser.add_argument("clients", nargs="*", default=["kcat", "confluent_kafka", "kafka_python", "aiokafka"])
    parser.add_argument("--broker", required=True, help="host:port of the broker")
    parser.add_argument("--listen", required=True, help="host:port of the proxy, which the broker advertises")
    parser.add_argument("--java", type=Path, help="folder whose libs/ holds Kafka's jars")
    for part in ("groups", "transactions"):
        parser.add_argument(
            f"--{part}", action="store_const", const=part, default="", dest="part", help=f"the APIs of {part} only"
        )
    given = parser.parse_args(arguments)
    drivers = {"confluent_kafka": Confluent, "kafka_python": KafkaPython, "aiokafka": Aiokafka}
    runs: dict[str, tuple[str, Callable[[Proxy], None]]] = {
        name: (library_version(kind.name), lambda _proxy, kind=kind: exercise(kind, given.listen))  # type: ignore[attr-defined, misc]
        for name, kind in drivers.items()
    }
    runs["kcat"] = (kcat_version(), lambda proxy: exercise_kcat(Kcat(given.listen), Confluent(given.listen), proxy))
    if given.java:
        [jar] = (given.java / "libs").glob("kafka-clients-*.jar")
        what = [given.part] if given.part else []
        runs["java"] = (
            f"kafka-clients {jar.stem.removeprefix('kafka-clients-')}",
            lambda _proxy: run_java(given.listen, given.java, *what),
        )
    exercises = {"groups": exercise_groups, "transactions": exercise_transactions}
    for name in [*given.clients, *(["java"] if given.java else [])]:
        client, run = runs[name]
        with proxy_running(address(given.listen), address(given.broker), PARTS[given.part]) as proxy:
            if given.part and name != "java":
                exercises[given.part](name.replace("_", "-"), given.listen)
            else:
                run(proxy)
        write(FOLDER / "captured" / f"{name}{given.part and f'_{given.part}'}.jsonl", client, proxy.frames)


if __name__ == "__main__":
    main()
