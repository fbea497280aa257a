"""`lowtide certificates`: the folder of a secure cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.config.sources import from_properties
from lowtide.cli import main


def test_a_folder_has_what_brokers_and_clients_need(tmp_path: Path, capsys) -> None:
    """The output has no secret; the broker's file is a configuration; a second call changes nothing."""
    folder = tmp_path / "secure"
    words = [
        "certificates",
        str(folder),
        "--host",
        "broker-1",
        "--etcd-host",
        "etcd",
        "--listener",
        "INSIDE",
        "-b",
        "broker-1:9092",
    ]
    assert main.main(words) == 0
    shown = capsys.readouterr().out
    assert f"lowtide users add admin --log-dirs LOG_DIR --password-file {folder}/admin.password" in shown
    assert not any((folder / f"{user}.password").read_text().strip() in shown for user in ("admin", "broker"))
    given = from_properties((folder / "broker.properties").read_text(), "broker.properties")
    listeners = {"listeners": "INSIDE://127.0.0.1:0", "listener.security.protocol.map": "INSIDE:SASL_SSL"}
    assert load_config(given=given, settings=listeners).inter_broker_listener == "INSIDE"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for kind, names in {
        "brokers": {"ca.pem", "broker.pem", "broker.properties", "metadata.pem"},
        "etcd": {"ca.pem", "etcd.pem", "metadata.pem"},
    }.items():
        copies = {path.name: path for path in (folder / kind).iterdir()}
        assert set(copies) == names, "each machine has what it needs: neither the authority's key nor a password"
        assert all(path.read_bytes() == (folder / name).read_bytes() for name, path in copies.items())
        assert {name for name, path in copies.items() if path.stat().st_mode & 0o077} == {"ca.pem"}
    assert main.main([*words, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["users"] == ["admin", "broker"]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "part"), [(["{tmp}/file"], "file"), (["{tmp}/new", "--host", "zoë"], "zoë"), ([], "DIR")]
)
def test_what_cannot_be_is_refused_with_a_message(words: list[str], part: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    assert main.main(["certificates", *(word.format(tmp=tmp_path) for word in words)]) != 0
    shown = capsys.readouterr()
    assert part in shown.out + shown.err
    assert ".." not in shown.err
