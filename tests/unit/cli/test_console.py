"""The logins of visitors of `lowtide console`, by the command's settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from lowtide.admin.receipts.signing_keys import create_key
from lowtide.cli.app import run
from lowtide.cli.console import ListenOptions, console_settings, place_of, served, usable_key
from lowtide.cli.console_server import CertificateFiles, Entrance
from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.console.own_users import Role, line_of, new_user, parse_users
from lowtide.console.settings import LoginKind
from lowtide.runtime.filesystem import OsFileSystem

SASL = "security.protocol=SASL_PLAINTEXT\n"


def settings_of(folder: Path, text: str, *, write: bool = False, login: str | None = None):
    file = folder / "client.properties"
    file.write_text(text, encoding="utf-8")
    return console_settings("a:1", str(file), write=write, login=login)


def test_a_cluster_without_logins_is_shown_to_who_has_the_address(tmp_path: Path):
    """A proxy on this machine, or another user of it, reaches the port too."""
    settings = settings_of(tmp_path, "")
    assert (settings.login, settings.write, len(settings.token or "")) == (LoginKind.TOKEN, False, 48)
    assert settings_of(tmp_path, "", write=True).write


def test_sasl_without_a_name_lets_visitors_log_in(tmp_path: Path):
    settings = settings_of(tmp_path, SASL)
    assert (settings.login, settings.client.sasl, settings.client.tls) == (LoginKind.PASSWORD, None, None)
    assert settings_of(tmp_path, "security.protocol=SASL_SSL\n").client.tls is not None
    assert settings_of(tmp_path, SASL + "sasl.mechanism=SCRAM-SHA-256\n").mechanisms == ("SCRAM-SHA-256",)


def test_a_login_of_the_settings_is_for_who_has_the_address(tmp_path: Path):
    login = SASL + "sasl.mechanism=PLAIN\nsasl.username=admin\nsasl.password=hidden\n"
    one, other = settings_of(tmp_path, login), settings_of(tmp_path, login)
    assert one.login is LoginKind.TOKEN
    assert one.token != other.token
    assert len(one.token or "") == 48
    assert "hidden" not in repr(one)
    assert str(one.token) not in repr(one)


def test_a_mechanism_that_visitors_cannot_use_is_refused(tmp_path: Path):
    with pytest.raises(CommandError, match="sasl.mechanism is GSSAPI"):
        settings_of(tmp_path, SASL + "sasl.mechanism=GSSAPI\n")


def options(**given) -> ListenOptions:
    return ListenOptions(**given)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        (":8080", ("", 8080)),
        ("[::]:80", ("::", 80)),
        ("console.example:443", ("console.example", 443)),
    ],
)
def test_where_it_listens(text: str, place: tuple[str, int]):
    assert place_of(options(listen=text)) == place
    assert place_of(options(port=7)) == ("127.0.0.1", 7)
    assert place_of(options()) == ("127.0.0.1", None)


@pytest.mark.parametrize("text", ["8080", "0.0.0.0", "host:", "host:port", "host:65536", "::1:80", "[::1:80"])
def test_an_address_without_host_or_port_is_refused(text: str):
    with pytest.raises(CommandError, match="it must be HOST:PORT"):
        place_of(options(listen=text))


def test_two_ports_are_refused():
    with pytest.raises(CommandError, match="leave out --port"):
        place_of(options(listen="0.0.0.0:80", port=80))


@pytest.mark.parametrize(
    ("host", "is_open"),
    [("127.0.0.1", False), ("::1", False), ("localhost", False), ("", True), ("0.0.0.0", True), ("example", True)],
)
def test_other_machines_reach_all_but_loopback(host: str, is_open: bool):
    assert Entrance(host=host).is_open is is_open


@pytest.mark.parametrize(
    ("login", "text", "sentence"),
    [
        ("cluster", "", "needs security.protocol=SASL_SSL or SASL_PLAINTEXT"),
        ("cluster", SASL + "sasl.username=a\nsasl.password=b\n", "visitors use their own: leave it out"),
        ("token", SASL, "the console needs a login of its own"),
        ("users:x", SASL, "the console needs a login of its own"),
        ("users", "", "it must be cluster, users:FILE or token"),
        ("none", "", "it must be cluster, users:FILE or token"),
        ("users:/missing", "", "/missing can't be read"),
    ],
)
def test_logins_that_cannot_work_are_refused(tmp_path: Path, login: str, text: str, sentence: str):
    with pytest.raises(CommandError, match=re.escape(sentence)):
        settings_of(tmp_path, text, login=login)


def test_users_of_the_console_come_from_a_private_file(tmp_path: Path):
    users = tmp_path / "users"
    users.write_text("# nobody yet\n")
    with pytest.raises(CommandError, match="other users may read the file"):
        settings_of(tmp_path, "", login=f"users:{users}")
    users.chmod(0o600)
    with pytest.raises(CommandError, match="the file has no user"):
        settings_of(tmp_path, "", login=f"users:{users}")
    users.write_text(line_of("alice", new_user(Role.READ, "right", Random(1), iterations=1)))
    settings = settings_of(tmp_path, "", login=f"users:{users}")
    assert (settings.login, settings.token, settings.mechanisms) == (LoginKind.USERS, None, ())
    assert settings.users is not None
    assert settings.users.of("alice") is not None


def test_other_machines_are_not_served_without_a_word_about_logins(capsys: pytest.CaptureFixture[str]):
    assert run(["console", "--listen", "0.0.0.0:0"]) == ExitCode.MISUSED
    assert "--login must say how visitors log in" in capsys.readouterr().err


def test_what_is_served_is_said_in_one_line(tmp_path: Path):
    settings = settings_of(tmp_path, SASL, write=True)
    text = served(settings, Entrance(host="0.0.0.0"))
    assert text.startswith(
        "It shows the cluster at a:1 to users of the cluster (SCRAM-SHA-512, SCRAM-SHA-256, PLAIN), on"
    )
    assert "They may make changes." in text
    assert "passwords are readable" in text
    quiet = served(settings_of(tmp_path, ""), Entrance())
    assert quiet.endswith(
        "to all who have this address, on this machine only. It is read-only; --write allows changes."
    )


def test_users_of_the_console_are_added_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, password = str(tmp_path / "users"), tmp_path / "password"
    password.write_text("right\n")
    words = ["--file", file, "--password-file", str(password)]
    assert run(["console-users", "add", "alice", *words, "--role", "write"]) == 0
    assert run(["console-users", "add", "bob", *words]) == 0
    assert Path(file).stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    assert run(["console-users", "list", "--file", file, "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["users"]
    assert listed == [{"user": "alice", "role": "write"}, {"user": "bob", "role": "read"}]
    assert run(["console-users", "add", "alice", *words]) == 0
    assert parse_users(Path(file).read_text(), file)["alice"].proves("right")
    assert run(["console-users", "remove", "alice", "--file", file]) == 0
    assert list(parse_users(Path(file).read_text(), file)) == ["bob"]
    assert run(["console-users", "remove", "alice", "--file", file]) == ExitCode.FAILED
    assert "has no user alice" in capsys.readouterr().err
    assert run(["console-users", "add", "a:b", *words]) == ExitCode.MISUSED


def test_a_renewed_certificate_is_used_and_a_damaged_one_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    certificates = Path(__file__).parents[2] / "clients" / "certificates"
    both = (certificates / "key.pem").read_bytes() + (certificates / "certificate.pem").read_bytes()
    file = tmp_path / "both.pem"
    file.write_bytes(both)
    files = CertificateFiles(str(file), None)
    first = files.context()
    assert files.context() is first
    file.write_bytes(both + b"\n")
    second = files.context()
    assert second is not first
    file.write_bytes(b"damaged")
    assert [files.context(), files.context()] == [second, second]
    assert capsys.readouterr().err.count("the last valid certificate stays in use") == 1


def test_a_signing_key_that_cant_sign_is_refused_at_the_start(tmp_path: Path):
    key = tmp_path / "audit.key"
    with pytest.raises(CommandError, match="No such file"):
        usable_key(str(key))
    create_key(OsFileSystem(), str(key))
    assert usable_key(str(key)) == str(key)
    Path(f"{key}.chain").unlink()
    with pytest.raises(CommandError, match="is missing"):
        usable_key(str(key))
    key.chmod(0o644)
    with pytest.raises(CommandError, match="chmod 600"):
        usable_key(str(key))


STOPPED_AT_ONCE = """
import builtins, os, signal, sys
from lowtide.cli import console
from lowtide.cli.main import main

def said(*words, **options):
    builtins.print(*words, **options)
    os.kill(os.getpid(), signal.SIGTERM)

console.print = said
sys.argv = ["lowtide", "console", "--port", "0", "-b", "127.0.0.1:1"]
main()
"""


def test_a_console_stops_in_order_as_soon_as_its_address_is_known():
    """Protects scripts that wait for the address: the process died by the signal."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_ONCE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout[:18]) == (0, "The console is at "), done
