"""`make demo-erase`: one of ten thousand people is forgotten while the load goes on and a broker dies.

Three broker processes on this machine get the records of ten thousand people, in zstd batches. In the middle of the
load one broker is killed with SIGKILL, and `lowtide records erase` erases one person. The command is repeated until
every broker has confirmed. At the end all records are read and compared with the expected ones, and every file of every
broker is searched for the person, as its bytes lie there and decompressed. Any difference ends the run with a message
and exit code 1.

Run: `python demo/erase_person.py` with `lowtide` beside that python; it needs about 200 MB of temporary space.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from flights_read import DemoError, run_in_folder

from lowtide.protocol.records import iterate_batches, iterate_records

TOPIC, PARTITIONS, BROKERS = "letters", 6, 3
PEOPLE, LETTERS = 10_000, 30
PERSON = 4_711
DEADLINE_S = 90.0
LOWTIDE = str(Path(sys.executable).with_name("lowtide"))


def key_of(person: int) -> bytes:
    return b"person-%05d" % person


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Brokers:
    """`lowtide serve --processes`, which starts a process again that has ended."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        settings = {
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            "min.insync.replicas": "2",
            "log.segment.bytes": str(4 << 20),
        }
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self._ready: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [LOWTIDE, "serve", "--processes", str(BROKERS), *words],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.wait_until(lambda: len(self._ready) == BROKERS)

    def _read(self) -> None:
        """Notes the address and process of each broker that is ready."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if '"broker ready"' in line:
                told = json.loads(line)
                with self._changed:
                    self._ready[told["broker"]] = told
                    self._changed.notify_all()

    def wait_until(self, condition: Any) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, DEADLINE_S):
                raise DemoError(f"The brokers were not ready within {DEADLINE_S:.0f} s.")

    @property
    def bootstrap(self) -> str:
        return ",".join(each["address"] for each in self._ready.values())

    def kill(self, broker: int) -> int:
        """SIGKILL: the process gets no chance to write anything. Returns its id."""
        pid = int(self._ready[broker]["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)

    def files(self) -> list[Path]:
        return sorted(path for path in self.directory.rglob("*") if path.is_file())


def records_in(content: bytes) -> Iterator[Any]:
    for position, header in iterate_batches(content):
        if not header.is_control and header.record_count:
            yield from iterate_records(content[position : position + header.size_bytes], max_bytes=1 << 24)


def files_with_person(brokers: Brokers) -> list[str]:
    """Returns the files with the person's name, as their bytes lie there or in a record."""
    name, found = key_of(PERSON), list[str]()
    for path in brokers.files():
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # It was replaced meanwhile.
            continue
        inside = ".log" in path.suffixes and any(
            name in (record.key or b"") or name in (record.value or b"") for record in records_in(content)
        )
        if inside or name in content:
            found.append(str(path.relative_to(brokers.directory)))
    return found


def load(producer: Producer, letters: range) -> Counter[bytes]:
    """Produces letters of everybody; the person writes none in the second half. Returns the records by key."""
    sent: Counter[bytes] = Counter()
    for letter in letters:
        for person in range(PEOPLE):
            if person == PERSON and letter >= LETTERS // 2:
                continue
            key = key_of(person)
            value = b"letter %03d of %s: " % (letter, key) + b"it was high tide when we met, " * 2
            while True:
                try:
                    producer.produce(TOPIC, value, key)
                    break
                except BufferError:
                    producer.poll(0.1)
            sent[key] += 1
        producer.poll(0)
    return sent


def read_all(bootstrap: str) -> Counter[bytes]:
    """Reads all records from the beginning to the end. Returns their number by key."""
    settings = {"group.id": "demo", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, "isolation.level": "read_committed", **settings})
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    found: Counter[bytes] = Counter()
    ended: set[int] = set()
    give_up = time.monotonic() + DEADLINE_S
    while len(ended) < PARTITIONS:
        if time.monotonic() > give_up:
            raise DemoError(f"The consumer did not reach the end within {DEADLINE_S:.0f} s.")
        for message in consumer.consume(10_000, timeout=0.5):
            error = message.error()
            if error is None:
                found[message.key()] += 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                ended.add(message.partition())
            else:
                raise DemoError(f"The consumer failed: {error}.")
    consumer.close()
    return found


def erase(bootstrap: str) -> None:
    """Runs the command until every broker has confirmed."""
    command = [LOWTIDE, "records", "erase", TOPIC, "--keys-from", "-", "--yes", "-b", bootstrap]
    give_up = time.monotonic() + DEADLINE_S
    while True:
        ran = subprocess.run(
            command, input=key_of(PERSON).decode(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        say(f"{ran.stdout}{ran.stderr}".rstrip())
        if not ran.returncode:
            return
        if time.monotonic() > give_up:
            raise DemoError(f"Not every broker was clean within {DEADLINE_S:.0f} s.")
        say("… and again:")
        time.sleep(1.0)


def run(directory: Path) -> None:
    """Errors: `DemoError`."""
    begin = time.monotonic()
    brokers = Brokers(directory)
    try:
        topic = NewTopic(TOPIC, PARTITIONS, BROKERS)
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([topic])[TOPIC].result(DEADLINE_S)
        settings = {"linger.ms": 50, "compression.type": "zstd", "enable.idempotence": True, "log_level": 2}
        producer = Producer({"bootstrap.servers": brokers.bootstrap, **settings})
        sent = load(producer, range(LETTERS // 2))
        producer.flush(DEADLINE_S)
        say(f"{sent.total():,} letters of {PEOPLE:,} people are on {BROKERS} brokers.")
        before = files_with_person(brokers)
        say(f"{key_of(PERSON).decode()} is in {len(before)} files, such as {before[0]}.")
        later: list[Counter[bytes]] = []
        loading = threading.Thread(target=lambda: later.append(load(producer, range(LETTERS // 2, LETTERS))))
        loading.start()
        say(f"While the load goes on, broker {BROKERS} (process {brokers.kill(BROKERS)}) is killed:")
        erasing = time.monotonic()
        say("$ lowtide records erase letters --keys-from - --yes")
        erase(brokers.bootstrap)
        say(f"Erased everywhere after {time.monotonic() - erasing:.1f} s.")
        loading.join()
        if producer.flush(DEADLINE_S):
            raise DemoError("The producer could not write all letters.")
        expected = sent + later[0]
        expected.pop(key_of(PERSON))
        if read_all(brokers.bootstrap) != expected:
            raise DemoError("The consumer did not get each letter of the others once.")
        say(f"A consumer read all {expected.total():,} letters of the others once, and none of the person.")
        after = files_with_person(brokers)
        if after:
            raise DemoError(f"The person is still in {', '.join(after)}.")
        say(f"No byte of the person is in the {len(brokers.files())} files of the brokers, raw or decompressed.")
        say(f"All in {time.monotonic() - begin:.0f} s.")
    finally:
        brokers.stop()


if __name__ == "__main__":
    sys.exit(run_in_folder(run))
