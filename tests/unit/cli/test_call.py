"""Commands that fail before they reach a cluster: a message for people, an object for programs, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.cli import delete_records_tool
from lowtide.cli.main import main


@pytest.fixture
def tls_without_authorities(tmp_path: Path) -> str:
    """Settings that name a missing file, which is read at the first connection."""
    file = tmp_path / "client.properties"
    file.write_text(f"security.protocol=SSL\nssl.truststore.location={tmp_path}/none.pem\n")
    return str(file)


def test_files_that_settings_name_are_reported_when_they_are_missing(tls_without_authorities, tmp_path, capsys):
    """Both commands once ended with a traceback."""
    assert main(["topics", "list", "-b", "127.0.0.1:1", "--command-config", tls_without_authorities]) == 2
    said = capsys.readouterr().err
    assert "none.pem" in said
    assert said.count("\n") == 1
    offsets = tmp_path / "offsets.json"
    offsets.write_text('{"partitions": [{"topic": "t", "partition": 0, "offset": 1}]}')
    words = [
        "--bootstrap-server",
        "127.0.0.1:1",
        "--offset-json-file",
        str(offsets),
        "--command-config",
        tls_without_authorities,
    ]
    assert delete_records_tool.main(words) == 2
    said = capsys.readouterr().err
    assert "none.pem" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["LOWTIDE_COMMAND_CONFIG", "LOWTIDE_CLIENT_CONFIG"])
@pytest.mark.parametrize("words", [["topics", "list"], ["users", "list"]])
def test_the_environment_names_the_settings(tls_without_authorities, capsys, monkeypatch, name, words):
    monkeypatch.setenv(name, tls_without_authorities)
    assert main([*words, "-b", "127.0.0.1:1"]) == 2
    assert "none.pem" in capsys.readouterr().err


def test_programs_receive_an_error_on_standard_output(capsys):
    """The output is one document, as always; the message for people is on standard error."""
    assert main(["topics", "list", "-b", "", "--output", "json"]) == 2
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert error["exit_code"] == 2
    assert captured.err == f"lowtide topics list: {error['message']}\n"
