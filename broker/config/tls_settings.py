"""TLS settings of a listener: key store, trust store, client certificates, versions, ciphers.

PEM comes from files or from the configuration itself, PKCS12 from files. Java's own format is refused with the command
that converts it. `lifecycle/certificates` reads the files.

Sources: Kafka's `SslConfigs`, `DefaultSslEngineFactory`, KIP-651 (PEM).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from lowtide.broker.config.key import LISTENER_PREFIX, InvalidKeysError, Value
from lowtide.broker.config.listener_keys import ListenerKeys
from lowtide.broker.security.principal_mapping import MappingError, Rule, parse_rules

PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"
STORE_KEYS: Final = frozenset(
    {
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
    }
    | {"ssl.key.password"}
    | {"ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.certificates"}
)
"""The settings of a listener that can change at runtime. Source: Kafka's `SslConfigs.RECONFIGURABLE_CONFIGS`."""
TRUST_PREFIX: Final = "ssl.truststore."
"""The prefix of those that determine trusted client certificates."""
VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


class Store(msgspec.Struct, frozen=True):
    """A key store or a trust store: a file, or PEM texts. `repr` hides secrets."""

    kind: str
    location: str = ""
    password: str = ""
    certificates: str = ""
    key: str = ""
    key_password: str = ""

    def __repr__(self) -> str:
        return f"Store({self.kind}, {self.location!r})"


class TlsListener(msgspec.Struct, frozen=True):
    """The TLS settings of one listener."""

    key_store: Store
    trust_store: Store | None
    client_auth: str
    protocols: tuple[str, ...]
    ciphers: str
    """In OpenSSL's format; empty for its default."""
    rules: tuple[Rule, ...]
    checks_host: bool
    """Whether this broker verifies the host names in other brokers' certificates."""
    may_change_subject: bool = False
    """Whether a renewed certificate can have a different subject (`ssl.allow.dn.changes`)."""
    may_lose_names: bool = False
    """Whether a renewed certificate can lack an alternative name of the previous one (`ssl.allow.san.changes`)."""


def store_listener(name: str) -> str | None:
    """Returns the listener of a store key; None for any other key and for keys of all listeners."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    prefixed, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    return prefixed.upper() if rest in STORE_KEYS and prefixed == prefixed.lower() else None


def is_of_trust_store(name: str) -> bool:
    """Returns whether a key belongs to the trust store of a listener."""
    return store_listener(name) is not None and name.removeprefix(LISTENER_PREFIX).partition(".")[2].startswith(
        TRUST_PREFIX
    )


def tls_listener(values: Mapping[str, Value], given: Collection[str], listener_name: str) -> TlsListener:
    """Returns the TLS settings of a listener. Errors: InvalidKeysError."""
    keys = ListenerKeys(values, given, listener_name)
    client_auth = keys.text("ssl.client.auth")
    trust_store = _trust_store(keys)
    if client_auth != "none" and trust_store is None:
        name = _name(keys, "ssl.client.auth")
        message = f"{name}={client_auth} requires ssl.truststore.location or ssl.truststore.certificates"
        raise InvalidKeysError(message, name)
    try:
        rules = parse_rules(keys.text("ssl.principal.mapping.rules"))
    except MappingError as error:
        name = _name(keys, "ssl.principal.mapping.rules")
        raise InvalidKeysError(f"{name} is invalid: {error}", name) from None
    return TlsListener(
        key_store=_key_store(keys, listener_name),
        trust_store=trust_store,
        client_auth=client_auth,
        protocols=_protocols(keys),
        ciphers=_ciphers(keys),
        rules=rules,
        checks_host=_checks_host(keys),
        may_change_subject=keys.value("ssl.allow.dn.changes") is True,
        may_lose_names=keys.value("ssl.allow.san.changes") is True,
    )


def _name(keys: ListenerKeys, key: str) -> str:
    return keys.given_name(key) or key


def _key_store(keys: ListenerKeys, listener_name: str) -> Store:
    chain, location = keys.text("ssl.keystore.certificate.chain"), keys.text("ssl.keystore.location")
    if not chain and not location:
        message = (
            f"the listener {listener_name} uses TLS but has no certificate: set ssl.keystore.location with "
            "ssl.keystore.type PEM or PKCS12, "
            "or ssl.keystore.certificate.chain and ssl.keystore.key"
        )
        raise InvalidKeysError(message, "listeners", "listener.security.protocol.map")
    kind = _kind(keys, "keystore", location, chain)
    key_password = keys.text("ssl.key.password")
    return Store(kind, location, keys.text("ssl.keystore.password"), chain, keys.text("ssl.keystore.key"), key_password)


def _trust_store(keys: ListenerKeys) -> Store | None:
    certificates, location = keys.text("ssl.truststore.certificates"), keys.text("ssl.truststore.location")
    if not certificates and not location:
        return None
    kind = _kind(keys, "truststore", location, certificates)
    return Store(kind, location, keys.text("ssl.truststore.password"), certificates)


def _kind(keys: ListenerKeys, store: str, location: str, text: str) -> str:
    """Returns the format of a store. Errors: InvalidKeysError."""
    key = f"ssl.{store}.type"
    name = _name(keys, key)
    kind = keys.text(key).upper()
    if text and location:
        message = f"ssl.{store}.location and certificates in the configuration cannot both be set"
        raise InvalidKeysError(message, _name(keys, f"ssl.{store}.location"))
    if kind == JKS:
        if text:
            message = f"{name}={kind} is invalid with certificates in the configuration: allowed is {PEM}"
        else:
            message = (
                f"{name}={kind} is invalid, because Java's format cannot be read: convert the file with `keytool "
                "-importkeystore -srckeystore "
                f"{location} -destkeystore {location}.p12 -deststoretype PKCS12`, and set {name}=PKCS12 and the new "
                "location"
            )
        raise InvalidKeysError(message, name, _name(keys, f"ssl.{store}.location"))
    if kind not in (PEM, PKCS12) or (text and kind != PEM):
        raise InvalidKeysError(f"{name}={kind} is invalid: allowed are {PEM} and, for files, {PKCS12}", name)
    return kind


def _protocols(keys: ListenerKeys) -> tuple[str, ...]:
    found = keys.texts("ssl.enabled.protocols")
    if not found or not set(found) <= set(VERSIONS):
        name = _name(keys, "ssl.enabled.protocols")
        raise InvalidKeysError(f"{name}={','.join(found)} is invalid: allowed are {', '.join(VERSIONS)}", name)
    return found


def _checks_host(keys: ListenerKeys) -> bool:
    key = "ssl.endpoint.identification.algorithm"
    algorithm = keys.text(key).lower()
    if algorithm not in ("https", ""):
        message = f"{_name(keys, key)}={algorithm} is invalid: allowed is https, or nothing"
        raise InvalidKeysError(message, _name(keys, key))
    return algorithm == "https"


def _ciphers(keys: ListenerKeys) -> str:
    """Converts cipher names of Java, `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`, to those of OpenSSL.

    Errors: InvalidKeysError.
    """
    names = []
    for suite in keys.texts("ssl.cipher.suites"):
        if suite.startswith("TLS_") and "_WITH_" not in suite:
            name = _name(keys, "ssl.cipher.suites")
            message = (
                f"{name} has {suite}, a cipher of TLS 1.3, which is not configurable: allowed are ciphers of TLS 1.2"
            )
            raise InvalidKeysError(message, name)
        names.append(_openssl_name(suite))
    return ":".join(names)


def _openssl_name(suite: str) -> str:
    if not suite.startswith("TLS_"):
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = (
        cipher.replace("AES_128", "AES128")
        .replace("AES_256", "AES256")
        .removesuffix("_SHA256" if "POLY1305" in cipher else "\0")
    )
    return "-".join(
        filter(
            None,
            ("" if exchange == "RSA" else exchange.replace("_", "-"), cipher.replace("_", "-").replace("-CBC", "")),
        )
    )
