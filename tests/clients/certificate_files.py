"""Certificates of brokers and clients in files, issued again and again, and which of them a broker shows."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Any

import trustme
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from cryptography.x509 import load_pem_x509_certificates

WAIT_S = 30
SUBJECT = {"common_name": "broker", "organization_name": "Lowtide", "organization_unit_name": "tests"}


def issue(authority: trustme.CA, folder: Path, *names: str, file: str = "server.pem", **subject: str) -> None:
    """Writes a new certificate for `names` or this machine, with the given subject or a new one."""
    made = folder / "made.pem"
    issued = authority.issue_cert(*(names or ("127.0.0.1", "localhost")), **(SUBJECT | subject))
    issued.private_key_and_cert_chain_pem.write_to_path(str(made))
    made.rename(folder / file)


def trust(folder: Path, *authorities: trustme.CA, file: str = "ca.pem") -> None:
    """Writes the trusted certificates, in one step."""
    made = folder / "made-ca.pem"
    made.write_bytes(b"".join(authority.cert_pem.bytes() for authority in authorities))
    made.rename(folder / file)


def shown_serial(port: int, own: str | None = None) -> int:
    """Returns the serial number of the broker's certificate. `own` is the file of the client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if own is not None:
        context.load_cert_chain(own)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain, context.wrap_socket(plain) as secure:
        certificate = secure.getpeercert(binary_form=True)
    assert certificate is not None
    return load_pem_x509_certificates(ssl.DER_cert_to_PEM_cert(certificate).encode())[0].serial_number


def serial_of(file: Path) -> int:
    """Returns the number of the first certificate of a file."""
    return load_pem_x509_certificates(file.read_bytes())[0].serial_number


def wait_for_another(port: int, serial: int, own: str | None = None) -> int:
    """Returns the number of the certificate that is shown after the one with this number."""
    give_up = time.monotonic() + WAIT_S
    while time.monotonic() < give_up:
        shown = shown_serial(port, own)
        if shown != serial:
            return shown
        time.sleep(0.05)
    raise AssertionError("the renewed certificate is never shown")


def alter_broker(client: AdminClient, changes: dict[str, str | None], broker: str = "0") -> None:
    """Sets keys of a broker, or deletes those that are None. Errors: KafkaException."""
    entries: Any = [
        ConfigEntry(
            name, text, incremental_operation=AlterConfigOpType.DELETE if text is None else AlterConfigOpType.SET
        )
        for name, text in changes.items()
    ]
    resource = ConfigResource(ResourceType.BROKER, broker, incremental_configs=entries)
    for outcome in client.incremental_alter_configs([resource]).values():
        outcome.result(WAIT_S)
