"""The certificates of a listener: whom clients are asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.lifecycle import certificates as module
from lowtide.broker.lifecycle.certificates import Certificates
from tests.unit.runtime.test_client_authorities import OTHER, OURS, SERVER, first_flight, pem, subject


async def loaded(folder: Path, client_auth: str, *authorities: trustme.CA) -> tuple[Certificates, list[str]]:
    """The certificates of a listener that trusts these authorities, and the warnings of its log."""
    (folder / "server.pem").write_bytes(SERVER.private_key_and_cert_chain_pem.bytes())
    (folder / "ca.pem").write_bytes(pem(*authorities))
    config = load_config(
        settings={
            "listeners": "SSL://127.0.0.1:0",
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
            "ssl.client.auth": client_auth,
        }
    )
    warnings: list[str] = []
    log: Any = SimpleNamespace(warning=lambda event, **_: warnings.append(event), info=lambda *_args, **_: None)
    settings = config.secured_listeners["SSL"].tls
    assert settings is not None
    found = Certificates("SSL", settings, log)
    await found.load()
    return found, warnings


@pytest.mark.parametrize("client_auth", ["requested", "required"])
async def test_the_request_for_a_certificate_names_the_trust_store(tmp_path: Path, client_auth: str) -> None:
    """Also that of the next one."""
    listener, warnings = await loaded(tmp_path, client_auth, OTHER)
    assert subject(OTHER) in first_flight(listener.context())
    third = trustme.CA(organization_name="Third")
    (tmp_path / "ca.pem").write_bytes(pem(OURS, third))
    await listener.reload()
    flight = first_flight(listener.context())
    assert (subject(OTHER) in flight, subject(third) in flight) == (False, True)
    assert warnings == []


async def test_without_a_request_for_a_certificate_nothing_is_named(tmp_path: Path) -> None:
    listener, warnings = await loaded(tmp_path, "none", OTHER)
    assert subject(OTHER) not in first_flight(listener.context())
    assert warnings == []


async def test_that_authorities_cannot_be_named_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "name_authorities", lambda _context, _text: False)
    _, warnings = await loaded(tmp_path, "required", OTHER)
    assert len(warnings) == 1
    assert (await loaded(tmp_path, "none", OTHER))[1] == []
