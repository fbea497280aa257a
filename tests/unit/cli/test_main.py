"""The `lowtide` command: finding subcommands, the cost of their imports, and their refusals."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from lowtide import __version__
from lowtide.broker.config.broker_config import load_config
from lowtide.broker.config.log_levels import LEVELS, level_of_start
from lowtide.cli.app import ENTRIES
from lowtide.cli.keys import configuration_page
from lowtide.cli.main import main
from lowtide.cli.options import given_configuration
from lowtide.cli.serve import _parser, serve
from tests.examples import one_in


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.cli.options.environment", dict)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs `serve`, which must fail: exit code 2 and one message on standard error."""
    assert serve(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lowtide serve: ")
    assert captured.err.endswith(".\n")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("words", [["help"], ["--help"], ["-h"]])
def test_help_names_every_command(words, capsys):
    """A command that help does not name cannot be found."""
    assert main(words) == 0
    text = capsys.readouterr().out
    assert set(re.findall(r"^│ ([a-z][a-z-]+)  ", text, re.MULTILINE)) == set(ENTRIES)
    assert {"serve", "dev", "keys", "topics", "dump-log", "repair-log-start", "version", "help"} <= set(ENTRIES)


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["help", "topics"], "Usage: lowtide topics "),
        (["help", "records", "delete"], "Usage: lowtide records delete "),
        (["help", "serve"], "usage: lowtide serve "),
        (["help", "help"], "Usage: lowtide "),
    ],
)
def test_help_of_a_command_is_its_own(words, usage, capsys):
    """As git and docker have it; only the list of all commands came once."""
    with suppress(SystemExit):  # argparse exits after help.
        assert main(words) == 0
    assert usage in capsys.readouterr().out


def test_help_names_the_version_option(capsys):
    """It is the first thing that a bug report asks for."""
    main(["--help"])
    assert re.search(r"^│ --version  ", capsys.readouterr().out, re.MULTILINE)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_python_runs_the_package(tmp_path):
    """`python -m lowtide` names the Python that is meant, where `lowtide` is not on the PATH."""
    command = [sys.executable, "-m", "lowtide", "version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{__version__}\n", "")


def test_no_command_is_an_error_and_prints_help(capsys):
    """Scripts see exit code 2, users see what to do."""
    assert main([]) == 2
    assert "Usage: lowtide" in capsys.readouterr().out


@pytest.mark.parametrize("group", ["topics", "configs", "groups", "records", "cluster"])
def test_a_group_without_a_command_gets_its_help(group, capsys):
    """Once, and as an error; an empty message once followed it."""
    assert main([group]) == 2
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count(f"Usage: lowtide {group}") == 1
    assert "says more" not in captured.err


def test_an_unknown_command_is_refused(capsys):
    """One message, exit code 2."""
    assert main(["frobnicate"]) == 2
    assert capsys.readouterr().err == "lowtide: No such command 'frobnicate'. See `lowtide --help`.\n"


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (["topic", "list"], "'topics'"),
        (["sevre"], "'serve'"),
        (["group", "describe"], "'groups'"),
        (["record"], "'records'"),
        (["acl"], "'acls'"),
    ],
)
def test_a_command_that_is_nearly_right_is_suggested(words, suggested, capsys):
    """Kafka's tools have topic, group and acl in the singular."""
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lowtide: No such command '{words[0]}'. Did you mean {suggested}")
    assert said.endswith("? See `lowtide --help`.\n")


@pytest.mark.parametrize(
    ("words", "number", "expected"),
    one_in(
        2,
        [
            ("lowtide rec", 1, {"records"}),
            ("lowtide records de", 2, {"delete"}),
            ("lowtide records delete --of", 3, {"--offset"}),
            ("lowtide se", 1, {"serve"}),
        ],
    ),
)
def test_a_shell_completes_commands_and_options(words, number, expected):
    """The form is that of the `--install-completion` script."""
    variables = {**os.environ, "_LOWTIDE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    ended = subprocess.run(
        [sys.executable, "-m", "lowtide.cli.main"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert set(ended.stdout.split()) == expected, ended.stderr


def test_ctrl_c_while_a_command_is_imported_is_no_traceback(monkeypatch):
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("lowtide.cli.main._run", interrupted)
    assert main(["topics"]) == 130


def test_version(capsys):
    """It is the version of the package."""
    assert main(["version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize("command", ["serve", "dev", "keys", "repair-log-start"])
def test_each_command_has_help(command, capsys):
    """`--help` ends with 0 and prints the usage."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: lowtide {command}" in capsys.readouterr().out


def test_keys_prints_the_page(capsys):
    """The source of the documentation's page."""
    assert main(["keys"]) == 0
    assert capsys.readouterr().out == configuration_page()


def test_sources_are_merged_in_order(tmp_path, monkeypatch):
    """File, then environment, then --set; caps have their own flag."""
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\nnum.partitions=1\nlog.dirs=one\nbroker.rack=r\u00e9\n", encoding="utf-8")
    monkeypatch.setattr(
        "lowtide.cli.options.environment", lambda: {"LOWTIDE_NUM_PARTITIONS": "2", "LOWTIDE_LOG_DIRS": "two"}
    )
    words = [
        "--config",
        str(file),
        "--set",
        "log.dirs=x",
        "--set",
        "log.dirs=three",
        "--max-version",
        "DeleteRecords=2",
    ]
    config = load_config(given=given_configuration(_parser().parse_args(words)))
    assert (config.node_id, config.num_partitions, config.log_dirs, config.broker_rack) == (1, 2, ("three",), "r\u00e9")
    assert list(config.max_versions.values()) == [2]
    assert config.given["node.id"].source == "server.properties line 1"


@pytest.mark.parametrize(
    ("words", "variable", "expected"),
    [
        ([], None, "INFO"),
        ([], "DEBUG", "DEBUG"),
        (["--set", "lowtide.log.level=WARN"], "DEBUG", "WARN"),
        (["--log-level", "error", "--set", "lowtide.log.level=WARN"], None, "ERROR"),
    ],
)
def test_the_level_of_the_log_is_an_option(words, variable, expected, monkeypatch):
    """A setting is an option, a key, and a variable, which has Lowtide's name once."""
    monkeypatch.setattr(
        "lowtide.cli.options.environment", lambda: {} if variable is None else {"LOWTIDE_LOG_LEVEL": variable}
    )
    config = load_config(given=given_configuration(_parser().parse_args(words)))
    assert level_of_start(config.values) == LEVELS[expected]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--set", "lowtide.log.level=LOUD"], "allowed is one of FATAL, ERROR, WARN, INFO, DEBUG, TRACE"),
        (["--set", "num.partitions=0"], "num.partitions=0"),
        (["--set", "num.partitions"], "--set num.partitions has no value"),
        (["--set", "no.such.key=1"], "no.such.key"),
        (["--max-version", "DeleteRecords=4"], "from 0 to 3 (in --max-version DeleteRecords)"),
        (["--max-version", "BrokerRegistration=4"], "BrokerRegistration"),
        (["--max-version", "Fetch"], "--max-version Fetch has no value: allowed is --max-version API=version"),
    ],
)
def test_a_wrong_setting_is_refused_with_a_message(arguments, part, capsys):
    """It names the argument."""
    assert part in refused(capsys, *arguments)


def test_a_wrong_variable_is_refused_with_a_message(capsys, monkeypatch):
    """It names the variable."""
    monkeypatch.setattr("lowtide.cli.options.environment", lambda: {"LOWTIDE_NUM_PARTITIONS": "many"})
    assert "(in LOWTIDE_NUM_PARTITIONS)" in refused(capsys)


def test_a_wrong_line_is_refused_with_a_message(capsys, tmp_path):
    """It names file and line."""
    file = tmp_path / "server.properties"
    file.write_text("# mine\nnum.partitions=none\n")
    assert "(in server.properties line 2)" in refused(capsys, "--config", str(file))


def test_a_file_that_cannot_be_read_is_refused_with_a_message(capsys, tmp_path):
    """It is missing, a directory, or not a text."""
    assert "No such file" in refused(capsys, "--config", str(tmp_path / "missing"))
    assert "directory" in refused(capsys, "--config", str(tmp_path))
    (tmp_path / "latin1").write_bytes(b"broker.rack=r\xe9\n")
    assert "not UTF-8 text: byte 13" in refused(capsys, "--config", str(tmp_path / "latin1"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_broker_refuses_to_run_without_its_assertions():
    """`python -O` drops the checks that stop a broker before it does damage."""
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
    "importlib.metadata",
    "grpc",
    "pandas",
    "numpy",
    "difflib",
    "unittest",
    "joserfc",
    "http.client",
    "lowtide.broker.config.oauth_settings",
)


def test_serve_imports_little():
    """A start must take a fraction of a second, so it must not load what it does not need.

    Help loads almost nothing.
    """
    program = f"import lowtide.cli.main, {{module}}\n{LOADED}"
    of_serve = run("-c", program.format(module="lowtide.cli.serve")).stdout.split()
    assert "lowtide.broker.config.broker_config" in of_serve
    assert [name for name in HEAVY if name in of_serve] == []
    assert [name for name in of_serve if name.startswith("lowtide.testing")] == []
    of_serving = run(
        "-c", f"import lowtide.cli.main as m\nm.main(['serve', '--set', 'node.id'])\n{LOADED}"
    ).stdout.split()
    assert "lowtide.broker.config.broker_config" in of_serving
    assert [name for name in of_serving if name in HEAVY or name.startswith("lowtide.admin")] == []
    of_help = run("-c", program.format(module="lowtide.cli.main")).stdout.split()
    assert [name for name in of_help if name.startswith(("lowtide.broker", "lowtide.storage", "asyncio"))] == []


def test_a_broker_listens_without_the_imports_of_other_commands(tmp_path):
    """By then all imports of the broker have run; Typer, rich and the client are not among them."""
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
    assert [
        name
        for name in loaded
        if name.partition(".")[0] in ("typer", "rich", "pydantic", "joserfc", "aiofiles")
        or name.startswith("lowtide.admin")
    ] == []


def test_the_open_file_limit_is_raised_to_its_maximum():
    """Runs in a separate process, because the limit stays raised."""
    program = (
        "import resource\nfrom lowtide.runtime.process import raise_open_file_limit\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "print(raise_open_file_limit() == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    ended = run("-c", program)
    assert ended.stdout.strip() == "True", ended.stderr


def test_the_module_is_imported_from_this_tree():
    """An editable install must not hide an older copy."""
    assert (
        Path(sys.modules["lowtide.cli.main"].__file__ or "").resolve().parents[1] == Path(__file__).resolve().parents[3]
    )


def test_a_refused_start_leaves_the_collector_running(capsys):
    """`serve` imports without it."""
    assert main(["serve", "--set", "no.such.key=1"]) == 2
    assert "no.such.key" in capsys.readouterr().err
    assert gc.isenabled()
