"""`lowtide table` and `topics explain --table`: what they refuse, and what they say."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import msgspec
import pytest

from lowtide.cli.main import main
from lowtide.cli.table_status import kept_line
from lowtide.protocol.messages.describe_retention import RetainedPartition

CATALOG = ["--catalog", "sqlite:///{folder}/c.db"]

needs_pyiceberg = pytest.mark.skipif(importlib.util.find_spec("pyiceberg") is None, reason="pyiceberg is not installed")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "t", "--catalog", "c"], "Missing option '--table'."),
        (["run", "t", "--table", "db.t"], "Missing option '--catalog'."),
        (["run", *CATALOG, "--table", "db.t"], "Missing argument 'TOPIC…'."),
        (["run", "a", "b", *CATALOG, "--table", "db.t"], "with several topics, --table must contain {topic}."),
        (["run", "t", *CATALOG, "--table", "t"], "must be named with its namespace, such as db.flights."),
        (["run", "t", *CATALOG, "--table", "db."], "must be named with its namespace, such as db.flights."),
        (["run", "t", *CATALOG, "--table", "db.t", "--schema", "xml"], "it must be auto, json, avro, protobuf or raw."),
        (["run", "t", *CATALOG, "--table", "db.t", "--partition-by", "week"], "it must be none, hour, day or month."),
        (["run", "t", *CATALOG, "--table", "db.t", "--every", "1 minute"], "is not a duration"),
        (["run", "t", *CATALOG, "--table", "db.t", "--trim-after", "x"], "is not a duration"),
        (["run", "t", *CATALOG, "--table", "db.t", "--trim-group", "g"], "no effect without --trim or --trim-dry-run."),
        (["run", "t", *CATALOG, "--table", "db.t", "--spark-conf", "x"], "--spark-conf 'x' must be KEY=VALUE."),
        (["run", "t", *CATALOG, "--table", "db.t", "--catalog-property", "=x"], "must be KEY=VALUE."),
        (["run", "t", *CATALOG, "--table", "db.t", "-b", "x:"], "bootstrap.servers"),
        (["status", "--catalog", "sqlite:///{folder}/no/c.db", "--table", "db.t"], "c.db can't be opened: "),
        (["status", "--catalog", "nowhere", "--table", "db.t"], "the catalog nowhere can't be opened: "),
        (["status", *CATALOG, "--table", "db.t"], "there is no table db.t."),
    ],
)
@needs_pyiceberg
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_wrong_calls_end_with_code_2_and_a_sentence(words, sentence, tmp_path: Path, capsys):
    words = ["table", *(word.replace("{folder}", str(tmp_path)) for word in words)]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"lowtide table {words[1]}: ")
    assert sentence in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(("package", "words"), [("pyiceberg", ["status"]), ("pyspark", ["run", "t"])])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path: Path, capsys, package: str, words):
    for name in [name for name in sys.modules if name.partition(".")[0] == package or ".table.writing" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["table", *words, "--catalog", f"sqlite:///{tmp_path}/c.db", "--table", "db.t"]) == 1
    told = capsys.readouterr().err
    assert "install Lowtide with its extra" in told
    assert package in told
    assert len(told.splitlines()) == 1


def test_explain_takes_catalog_and_table_together(capsys):
    assert main(["topics", "explain", "t", "--catalog", "c"]) == 2
    assert "--catalog and --table belong together." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("until", "words"),
    [
        (90, "80 offsets from 10 on are also there; 1 offset waits for its next round."),
        (11, "1 offset from 10 on is also there; 80 offsets wait for its next round."),
        (10, "up to offset 10; 81 offsets wait for its next round."),
        (91, "81 offsets from 10 on are also there."),
        (5, "up to offset 5; 81 offsets wait for its next round."),
    ],
)
def test_explain_says_what_the_table_has(until: int, words: str):
    row = RetainedPartition(partition_index=3, error_code=0, log_start_offset=10, log_end_offset=91)
    told = kept_line("db.t", row, until)
    assert told.startswith(f"3: kept: the table db.t has up to offset {until}; ")
    assert told.endswith(words)
    unknown = msgspec.structs.replace(row, error_code=5)
    assert kept_line("db.t", unknown, until) == f"3: the table db.t has up to offset {until}."


def test_errors_are_json_for_programs(tmp_path: Path, capsys):
    words = ["table", "run", "t", "--catalog", "c", "--table", "t", "--output", "json"]
    assert main(words) == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 2
