"""Settings of a client, with the keys of Kafka's clients.

The keys are those of Kafka's Java client, and for TLS and SASL also those of librdkafka. Errors name the source, the
key and the value, except for secrets. `unused_keys` has the keys that this client does not use, for a warning:
producers and consumers often share a file of properties with it.

`ClientSettings` can be compared, and pickled for another process or machine, where the files that it names must exist.
Its `repr` shows no secrets; a pickle contains them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from lowtide.admin.client_properties import ClientProperties, SettingsError
from lowtide.protocol.client.retries import Backoff
from lowtide.protocol.client.sasl import ClientSaslSettings
from lowtide.protocol.jaas import JaasError, parse_jaas
from lowtide.runtime.filesystem import FileSystem, OsFileSystem
from lowtide.runtime.properties import PropertiesError, property_text, read_properties
from lowtide.runtime.tls import TlsSettings

if TYPE_CHECKING:
    from lowtide.runtime.token_source import TokenSource

__all__ = ["Address", "ClientSettings", "SettingsError", "parse_addresses", "read_properties_file"]

DEFAULT_PORT: Final = 9092
REQUEST_TIMEOUT_MS: Final = 30_000
API_TIMEOUT_MS: Final = 60_000
"""Defaults of Kafka's clients; the other times have theirs below."""

INT32_MAX: Final = 2**31 - 1
PROPERTIES_BYTES_MAX: Final = 1 << 20
"""A larger file is not a file of properties."""

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
"""Values of `sasl.mechanism`. The last one is known but not supported: connections fail."""


class Address(NamedTuple):
    """The host and the port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """All settings, checked. Times are in milliseconds. `of` and `read` create them."""

    bootstrap_servers: tuple[Address, ...]
    """Tried in random order until one answers; the cluster returns the addresses of its brokers."""
    client_id: str = "lowtide"
    tls: TlsSettings | None = None
    """None for plain text."""
    sasl: ClientSaslSettings | None = None
    tokens: TokenSource | None = None
    """The source of tokens for OAUTHBEARER; each login uses the current one."""
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    """How long a request may wait for its answer, besides the time that the request itself allows the broker."""
    default_api_timeout_ms: int = API_TIMEOUT_MS
    """How long a call may take with all retries, by default."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1000
    connection_setup_timeout_ms: int = 10_000
    """For one attempt, with TLS and SASL."""
    connections_max_idle_ms: int = 300_000
    metadata_max_age_ms: int = 300_000
    unused_keys: tuple[str, ...] = field(default=(), compare=False)
    """Given keys that this client does not use, in their order."""

    @property
    def retry_backoff(self) -> Backoff:
        """The backoff between the attempts of a call."""
        return Backoff(self.retry_backoff_ms, self.retry_backoff_max_ms)

    @property
    def reconnect_backoff(self) -> Backoff:
        """The backoff between connections to one address."""
        return Backoff(self.reconnect_backoff_ms, self.reconnect_backoff_max_ms)

    @classmethod
    def of(cls, properties: Mapping[str, object], source: str = "the settings") -> Self:
        """Reads settings from properties; lists are joined with commas. Errors: SettingsError, which names `source`."""
        try:
            given = {key: (property_text(key, value), source) for key, value in properties.items()}
        except PropertiesError as error:
            raise SettingsError(str(error)) from None
        return cls(**_fields(given))  # type: ignore[arg-type]

    @classmethod
    def read(
        cls,
        path: str | None,
        overrides: Mapping[str, object] | None = None,
        source: str = "the settings",
        files: FileSystem | None = None,
    ) -> Self:
        """Reads settings from a file of properties, if one is given, and then `overrides`, which come from `source`.

        Errors: SettingsError, also for an unreadable file.
        """
        given = {} if path is None else read_properties_file(path, files or OsFileSystem())
        given |= {key: (str(value), source) for key, value in (overrides or {}).items()}
        return cls(**_fields(given))  # type: ignore[arg-type]


def read_properties_file(path: str, files: FileSystem) -> dict[str, tuple[str, str]]:
    """Returns the keys of a file of properties, each with its value and its line. Errors: SettingsError."""
    name = PurePath(path).name
    try:
        if files.file_size(path) > PROPERTIES_BYTES_MAX:
            raise SettingsError(f"{path} has more than {PROPERTIES_BYTES_MAX} bytes: it is not a file of properties.")
        text = files.read_bytes(path).decode("utf-8")
        return {key: (value, f"{name} line {line}") for key, value, line in read_properties(text, name)}
    except PropertiesError as error:
        raise SettingsError(str(error)) from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{name} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#x}."
        ) from None
    except OSError as error:
        raise SettingsError(f"{path} can't be read: {error.strerror}.") from None


def parse_addresses(text: str, source: str = "the settings", key: str = "bootstrap.servers") -> tuple[Address, ...]:
    """Reads `host:port,[::1]:9092`; `PLAINTEXT://` in front is allowed.

    The default port is 9092. Errors: SettingsError.
    """
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"(?:[A-Za-z_]+://)?(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/\[\]]+))(?::(\d{1,5}))?", part)
        port = DEFAULT_PORT if match is None or match[3] is None else int(match[3])
        if match is None or not 0 < port < 1 << 16:
            raise SettingsError(
                f"{source}: {key} contains {part!r}: it must be host:port, with a port from 1 to 65535."
            )
        found.append(Address(match[1] or match[2], port))
    if not found:
        raise SettingsError(f"{source}: {key} is empty: at least one host:port is needed.")
    return tuple(dict.fromkeys(found))


class _Integer(NamedTuple):
    """The field of an integer, and its range (inclusive)."""

    name: str
    low: int
    high: int = INT32_MAX


_INTEGERS: Final = {
    "request.timeout.ms": _Integer("request_timeout_ms", 1),
    "default.api.timeout.ms": _Integer("default_api_timeout_ms", 1),
    "retry.backoff.ms": _Integer("retry_backoff_ms", 0),
    "retry.backoff.max.ms": _Integer("retry_backoff_max_ms", 0),
    "reconnect.backoff.ms": _Integer("reconnect_backoff_ms", 0),
    "reconnect.backoff.max.ms": _Integer("reconnect_backoff_max_ms", 0),
    "socket.connection.setup.timeout.ms": _Integer("connection_setup_timeout_ms", 1),
    "connections.max.idle.ms": _Integer("connections_max_idle_ms", -1),
    "metadata.max.age.ms": _Integer("metadata_max_age_ms", 0),
}


def _fields(properties: Mapping[str, tuple[str, str]]) -> dict[str, object]:
    """Reads the properties into fields. Errors: SettingsError."""
    given = ClientProperties(properties)
    servers = given.get("bootstrap.servers", "metadata.broker.list")
    if servers is None:
        sources = dict.fromkeys(source.partition(" line ")[0] for _, source in properties.values()) or ["the settings"]
        raise SettingsError(
            f"{', '.join(sources)}: bootstrap.servers is missing: give at least one broker as host:port."
        )
    key = "bootstrap.servers" if "bootstrap.servers" in properties else "metadata.broker.list"
    fields: dict[str, object] = {"bootstrap_servers": parse_addresses(servers, properties[key][1], key)}
    client_id = given.get("client.id")
    if client_id:
        fields["client_id"] = client_id
    for name, integer in _INTEGERS.items():
        text = given.get(name)
        if text is not None:
            fields[integer.name] = _integer(given, name, text, integer)
    _fit_times(given, fields)
    protocol = given.choice("security.protocol", PROTOCOLS) or "PLAINTEXT"
    tls, sasl = _tls(given), _sasl(given, required=protocol.startswith("SASL"))
    if protocol.endswith("SSL"):
        fields["tls"] = tls
    if protocol.startswith("SASL"):
        fields["sasl"] = sasl
        fields["tokens"] = _tokens(given, sasl)
    fields["unused_keys"] = given.unused()
    return fields


def _integer(given: ClientProperties, key: str, text: str, integer: _Integer) -> int:
    if re.fullmatch(r"-?[0-9]{1,19}", text) is None or not integer.low <= int(text) <= integer.high:
        raise given.error(key, f"it must be a whole number from {integer.low} to {integer.high}")
    return int(text)


def _fit_times(given: ClientProperties, fields: dict[str, object]) -> None:
    """Makes the timeout of a call at least that of a request. Errors: SettingsError if both are given and conflict.

    Source: KafkaAdminClient.
    """
    request, call = fields.get("request_timeout_ms"), fields.get("default_api_timeout_ms")
    if isinstance(request, int) and isinstance(call, int) and call < request:
        raise given.error("default.api.timeout.ms", f"it must be at least request.timeout.ms, which is {request}")
    if isinstance(call, int):
        fields["request_timeout_ms"] = min(call, request if isinstance(request, int) else REQUEST_TIMEOUT_MS)
    elif isinstance(request, int):
        fields["default_api_timeout_ms"] = max(request, API_TIMEOUT_MS)


_STORE_TYPES: Final = ("PEM", "JKS", "PKCS12")
_NO_OTHER_STORES: Final = (
    "Python reads PEM only: set it to PEM and give a PEM file (openssl pkcs12 and keytool -exportcert create one)"
)


def _tls(given: ClientProperties) -> TlsSettings:
    """Returns the TLS settings. Errors: SettingsError."""
    for side, location in (("truststore", "ssl.truststore.location"), ("keystore", "ssl.keystore.location")):
        kind = given.choice(f"ssl.{side}.type", _STORE_TYPES)
        given.get(f"ssl.{side}.password")
        if kind not in (None, "PEM"):
            raise given.error(f"ssl.{side}.type", _NO_OTHER_STORES)
        path = given.get(location)
        if path is not None and path.lower().endswith((".jks", ".p12", ".pfx")):
            raise given.error(location, _NO_OTHER_STORES)
    return TlsSettings(
        authorities_file=given.get("ssl.truststore.location", "ssl.ca.location") or None,
        authorities_text=given.get("ssl.truststore.certificates", "ssl.ca.pem") or None,
        certificate_file=given.get("ssl.keystore.location", "ssl.certificate.location") or None,
        certificate_text=given.get("ssl.keystore.certificate.chain", "ssl.certificate.pem") or None,
        key_file=given.get("ssl.key.location") or None,
        key_text=given.get("ssl.keystore.key", "ssl.key.pem") or None,
        key_password=given.secret("ssl.key.password"),
        check_host_name=given.choice("ssl.endpoint.identification.algorithm", ("https", "none", "")) in ("https", None),
        check_certificate=given.choice("enable.ssl.certificate.verification", ("true", "false")) != "false",
        ciphers=_ciphers(given.get("ssl.cipher.suites")),
        minimum_version=_minimum_version(given),
    )


def _ciphers(text: str | None) -> str | None:
    """Returns the ciphers as OpenSSL separates them: by colons, where Java has commas."""
    return ":".join(piece.strip() for piece in text.split(",")) if text else None


def _minimum_version(given: ClientProperties) -> str | None:
    """Returns the oldest enabled version. Errors: SettingsError for versions other than 1.2 and 1.3."""
    key = "ssl.enabled.protocols" if given.get("ssl.enabled.protocols") else "ssl.protocol"
    text = given.get(key)
    if not text:
        return None
    versions = sorted(piece.strip() for piece in text.split(","))
    if not set(versions) <= {"TLSv1.2", "TLSv1.3"}:
        raise given.error(key, "it must contain only TLSv1.2 and TLSv1.3")
    return versions[0] if key == "ssl.enabled.protocols" else None


_LOGIN_MODULES: Final = {
    "PLAIN": ("PlainLoginModule",),
    "SCRAM-SHA-256": ("ScramLoginModule",),
    "SCRAM-SHA-512": ("ScramLoginModule",),
}


def _sasl(given: ClientProperties, *, required: bool) -> ClientSaslSettings | None:
    """Returns the SASL settings.

    Errors: SettingsError for invalid settings, and for missing ones if a login is required.
    """
    mechanism = given.choice("sasl.mechanism", MECHANISMS) or given.choice("sasl.mechanisms", MECHANISMS) or "GSSAPI"
    username, password, by_token = given.get("sasl.username"), given.secret("sasl.password"), False
    login = given.get("sasl.jaas.config")
    if not required:
        return None
    if login is not None and username is None and mechanism != "OAUTHBEARER":
        username, password, by_token = _login(given, login, mechanism)
    if mechanism in _LOGIN_MODULES and (not username or password is None):
        needed = "sasl.jaas.config, or sasl.username and sasl.password, must give username and password"
        raise SettingsError(f"sasl.mechanism is {mechanism}: {needed}.")
    return ClientSaslSettings(mechanism=mechanism, username=username or "", password=password or "", by_token=by_token)


def _tokens(given: ClientProperties, sasl: ClientSaslSettings | None) -> TokenSource | None:
    """Returns the source of tokens. Errors: SettingsError."""
    if sasl is None or sasl.mechanism != "OAUTHBEARER":
        return None
    from lowtide.admin.oauth_settings import token_source  # noqa: PLC0415 - slow, and rarely needed

    return token_source(given)


def _login(given: ClientProperties, text: str, mechanism: str) -> tuple[str | None, str | None, bool]:
    """Reads a JAAS line: `module required username="..." password="...";`.

    Returns also whether it has `tokenauth="true"`. Errors: SettingsError.
    """
    key = "sasl.jaas.config"
    try:
        module = parse_jaas(text)
    except JaasError as error:
        raise given.error(key, str(error), secret=True) from None
    if mechanism in _LOGIN_MODULES and module.simple_name not in _LOGIN_MODULES[mechanism]:
        raise given.error(key, f"its module is {module.name}, but sasl.mechanism is {mechanism}", secret=True)
    by_token = module.options.get("tokenauth", "").lower() == "true"
    if by_token and not mechanism.startswith("SCRAM-"):
        raise given.error(key, f"tokenauth requires SCRAM, but sasl.mechanism is {mechanism}", secret=True)
    return module.options.get("username"), module.options.get("password"), by_token
