"""A certificate authority and the certificates that it signs, in PEM: values in, values out.

Keys are P-256. A certificate serves both sides of a connection: a broker shows it to clients, and as a client to other
brokers and to etcd. This module imports cryptography, which is slow: import it only where certificates are created.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
RENEWAL_DAYS: Final = 90
"""A certificate with less time left is renewed. An authority is renewed before one of its certificates would outlive
it."""

_BEFORE: Final = timedelta(hours=1)
"""Certificates are valid this long before their creation, because clients' clocks differ."""

_BOTH_SIDES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class CertificateWithKey(msgspec.Struct, frozen=True):
    """A certificate and its private key, in PEM. `repr` shows neither."""

    certificate: bytes
    key: bytes

    @property
    def both(self) -> bytes:
        """The key and the certificate, for one file."""
        return self.key + self.certificate

    def __repr__(self) -> str:
        return "CertificateWithKey()"


def new_authority(name: str, now_ms: int) -> CertificateWithKey:
    """Returns a self-signed authority with a new key."""
    return _signed_by_itself(name, ec.generate_private_key(ec.SECP256R1()), now_ms)


def renewed_authority(authority: CertificateWithKey, now_ms: int) -> CertificateWithKey:
    """Returns the authority, with the same name and key but a new end if a certificate of today would outlive it.

    Certificates that it has signed stay valid. Errors: ValueError.
    """
    certificate = x509.load_pem_x509_certificate(authority.certificate)
    if _moment(now_ms) + timedelta(days=CERTIFICATE_DAYS) < certificate.not_valid_after_utc:
        return authority
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return _signed_by_itself(str(name.value), _key(authority.key), now_ms)


def issue(
    authority: CertificateWithKey, name: str, hosts: Sequence[str], now_ms: int, *, is_client: bool = True
) -> CertificateWithKey:
    """Returns a certificate with the subject `CN=name` for a server at `hosts` (names or addresses).

    `is_client`: it also identifies a client. Errors: ValueError.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = _key(authority.key)
    builder = _builder(name, issuer.subject, key, now_ms, CERTIFICATE_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(
        x509.ExtendedKeyUsage(_BOTH_SIDES if is_client else _BOTH_SIDES[:1]), critical=False
    )
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        )
    return _certified(builder.sign(signer, SHA256()), key)


def needs_renewal(certificate: bytes, authority: CertificateWithKey, hosts: Sequence[str], now_ms: int) -> bool:
    """Returns whether a certificate is near its end, lacks one of the hosts, or is from another authority.

    Errors: ValueError.
    """
    found = x509.load_pem_x509_certificate(certificate)
    if found.not_valid_after_utc - _moment(now_ms) < timedelta(days=RENEWAL_DAYS):
        return True
    try:
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
        names = set(found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = set()
    except (InvalidSignature, TypeError):
        return True
    return not {_general_name(host) for host in hosts} <= names


def hosts_of(certificate: bytes) -> list[str]:
    """Returns the names and addresses of a certificate. Errors: ValueError."""
    try:
        names = (
            x509.load_pem_x509_certificate(certificate)
            .extensions.get_extension_for_class(x509.SubjectAlternativeName)
            .value
        )
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _signed_by_itself(name: str, key: ec.EllipticCurvePrivateKey, now_ms: int) -> CertificateWithKey:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(name, subject, key, now_ms, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _certified(builder.add_extension(_usage(signs=True), critical=True).sign(key, SHA256()), key)


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now_ms: int, days: int
) -> x509.CertificateBuilder:
    now = _moment(now_ms)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Returns the key usage of an authority (`signs`) or of a certificate for connections."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certified(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertificateWithKey:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return CertificateWithKey(certificate.public_bytes(Encoding.PEM), private)


def _key(text: bytes) -> ec.EllipticCurvePrivateKey:
    """Loads the key. Errors: ValueError."""
    key = load_pem_private_key(text, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        message = "the key is of another kind"
        raise ValueError(message)  # noqa: TRY004  its content is wrong, not what a caller passed
    return key


def _general_name(host: str) -> x509.GeneralName:
    """Returns the name. Errors: ValueError for a name that isn't ASCII."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _moment(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC)
