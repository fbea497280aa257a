"""`lowtide dev`: its refusals. Tests with real processes are in tests/chaos."""

from __future__ import annotations

import pytest

from lowtide.cli.dev import dev


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.cli.options.environment", dict)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            ["--set", "node.id=7"],
            "node.id=7 is invalid for several brokers of one process: each has its own (in --set node.id).",
        ),
        (["--set", "listeners=PLAINTEXT://:9092"], "listeners=PLAINTEXT://:9092 is invalid for several brokers"),
        (["--set", "log.dirs=/tmp"], "log.dirs=/tmp is invalid for several brokers"),
        (["--set", "num.partitions=0"], "num.partitions=0"),
        (["--port", "65534"], "--port 65534 is too high: the last of 3 brokers would listen on 65536."),
        (["--config", "/no/such/file"], "--config /no/such/file can't be read: No such file or directory."),
    ],
)
def test_impossible_arguments_are_refused_with_a_message(arguments, part, capsys):
    assert dev(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lowtide dev: ")
    assert captured.err.count("\n") == 1
    assert part in captured.err


@pytest.mark.parametrize(
    "arguments",
    [["--brokers", "0"], ["--brokers", "21"], ["--brokers", "three"], ["--port", "-1"], ["--port", "65536"]],
)
def test_numbers_out_of_range_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        dev(arguments)
    assert ended.value.code == 2
    assert "it must be a whole number from" in capsys.readouterr().err
