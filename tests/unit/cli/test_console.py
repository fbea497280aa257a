"""The logins of visitors of `lowtide console`, by the command's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.admin.receipts.signing_keys import create_key
from lowtide.cli.console import console_settings, usable_key
from lowtide.cli.outcome import CommandError
from lowtide.console.settings import LoginKind
from lowtide.runtime.filesystem import OsFileSystem

SASL = "security.protocol=SASL_PLAINTEXT\n"


def settings_of(folder: Path, text: str, *, write: bool = False):
    file = folder / "client.properties"
    file.write_text(text, encoding="utf-8")
    return console_settings("a:1", str(file), write=write)


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
