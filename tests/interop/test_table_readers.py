"""DuckDB, Spark with Iceberg's runtime, and PyIceberg read the same rows of a table that the table job has written."""

from __future__ import annotations

import base64
import datetime as dt
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from .lowtide_process import LowtideProcess
from .table_readers import rows_of_duckdb, rows_of_spark

pytestmark = pytest.mark.interop

TOPIC, PARTITIONS, RECORDS = "people", 3, 3_000
ERASED = "person-7"
LIMIT_S = 300


def lowtide(*words: str, given: str = "") -> str:
    """Runs the command, and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "lowtide.cli.main", *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def fill(bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for number in numbers:
        value: dict[str, Any] = {"number": number, "share": number / 7, "name": {"first": f"é{number}"}, "tags": ["a"]}
        if number % 3 == 0:
            value["later"] = number % 2 == 0
        text = json.dumps(value).encode() if number % 100 else b"no JSON"
        producer.produce(TOPIC, text, key=f"person-{number % 40}", partition=number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0


def plain(value: Any) -> Any:
    """Returns a value as the program of Spark prints it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def in_order(rows: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    found = [{key: plain(value) for key, value in row.items()} for row in rows]
    return sorted(found, key=lambda row: (row[f"{prefix}partition"], row[f"{prefix}offset"]))


@pytest.mark.parametrize("schema", ["raw", "json"])
def test_all_readers_find_the_same_rows(tmp_path: Path, schema: str) -> None:
    """After two rounds, new columns, an erasure and a compaction."""
    from pyiceberg.catalog import load_catalog

    address, prefix = f"sqlite:///{tmp_path}/catalog.db", "" if schema == "raw" else "kafka_"
    table = ("--catalog", address, "--table", "db.people")
    with LowtideProcess(tmp_path / "data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        job = (
            "table",
            "run",
            TOPIC,
            *table,
            "--schema",
            schema,
            "--once",
            "--master",
            "local[1]",
            "-b",
            broker.bootstrap,
        )
        for numbers in (range(RECORDS // 2), range(RECORDS // 2, RECORDS)):
            fill(broker.bootstrap, numbers)
            lowtide(*job)
        erase = ("records", "erase", TOPIC, "--keys-from", "-", *table, "--yes", "-b", broker.bootstrap)
        lowtide(*erase, given=ERASED)
        lowtide("table", "compact", *table)
    catalog = load_catalog("default", uri=address, warehouse=f"file://{tmp_path}/warehouse")
    loaded = catalog.load_table("db.people")
    expected = in_order(loaded.scan().to_arrow().to_pylist(), prefix)
    dead = 0 if schema == "raw" else RECORDS // 100
    assert len(expected) == RECORDS - RECORDS // 40 - dead
    assert plain(ERASED.encode()) not in {row[f"{prefix}key"] for row in expected}
    assert in_order(rows_of_duckdb(loaded.metadata_location), prefix) == expected
    spark = rows_of_spark(tmp_path / "catalog.db", f"file://{tmp_path}/warehouse", "default", "db.people")
    assert in_order(spark, prefix) == expected
