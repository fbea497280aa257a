"""The request for a client's certificate names the authorities that are trusted, as Kafka's does."""

from __future__ import annotations

import ssl
import subprocess
import sys
from contextlib import suppress

import pytest
import trustme
from cryptography import x509

from lowtide.runtime import client_authorities
from lowtide.runtime.client_authorities import NAMES_BYTES_MAX, name_authorities
from lowtide.runtime.server_tls import ServerMaterial, server_context

OURS, OTHER = trustme.CA(organization_name="Ours"), trustme.CA(organization_name="Other")
SERVER = OURS.issue_cert("localhost")


def pem(*authorities: trustme.CA) -> bytes:
    return b"".join(each.cert_pem.bytes() for each in authorities)


def subject(authority: trustme.CA) -> bytes:
    return x509.load_pem_x509_certificate(authority.cert_pem.bytes()).subject.public_bytes()


def first_flight(server: ssl.SSLContext) -> bytes:
    """What a server answers to a client's first message, by TLS 1.2, in which that can be read."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode, client.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking, asked = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    for side in (asking, asked):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return to_client.read()


def context(client_auth: str, *authorities: trustme.CA) -> ssl.SSLContext:
    material = ServerMaterial(SERVER.private_key_and_cert_chain_pem.bytes(), authorities=pem(*authorities))
    return server_context(material, client_auth=client_auth, protocols=("TLSv1.2", "TLSv1.3"))


def test_each_authority_is_named_once() -> None:
    """However often it is in the store. OURS has signed the server's own certificate, which names it too."""
    server = context("required", OTHER)
    assert name_authorities(server, pem(OTHER, OURS, OTHER).decode())
    flight = first_flight(server)
    assert flight.count(subject(OTHER)) == 1
    assert flight.count(subject(OURS)) == first_flight(context("none")).count(subject(OURS)) + 1


@pytest.mark.parametrize(
    "text", ["", "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n", "-----BEGIN CERTIFICATE-----"]
)
def test_what_is_no_certificate_names_nothing(text: str) -> None:
    assert not name_authorities(context("none"), text)


def test_more_names_than_there_is_room_for_are_left_out() -> None:
    """The handshake would fail. Without names a client shows the certificate that it has."""
    many = [trustme.CA(organization_name=f"{number:03}" * 20, organization_unit_name="u" * 60) for number in range(2)]
    size = len(subject(many[0])) + 2
    server = context("none")
    repeated = "".join(pem(each).decode() for each in many)
    assert 2 * size < NAMES_BYTES_MAX
    assert name_authorities(server, repeated)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_authorities, "NAMES_BYTES_MAX", 2 * size - 1)
        assert not name_authorities(context("none"), repeated)


def test_a_python_that_is_not_known_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = context("none")
    for name, value in (("KNOWN", ((3, 8), (3, 8))), ("_ssl", object())):
        with monkeypatch.context() as patch:
            patch.setattr(client_authorities, name, value)
            client_authorities._openssl.cache_clear()
            assert not name_authorities(server, pem(OTHER).decode())
    client_authorities._openssl.cache_clear()
    assert name_authorities(server, pem(OTHER).decode())


@pytest.mark.slow
def test_the_memory_of_certificates_is_freed() -> None:
    """A listener's stores are read again as long as a broker runs.

    In a process of its own, so that other tests' memory doesn't count.
    """
    program = """
import os, ssl, sys
from lowtide.runtime.client_authorities import name_authorities
text = sys.stdin.read()
def used(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def some(count):
    for _ in range(count): assert name_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), text)
some(500)
before = used()
some(5_000)
print(used() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], input=pem(OURS), capture_output=True, check=True)
    assert int(done.stdout) < 5_000_000, "each certificate takes two kilobytes"
