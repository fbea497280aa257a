"""TLS contexts of a client from certificates and keys in PEM, which Python's `ssl` reads.

Trusted certificates and our own come as files or as texts. A private key given as text passes through a private
temporary file, because OpenSSL reads nothing else.
"""

from __future__ import annotations

import ssl
import tempfile
from typing import Final

import msgspec


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS settings of a client. `repr` shows neither keys nor passwords.

    Can be pickled; files are read where the context is created, and must exist there.
    """

    authorities_file: str | None = None
    """Trusted certificates in PEM; without file and text, the system's."""
    authorities_text: str | None = None
    certificate_file: str | None = None
    """Our certificate and its intermediate certificates, perhaps with the key, in PEM."""
    certificate_text: str | None = None
    key_file: str | None = None
    """Our private key, if it isn't in the certificate's file."""
    key_text: str | None = None
    key_password: str | None = None
    check_host_name: bool = True
    check_certificate: bool = True
    """If False, any server is accepted: for tests only."""
    ciphers: str | None = None
    """In OpenSSL's form; for TLS 1.2 and older."""
    minimum_version: str | None = None
    """`TLSv1.2` or `TLSv1.3`; None means Python's default."""

    def __repr__(self) -> str:
        return f"TlsSettings(authorities={self.authorities_file!r}, certificate={self.certificate_file!r}, key=...)"


class TlsError(ValueError):
    """A context that can't be created: one message, without secrets."""


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Returns a context for connections to brokers. Touches files. Errors: TlsError."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    try:
        if settings.authorities_file is not None or settings.authorities_text is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cafile=settings.authorities_file, cadata=settings.authorities_text)
    except (OSError, ssl.SSLError) as error:
        place = settings.authorities_file or "the text"
        raise TlsError(f"the trusted certificates of {place} can't be read as PEM: {reason_of(error)}") from error
    if settings.certificate_file is not None or settings.certificate_text is not None:
        _load_certificate(context, settings)
    try:
        if settings.ciphers is not None:
            context.set_ciphers(settings.ciphers)
    except ssl.SSLError as error:
        raise TlsError(f"OpenSSL knows none of the ciphers {settings.ciphers}") from error
    if settings.minimum_version is not None:
        context.minimum_version = VERSIONS[settings.minimum_version]
    context.check_hostname = settings.check_host_name and settings.check_certificate
    if not settings.check_certificate:
        context.verify_mode = ssl.CERT_NONE
    return context


VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Makes the context show our certificate. Errors: TlsError."""
    shown = settings.certificate_file or "the text"
    try:
        if settings.certificate_text is None and settings.key_text is None:
            assert settings.certificate_file is not None
            context.load_cert_chain(settings.certificate_file, settings.key_file, lambda: settings.key_password or "")
            return
        with tempfile.NamedTemporaryFile(prefix="lowtide-", suffix=".pem") as file:  # mode 0600
            file.write(f"{settings.key_text or ''}\n{settings.certificate_text or ''}\n".encode())
            file.flush()
            certificate = file.name if settings.certificate_text is not None else str(settings.certificate_file)
            context.load_cert_chain(
                certificate, file.name if settings.key_text else settings.key_file, lambda: settings.key_password or ""
            )
    except (OSError, ssl.SSLError) as error:
        raise TlsError(
            f"our certificate and key of {shown} can't be read as PEM, or don't fit together: {reason_of(error)}"
        ) from error


def reason_of(error: Exception) -> str:
    """Describes an error of a certificate in a few words; the text of an SSLError may be long."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").lower().replace("_", " ")
    return getattr(error, "strerror", None) or "not PEM"
