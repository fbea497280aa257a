"""An erasure while the job runs: no file of the table has the person then, and no other record is lost or doubled."""

from __future__ import annotations

import io
import json
import threading
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from lowtide.admin.receipts.envelope import open_envelope
from lowtide.cli.main import main
from lowtide.pipeline.table.job import RoundReport
from lowtide.pipeline.table.session import spark_runner

from .table_jobs import TABLE, LocalJobs

PERSON, OTHERS, LIMIT_S = b"person-4711", 20, 300


@pytest.fixture
def jobs(lowtide: SimpleNamespace, topic: str, tmp_path):
    made = LocalJobs(lowtide.bootstrap, topic, tmp_path)
    made.catalog.create_namespace_if_not_exists("db")
    yield made
    made.close()


class Traffic:
    """Records of a person and of others. What a person's record has begins with the same text."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._topic = topic
        self.others: list[bytes] = []
        self.count = 0

    def send(self, count: int, *, with_person: bool = True) -> None:
        for number in range(self.count, self.count + count):
            is_person = with_person and number % 7 == 3
            key = PERSON if is_person else b"other-%d" % (number % OTHERS)
            value = (b"secret-%d" if is_person else b"value-%d") % number
            self._producer.produce(self._topic, value, key, partition=number % 2)
            if not is_person:
                self.others.append(value)
        self.count += count
        assert self._producer.flush(120) == 0


def lowtide_command(jobs: LocalJobs, lowtide: SimpleNamespace, *words: str) -> str:
    """Runs a command in this process, which has imported PyIceberg already; returns what it prints."""
    places = ("--catalog", f"sqlite:///{jobs.folder}/catalog.db", "--table", TABLE, "-b", lowtide.bootstrap)
    return printed(*words, *places)


def printed(*words: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        code = main(words)
    assert code == 0, words
    return out.getvalue()


def plain_table(jobs: LocalJobs) -> None:
    """Lets the first job create the table, without compression: a search for bytes finds what is in its files."""
    jobs.job().round()
    with jobs.table().transaction() as change:
        change.set_properties(
            **{"write.parquet.compression-codec": "uncompressed", "write.avro.compression-codec": "null"}
        )


def files_with_the_person(folder: Path) -> list[str]:
    return [
        str(path)
        for path in folder.rglob("warehouse/**/*")
        if path.is_file() and any(mark in path.read_bytes() for mark in (PERSON, b"secret-"))
    ]


def values(jobs: LocalJobs) -> list[bytes]:
    return sorted(map(bytes, jobs.table().scan(selected_fields=("value",)).to_arrow().column("value").to_pylist()))


def test_a_round_that_has_read_the_person_is_thrown_away(lowtide, jobs, topic, tmp_path):
    plain_table(jobs)
    traffic = Traffic(lowtide.bootstrap, topic)
    traffic.send(100)
    assert jobs.job().round().outcome == "committed"
    traffic.send(100)
    erasure_id = str(uuid4())

    def erase() -> None:
        words = ("records", "erase", topic, "--key", PERSON.decode(), "--yes", "--erasure-id", erasure_id, "-o", "json")
        document = json.loads(lowtide_command(jobs, lowtide, *words))
        [table] = document["tables"]
        assert table["rows"] == 14
        assert sum(each["records"] for each in document["partitions"]) == 29
        assert table["not_reached"] == []

    report = jobs.job(meanwhile=erase).round()
    assert report.outcome == "lost"
    assert "erasure" in report.reason
    assert files_with_the_person(tmp_path) == []
    assert jobs.job().round().rows == 85
    assert values(jobs) == sorted(traffic.others)
    assert files_with_the_person(tmp_path) == []

    key = tmp_path / "audit.key"
    printed("erasures", "key", "create", str(key))
    receipt = lowtide_command(jobs, lowtide, "erasures", "receipt", erasure_id, "--signing-key", str(key))
    (tmp_path / "receipt.json").write_text(receipt)
    statement = json.loads(open_envelope(receipt.encode()).payload)
    [named] = statement["tables"]
    assert (named["table"], named["rows"], named["replaced"]["count"]) == (TABLE, 14, 1)
    assert named["deleted"]["count"] >= len(named["deleted"]["names"]) > 5
    printed("erasures", "verify", str(tmp_path / "receipt.json"), "--public-key", f"{key}.pub")


def test_the_table_alone_is_erased_when_the_log_has_nothing_left(lowtide, jobs, topic, tmp_path):
    from .conftest import delete_to

    plain_table(jobs)
    traffic = Traffic(lowtide.bootstrap, topic)
    traffic.send(70)
    jobs.job().round()
    delete_to(lowtide.bootstrap, topic, {0: 35, 1: 35})
    out = lowtide_command(jobs, lowtide, "records", "erase", topic, "--key", PERSON.decode(), "--yes", "-o", "json")
    assert json.loads(out)["tables"][0]["rows"] == 10
    assert files_with_the_person(tmp_path) == []
    assert values(jobs) == sorted(traffic.others)
    assert jobs.job().round().rows == 0, "the progress is where it was"


def test_erasing_while_spark_writes_round_after_round(spark, lowtide, jobs, topic, tmp_path):
    plain_table(jobs)
    traffic = Traffic(lowtide.bootstrap, topic)
    traffic.send(700)
    reports: list[RoundReport] = []
    erased = threading.Event()
    run = spark_runner(spark.sparkContext)

    def write() -> None:
        job = jobs.job(rows_per_round_max=200, run=run)
        while not (reports and erased.is_set() and reports[-1].outcome == "idle"):
            reports.append(job.round())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2):
            traffic.send(350)
            lowtide_command(jobs, lowtide, "records", "erase", topic, "--key", PERSON.decode(), "--yes")
        traffic.send(350, with_person=False)
    finally:
        erased.set()
        writer.join(LIMIT_S)
    assert not writer.is_alive()
    assert files_with_the_person(tmp_path) == []
    assert values(jobs) == sorted(traffic.others)
    assert jobs.data_files() == jobs.known_files()
