"""The `lowtide` command: finding subcommands, what they cost to import, and what they refuse."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide import __version__
from lowtide.broker.config.broker_config import load_config
from lowtide.cli.app import ENTRIES
from lowtide.cli.keys import configuration_page
from lowtide.cli.main import main
from lowtide.cli.options import given_configuration
from lowtide.cli.serve import _parser, serve


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.cli.options.environment", dict)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run `serve`, which must refuse: exit code 2 and one sentence on standard error."""
    assert serve(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lowtide serve: ")
    assert captured.err.endswith(".\n")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("words", [["help"], ["--help"], ["-h"]])
def test_help_names_every_command(words, capsys):
    """A command that help doesn't name can't be found."""
    assert main(words) == 0
    text = capsys.readouterr().out
    assert set(re.findall(r"^│ ([a-z][a-z-]+)  ", text, re.MULTILINE)) == set(ENTRIES)
    assert {"serve", "dev", "keys", "topics", "dump-log", "repair-log-start", "version", "help"} <= set(ENTRIES)


def test_no_command_is_a_mistake_that_gets_help(capsys):
    """Scripts see exit code 2, people see what to do."""
    assert main([]) == 2
    assert "Usage: lowtide" in capsys.readouterr().out


@pytest.mark.parametrize("group", ["topics", "configs", "groups", "records", "cluster"])
def test_a_group_without_a_command_gets_its_help(group, capsys):
    """Once, and as a mistake; there was an empty sentence behind it."""
    assert main([group]) == 2
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count(f"Usage: lowtide {group}") == 1
    assert "says more" not in captured.err


def test_an_unknown_command_is_refused(capsys):
    """One sentence, exit code 2."""
    assert main(["sevre"]) == 2
    assert capsys.readouterr().err == "lowtide: No such command 'sevre'. `lowtide --help` says more.\n"


@pytest.mark.parametrize(
    ("words", "number", "expected"),
    [
        ("lowtide rec", 1, {"records"}),
        ("lowtide records de", 2, {"delete"}),
        ("lowtide records delete --of", 3, {"--offset"}),
        ("lowtide se", 1, {"serve"}),
    ],
)
def test_a_shell_completes_commands_and_options(words, number, expected):
    """As the script that `--install-completion` puts into place asks for it."""
    variables = {**os.environ, "_LOWTIDE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    ended = subprocess.run(
        [sys.executable, "-m", "lowtide.cli.main"], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert set(ended.stdout.split()) == expected, ended.stderr


def test_ctrl_c_while_a_command_is_imported_is_no_traceback(monkeypatch):
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("lowtide.cli.main._run", interrupted)
    assert main(["topics"]) == 130


def test_version(capsys):
    """The package's own."""
    assert main(["version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize("command", ["serve", "dev", "keys", "repair-log-start"])
def test_each_command_explains_itself(command, capsys):
    """`--help` ends with 0 and says how it is used."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: lowtide {command}" in capsys.readouterr().out


def test_keys_prints_the_page(capsys):
    """What the documentation is made from."""
    assert main(["keys"]) == 0
    assert capsys.readouterr().out == configuration_page()


def test_sources_are_merged_in_order(tmp_path, monkeypatch):
    """File, then environment, then --set; caps have a flag of their own."""
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\nnum.partitions=1\nlog.dirs=one\nbroker.rack=r\u00e9\n", encoding="utf-8")
    monkeypatch.setattr("lowtide.cli.options.environment", lambda: {"LOWTIDE_NUM_PARTITIONS": "2", "LOWTIDE_LOG_DIRS": "two"})
    words = ["--config", str(file), "--set", "log.dirs=x", "--set", "log.dirs=three", "--max-version", "DeleteRecords=2"]
    config = load_config(given=given_configuration(_parser().parse_args(words)))
    assert (config.node_id, config.num_partitions, config.log_dirs, config.broker_rack) == (1, 2, ("three",), "r\u00e9")
    assert list(config.max_versions.values()) == [2]
    assert config.given["node.id"].source == "server.properties line 1"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--set", "num.partitions=0"], "num.partitions=0"),
        (["--set", "num.partitions"], "--set num.partitions has no value"),
        (["--set", "no.such.key=1"], "no.such.key"),
        (["--max-version", "DeleteRecords=4"], "from 0 to 3 (in --max-version DeleteRecords)"),
        (["--max-version", "BrokerRegistration=4"], "BrokerRegistration"),
        (["--max-version", "Fetch"], "--max-version Fetch has no value: allowed is --max-version API=version"),
    ],
)
def test_a_wrong_setting_is_refused_in_a_sentence(arguments, part, capsys):
    """It names what was given."""
    assert part in refused(capsys, *arguments)


def test_a_wrong_variable_is_refused_in_a_sentence(capsys, monkeypatch):
    """It names the variable."""
    monkeypatch.setattr("lowtide.cli.options.environment", lambda: {"LOWTIDE_NUM_PARTITIONS": "many"})
    assert "(in LOWTIDE_NUM_PARTITIONS)" in refused(capsys)


def test_a_wrong_line_is_refused_in_a_sentence(capsys, tmp_path):
    """It names file and line."""
    file = tmp_path / "server.properties"
    file.write_text("# mine\nnum.partitions=none\n")
    assert "(in server.properties line 2)" in refused(capsys, "--config", str(file))


def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(capsys, tmp_path):
    """Missing, a directory, not a text."""
    assert "No such file" in refused(capsys, "--config", str(tmp_path / "missing"))
    assert "directory" in refused(capsys, "--config", str(tmp_path))
    (tmp_path / "latin1").write_bytes(b"broker.rack=r\xe9\n")
    assert "not a text in UTF-8: byte 13" in refused(capsys, "--config", str(tmp_path / "latin1"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_broker_refuses_to_run_without_its_assertions():
    """`python -O` drops the checks that stop a broker before it does harm."""
    ended = run("-O", "-m", "lowtide.cli.main", "serve", "--set", "listeners=PLAINTEXT://127.0.0.1:0")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "must not run with -O" in ended.stderr


LOADED = "import sys; print(*sorted(sys.modules))"
HEAVY = (
    "typer",
    "pydantic",
    "rich",
    "prometheus_client",
    "sqlite3",
    "hypothesis",
    "pytest",
    "aiofiles",
    "grpc",
    "pandas",
    "numpy",
    "difflib",
    "unittest",
)


def test_serve_imports_little():
    """A start is to take a fraction of a second; what it doesn't need it must not load. Help loads next to nothing."""
    program = f"import lowtide.cli.main, {{module}}\n{LOADED}"
    of_serve = run("-c", program.format(module="lowtide.cli.serve")).stdout.split()
    assert "lowtide.broker.config.broker_config" in of_serve
    assert [name for name in HEAVY if name in of_serve] == []
    assert [name for name in of_serve if name.startswith("lowtide.testing")] == []
    of_serving = run("-c", f"import lowtide.cli.main as m\nm.main(['serve', '--set', 'node.id'])\n{LOADED}").stdout.split()
    assert "lowtide.broker.config.broker_config" in of_serving
    assert [name for name in of_serving if name in HEAVY or name.startswith("lowtide.admin")] == []
    of_help = run("-c", program.format(module="lowtide.cli.main")).stdout.split()
    assert [name for name in of_help if name.startswith(("lowtide.broker", "lowtide.storage", "asyncio"))] == []


def test_a_broker_is_about_to_listen_without_what_only_commands_need(tmp_path):
    """Everything is imported then but what a request brings; nothing of Typer, rich or the client is."""
    program = (
        "import asyncio, sys\n"
        "def listen(runner, broker):\n    broker.close()\n"
        "    print(*sorted(name for name, module in sys.modules.items() if module))\n    return 0\n"
        "asyncio.Runner.run = listen\nfrom lowtide.cli.main import main\n"
        f"sys.exit(main(['serve', '--set', 'log.dirs={tmp_path}', '--set', 'listeners=PLAINTEXT://127.0.0.1:0']))"
    )
    ended = run("-c", program)
    assert ended.returncode == 0, ended.stderr
    loaded = ended.stdout.split()
    assert "lowtide.broker.lifecycle.broker" in loaded
    assert [name for name in loaded if name.partition(".")[0] in ("typer", "rich", "pydantic") or name.startswith("lowtide.admin")] == []


def test_the_open_file_limit_is_raised_as_far_as_it_goes():
    """In a process of its own, for it stays raised."""
    program = (
        "import resource\nfrom lowtide.runtime.process import raise_open_file_limit\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "print(raise_open_file_limit() == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    ended = run("-c", program)
    assert ended.stdout.strip() == "True", ended.stderr


def test_the_module_lies_where_it_is_imported_from():
    """An editable install must not hide an older copy."""
    assert Path(sys.modules["lowtide.cli.main"].__file__ or "").resolve().parents[1] == Path(__file__).resolve().parents[3]
