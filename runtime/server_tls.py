"""TLS contexts of a server from certificates and keys in PEM or PKCS12.

OpenSSL reads a key only from a file: it is written to a private temporary file, which is removed afterwards.
"""

from __future__ import annotations

import ssl
import tempfile
from contextlib import suppress
from typing import Any, Final

import msgspec

from lowtide.runtime.tls import VERSIONS, TlsError, reason_of

CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

_FLIGHTS_MAX: Final = 8
"""TLS 1.2 takes four, each sent in one piece here."""


class ServerMaterial(msgspec.Struct, frozen=True):
    """A server's certificate, key and trusted authorities, in PEM. `repr` shows nothing of it."""

    certificate: bytes
    """The chain, our own certificate first; may include the key."""
    key: bytes = b""
    key_password: str = ""
    authorities: bytes = b""
    """Authorities that sign clients' certificates."""

    def __repr__(self) -> str:
        return "ServerMaterial()"


def server_context(
    material: ServerMaterial, *, client_auth: str, protocols: tuple[str, ...], ciphers: str = ""
) -> ssl.SSLContext:
    """Returns a context for accepted connections. Touches temporary files. Errors: TlsError.

    Sessions aren't resumed: that would bypass the check of a client certificate against changed authorities.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    _load(context, material, protocols)
    try:
        if ciphers:
            context.set_ciphers(ciphers)
    except ssl.SSLError:
        raise TlsError(f"OpenSSL knows none of the ciphers {ciphers}") from None
    context.verify_mode = CLIENT_AUTH[client_auth]
    return context


def peer_context(material: ServerMaterial, *, protocols: tuple[str, ...], checks_host: bool) -> ssl.SSLContext:
    """Returns a context for connections to peers. It presents our certificate.

    The peers' certificates must come from the authorities of `material`, or from the system's if it names none.
    Errors: TlsError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_host
    if not material.authorities:
        context.load_default_certs()
    _load(context, material, protocols)
    return context


def _load(context: ssl.SSLContext, material: ServerMaterial, protocols: tuple[str, ...]) -> None:
    """Loads versions, certificate and authorities. Errors: TlsError."""
    versions = sorted(VERSIONS[each] for each in protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    try:
        with tempfile.NamedTemporaryFile(prefix="lowtide-", suffix=".pem") as file:  # mode 0600
            file.write(b"\n".join((material.key, material.certificate, b"")))
            file.flush()
            context.load_cert_chain(file.name, password=lambda: material.key_password)
    except (OSError, ValueError) as error:
        raise TlsError(
            f"the certificate and its key can't be read, or don't fit together: {reason_of(error)}"
        ) from None
    try:
        if material.authorities:
            context.load_verify_locations(cadata=material.authorities.decode("ascii"))
    except (OSError, ValueError) as error:
        raise TlsError(f"the trusted certificates can't be read as PEM: {reason_of(error)}") from None


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Tries a handshake between a client and a server context, in memory. Errors: TlsError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    try:
        for side in sides * (_FLIGHTS_MAX // len(sides)):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLError as error:
        raise TlsError(reason_of(error)) from None


def _load_pkcs12(content: bytes, password: str) -> Any:
    """Loads a PKCS12 file. Errors: TlsError."""
    from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415 - slow import

    try:
        return pkcs12.load_pkcs12(content, password.encode() if password else None)
    except ValueError as error:
        raise TlsError("the PKCS12 file can't be read, or its password is wrong") from error


def key_store(content: bytes, password: str) -> ServerMaterial:
    """Returns the certificate, its chain and its key from a PKCS12 file. Errors: TlsError."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

    loaded = _load_pkcs12(content, password)
    if loaded.key is None or loaded.cert is None:
        raise TlsError("the PKCS12 file has no certificate with a key")
    chain = [loaded.cert, *loaded.additional_certs]
    certificates = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in chain)
    return ServerMaterial(certificates, loaded.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def trust_store(content: bytes, password: str) -> bytes:
    """Returns the certificates of a PKCS12 file, in PEM. Errors: TlsError."""
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - slow import

    loaded = _load_pkcs12(content, password)
    found = [*([loaded.cert] if loaded.cert is not None else []), *loaded.additional_certs]
    if not found:
        raise TlsError("the PKCS12 file has no certificate")
    return b"".join(each.certificate.public_bytes(Encoding.PEM) for each in found)


class CertificateNames(msgspec.Struct, frozen=True):
    """The names in a certificate."""

    subject: str
    alternatives: frozenset[str]
    """DNS names, addresses and others, each with its kind."""


def certificate_names(chain: bytes) -> CertificateNames:
    """Returns the names of the first certificate of a chain in PEM. Errors: TlsError."""
    from cryptography import x509  # noqa: PLC0415  takes long

    try:
        first = x509.load_pem_x509_certificates(chain)[0]
        names = [each.value for each in first.extensions if isinstance(each.value, x509.SubjectAlternativeName)]
    except ValueError as error:
        raise TlsError("the names of the certificate can't be read") from error
    return CertificateNames(first.subject.rfc4514_string(), frozenset(repr(name) for each in names for name in each))


def subject_name(certificate: bytes) -> str:
    """Returns the subject of a certificate in DER in RFC 2253 form: `CN=alice,OU=data,C=DE`. Errors: TlsError."""
    from cryptography import x509  # noqa: PLC0415  takes long

    try:
        return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
    except ValueError as error:
        raise TlsError("the subject of the client's certificate can't be read") from error
