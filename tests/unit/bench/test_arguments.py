"""The command line of the bench: targets are parsed, and invalid arguments are refused with a message."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.arguments import parse_arguments, parse_start, parse_target, parse_workloads
from bench.measure import TINY, Amounts
from bench.targets import LOWTIDE
from bench.workloads import WORKLOADS


@pytest.mark.parametrize(
    ("text", "name", "address", "processes"),
    [
        ("kafka=127.0.0.1:9092", "kafka", ("127.0.0.1", 9092), ()),
        ("k-1.x=localhost:1:42", "k-1.x", ("localhost", 1), (42,)),
        ("a=[::1]:9092:1+22+333", "a", ("::1", 9092), (1, 22, 333)),
    ],
)
def test_a_target_by_address(text: str, name: str, address: tuple[str, int], processes: tuple[int, ...]):
    spec = parse_target(text)
    assert (spec.name, spec.address, spec.processes, spec.command) == (name, address, processes, ())


@pytest.mark.parametrize(
    "text",
    ["", "kafka", "kafka=", "=127.0.0.1:1", "a/b=h:1", "a=host", "a=h:0", "a=h:65536", "a=h:1:", "a=h:1:x", "a=::1:5"],
)
def test_an_invalid_target(text: str):
    with pytest.raises(ValueError, match=r"."):
        parse_target(text)


def test_a_target_by_command():
    """The equals signs and quotes of the command belong to the command."""
    spec = parse_start("k=env 'A=b c' serve --port={port} --set dir={dir}/x {{}}")
    assert spec.address is None
    assert spec.command == ("env", "A=b c", "serve", "--port={port}", "--set", "dir={dir}/x", "{{}}")
    assert [word.format(port=5, dir="/d") for word in spec.command][3:] == ["--port=5", "--set", "dir=/d/x", "{}"]


@pytest.mark.parametrize(
    "text", ["k=serve {dir}", "k=serve {port}", "k=serve {port} {dir} {other}", "k=serve {port} {dir} {}", "k='"]
)
def test_a_command_that_can_not_be_run_twice(text: str):
    """Without its own port and directory, a broker would be measured on those of another."""
    with pytest.raises(ValueError, match=r"."):
        parse_start(text)


def test_lowtide_is_the_first_target_unless_it_is_given():
    """The others are compared with it."""
    found = parse_arguments(["--target", "other=127.0.0.1:1"]).targets
    assert [target.name for target in found] == ["lowtide", "other"]
    assert found[0].command == LOWTIDE
    given = parse_arguments(["--target", "other=127.0.0.1:1", "--target", "lowtide=127.0.0.1:2"]).targets
    assert [(target.name, target.address) for target in given] == [
        ("other", ("127.0.0.1", 1)),
        ("lowtide", ("127.0.0.1", 2)),
    ]
    alone = parse_arguments(["--only-given", "--start", "b=x {port} {dir}", "--target", "a=127.0.0.1:1"]).targets
    assert [target.name for target in alone] == ["b", "a"]


@pytest.mark.parametrize(
    "words",
    [
        ["--only-given"],
        ["--target", "a=h:1", "--target", "a=h:2"],
        ["--target", "nonsense"],
        ["-w", "batches,bathces"],
        ["-r", "0"],
        ["--warm", "-1"],
        ["--segments", "1,x"],
        ["--connections", "0"],
    ],
)
def test_an_invalid_argument_is_refused_before_anything_starts(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        parse_arguments(words)
    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_amounts():
    """An option changes its own amount, and nothing else."""
    assert parse_arguments([]).amounts == Amounts()
    assert parse_arguments(["--tiny"]).amounts == TINY
    found = parse_arguments(["--gb", "0.5", "--segments", "1,2", "--connections", "7", "--json", "x", "-r", "9"])
    assert found.amounts == dataclasses.replace(Amounts(), bytes_before_kill=1 << 29, segments=(1, 2), connections=7)
    assert (found.json, found.csv, found.rounds) == (Path("x"), None, 9)


def test_workloads_by_name():
    assert parse_workloads("kill, batches,kill") == ["kill", "batches"]
    assert parse_arguments([]).workloads == [
        "floor",
        *(name for name, workload in WORKLOADS.items() if not workload.several),
    ]


def test_several_brokers():
    """Each target has so many brokers, Lowtide with an etcd; workloads for several brokers run then, and are refused for one."""
    found = parse_arguments(["--brokers", "3", "--start", "other=run {id} {port} {dir} {peers}", "--failovers", "2"])
    assert [target.brokers for target in found.targets] == [3, 3]
    assert any("{etcd}" in word for word in found.targets[0].command)
    assert {"closed", "failover", "partitions"} <= set(found.workloads)
    assert found.amounts.failovers == 2
    for words in (["-w", "failover"], ["--start", "other=run {id} {port} {dir}"]):
        with pytest.raises(SystemExit):
            parse_arguments(words)


def test_deletes_stay_within_the_first_segment():
    """Otherwise the work would differ in a log of one segment."""
    assert Amounts().deletes < 500
