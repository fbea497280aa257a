"""`lowtide-delete-records` against a real broker: Kafka's output, and bad files that delete nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.cli.delete_records_tool import main

from .command_lines import run_process
from .driver import Driver, OutgoingRecord

TOOL = "lowtide.cli.delete_records_tool"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "offsets.json"


def write(file: Path, *rows: tuple[str, int, int], **more: object) -> None:
    file.write_text(
        json.dumps(
            {"partitions": [{"topic": t, "partition": p, "offset": o} for t, p, o in rows], "version": 1, **more}
        )
    )


def test_the_output_is_that_of_kafkas_tool(lowtide: SimpleNamespace, other: Driver, topic: str, file: Path) -> None:
    """A failed partition is named, and the exit code is 1, so scripts notice."""
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 10)
    write(file, (topic, 0, 4), (topic, 1, 7), (topic, 2, -1))
    ran = run_process("--bootstrap-server", lowtide.bootstrap, "--offset-json-file", file, tool=TOOL, code=1)
    assert ran.stdout.splitlines() == [
        "Executing records delete operation",
        "Records delete operation completed:",
        f"partition: {topic}-0\tlow_watermark: 4",
        f"partition: {topic}-1\terror: can't delete up to 7: answered by the leader: OFFSET_OUT_OF_RANGE",
        f"partition: {topic}-2\tlow_watermark: 0",
    ]
    assert ran.stderr == ""
    assert other.offsets(topic, range(3)) == {0: (4, 10), 1: (0, 0), 2: (0, 0)}


def test_leader_only_prints_the_leaders_log_start(
    lowtide: SimpleNamespace, other: Driver, topic: str, file: Path, capsys
) -> None:
    """KIP-1343, with the option name of KIP-107."""
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 10)
    write(file, (topic, 0, 4))
    assert main(["--bootstrap-server", lowtide.bootstrap, "--delete-offset-json-file", str(file), "--leader-only"]) == 0
    assert (
        capsys.readouterr().out.splitlines()[2] == f"partition: {topic}-0\tlow_watermark: 4\tleader_log_start_offset: 4"
    )


def test_an_empty_list_is_a_success(lowtide: SimpleNamespace, file: Path, capsys) -> None:
    write(file)
    assert main(["--bootstrap-server", lowtide.bootstrap, "--offset-json-file", str(file)]) == 0
    assert capsys.readouterr().out == "Executing records delete operation\nRecords delete operation completed:\n"


def test_an_error_anywhere_in_the_file_deletes_nothing(
    lowtide: SimpleNamespace, other: Driver, topic: str, file: Path, capsys
) -> None:
    """An error in the last line counts like one in the first."""
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 10)
    for row in ((topic, 0, 4), (topic, 1, -2), (topic, -1, 0)):
        write(file, (topic, 0, 4), row)
        assert main(["--bootstrap-server", lowtide.bootstrap, "--offset-json-file", str(file)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("lowtide-delete-records: offsets.json line 1, partition 2 of the list: ")
    assert other.offsets(topic, [0]) == {0: (0, 10)}


def test_settings_come_from_a_file_and_invalid_ones_are_refused(file: Path, tmp_path: Path, capsys) -> None:
    write(file, ("t", 0, 1))
    assert main([]) == 2
    assert capsys.readouterr().err.startswith(
        "lowtide-delete-records: --bootstrap-server and --offset-json-file must be given."
    )
    settings = tmp_path / "client.properties"
    settings.write_text("request.timeout.ms=none\n")
    words = ["--bootstrap-server", "127.0.0.1:1", "--offset-json-file", str(file), "--command-config", str(settings)]
    assert main(words) == 2
    assert "client.properties line 1: request.timeout.ms is 'none'" in capsys.readouterr().err
    settings.write_text("default.api.timeout.ms=500\n")
    assert main(words) == 3
    assert "127.0.0.1:1" in capsys.readouterr().err
