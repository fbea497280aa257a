"""The certificates of listeners: loaded at the start, reloaded when files or settings change.

Renewed certificates apply to new connections. Certificates that cannot be read, do not match or cannot replace the
current ones are logged once and ignored. A request that changes the settings of the stores, or sets one of them again,
is refused with that reason instead.

Files are read in a thread. Sources: KIP-226, Kafka's `SslFactory` (`createNewSslEngineFactory`,
`CertificateEntries.ensureCompatible`, `SslEngineValidator`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from lowtide.broker.config.key import ConfigError
from lowtide.broker.config.tls_settings import PKCS12, Store, TlsListener, store_listener
from lowtide.broker.security.principal import ANONYMOUS, USER_TYPE, KafkaPrincipal
from lowtide.broker.security.principal_mapping import principal_name
from lowtide.runtime.beside_serving import read_file
from lowtide.runtime.client_authorities import name_authorities
from lowtide.runtime.server_tls import (
    ServerMaterial,
    certificate_names,
    key_store,
    peer_context,
    server_context,
    shake_hands,
    subject_name,
    trust_store,
)
from lowtide.runtime.tls import TlsError

if TYPE_CHECKING:
    from lowtide.broker.config.broker_config import BrokerConfig

STORE_BYTES_MAX = 4 << 20
"""Design limit: a file with certificates has a few kilobytes."""

Contents = tuple[bytes, bytes]
"""The contents of the key store and trust store files; empty if there is no file."""


class LoadedCertificates(msgspec.Struct, frozen=True):
    """Certificates that were loaded and match."""

    settings: TlsListener
    contents: Contents
    material: ServerMaterial
    context: ssl.SSLContext
    peer_context: ssl.SSLContext
    names_authorities: bool = True
    """Whether clients that must present a certificate get the names of the accepted authorities."""


class Certificates:
    """The certificates of one listener. Call `load` once, then `reload` periodically."""

    def __init__(
        self, listener_name: str, settings: TlsListener, log: Any, *, is_between_brokers: bool = False
    ) -> None:
        """`is_between_brokers`: brokers with the old certificates must accept the new ones."""
        self._name = listener_name
        self._wanted = settings
        self._log = log
        self._is_between_brokers = is_between_brokers
        self._loaded: LoadedCertificates | None = None
        self._refused: tuple[TlsListener, Contents] | None = None
        self._is_missing = False

    def context(self) -> ssl.SSLContext:
        return self._in_force.context

    def peer_context(self) -> ssl.SSLContext:
        """Returns the TLS context for connections to other brokers, which has the same certificate."""
        return self._in_force.peer_context

    @property
    def settings(self) -> TlsListener:
        return self._in_force.settings

    @property
    def _in_force(self) -> LoadedCertificates:
        assert self._loaded is not None, "the certificates are not loaded"
        return self._loaded

    def identify(self, certificate: bytes | None) -> KafkaPrincipal | None:
        """Returns the principal of a client certificate (in DER); None if no rule matches its name."""
        if certificate is None:
            return ANONYMOUS
        try:
            name = principal_name(self.settings.rules, subject_name(certificate))
        except TlsError:
            return None
        return None if name is None else KafkaPrincipal(USER_TYPE, name)

    async def load(self) -> None:
        """Loads and checks the certificates. Errors: OSError, a sentence that names the listener."""
        try:
            self._take(_loaded(self._wanted, await _contents(self._wanted)))
        except TlsError as error:
            raise OSError(f"the listener {self._name} has no certificate: {error}") from error

    async def prepare(self, settings: TlsListener) -> LoadedCertificates:
        """Loads certificates and checks that they can replace the current ones. Errors: TlsError."""
        return self._checked(settings, await _contents(settings))

    def use(self, loaded: LoadedCertificates) -> None:
        before, self._wanted = self._in_force, loaded.settings
        self._take(loaded)
        self._refused, self._is_missing = None, False
        if (before.settings, before.contents) != (loaded.settings, loaded.contents):
            self._log.info("renewed certificate is in use", listener=self._name)

    def _take(self, loaded: LoadedCertificates) -> None:
        self._loaded = loaded
        if not loaded.names_authorities:
            message = (
                "clients are asked for a certificate without the names of accepted authorities: "
                "a client may present one of another authority and be refused"
            )
            self._log.warning(message, listener=self._name)

    def set_wanted(self, settings: TlsListener) -> bool:
        """Sets the settings for the next `reload`. Returns whether they differ."""
        is_other = settings != self._wanted
        self._wanted = settings
        return is_other

    async def reload(self) -> None:
        """Applies changes of the files or settings."""
        settings = self._wanted
        try:
            contents = await _contents(settings)
            if (settings, contents) == self._refused:
                return
            in_force = self._in_force
            if (settings, contents) != (in_force.settings, in_force.contents):
                self._refused = settings, contents
                self.use(self._checked(settings, contents))
        except TlsError as error:
            is_missing = isinstance(error, MissingError)
            if not (is_missing and self._is_missing):
                self._log.error(
                    "renewed certificate is invalid, the old one stays in use", listener=self._name, reason=str(error)
                )
            self._is_missing = is_missing
            return
        self._is_missing = False

    def _checked(self, settings: TlsListener, contents: Contents) -> LoadedCertificates:
        """Loads and checks the certificates. Errors: TlsError."""
        new, old = _loaded(settings, contents), self._in_force
        if (old.settings.trust_store is None) != (settings.trust_store is None):
            raise TlsError("a trust store cannot be added or removed at runtime")
        if new.material.certificate != old.material.certificate:
            _check_names(old, new)
        if self._is_between_brokers:
            _check_brokers(old, new)
        return new


class MissingError(TlsError):
    """A file that cannot be read."""


def _check_names(old: LoadedCertificates, new: LoadedCertificates) -> None:
    """Checks that the new certificate is valid for the same hosts. Errors: TlsError."""
    settings = new.settings
    before, now = (certificate_names(each.material.certificate) for each in (old, new))
    if before.subject != now.subject and not settings.may_change_subject:
        raise TlsError(
            f"its subject is {now.subject!r}, but that of the current one is {before.subject!r}: "
            "set ssl.allow.dn.changes=true to allow this"
        )
    lost = before.alternatives - now.alternatives
    if lost and not settings.may_lose_names:
        raise TlsError(f"it lacks {', '.join(sorted(lost))}: set ssl.allow.san.changes=true to allow this")


def _check_brokers(old: LoadedCertificates, new: LoadedCertificates) -> None:
    """Checks that brokers with the old and the new stores can connect to each other, if they could before.

    Errors: TlsError.
    """

    def as_client(loaded: LoadedCertificates) -> ssl.SSLContext:
        return peer_context(loaded.material, protocols=loaded.settings.protocols, checks_host=False)

    try:
        shake_hands(old.context, as_client(old))
    except TlsError:
        return
    for server, client, which in (
        (new, old, "the old stores do not trust the new certificate"),
        (old, new, "the new stores do not trust the old certificate"),
    ):
        try:
            shake_hands(server.context, as_client(client))
        except TlsError as error:
            raise TlsError(f"brokers could not connect to each other during the change, {which}: {error}") from None


def _loaded(settings: TlsListener, contents: Contents) -> LoadedCertificates:
    """Loads the certificates. Errors: TlsError."""
    store, trust = settings.key_store, settings.trust_store
    if store.kind == PKCS12:
        material = key_store(contents[0], store.password)
    else:
        material = ServerMaterial(contents[0] or store.certificates.encode(), store.key.encode(), store.key_password)
    authorities = b""
    if trust is not None:
        authorities = (
            trust_store(contents[1], trust.password)
            if trust.kind == PKCS12
            else contents[1] or trust.certificates.encode()
        )
    material = ServerMaterial(material.certificate, material.key, material.key_password, authorities)
    context = server_context(
        material, client_auth=settings.client_auth, protocols=settings.protocols, ciphers=settings.ciphers
    )
    peer = peer_context(material, protocols=settings.protocols, checks_host=settings.checks_host)
    names = settings.client_auth == "none" or name_authorities(context, authorities.decode("ascii"))
    return LoadedCertificates(settings, contents, material, context, peer, names)


async def _contents(settings: TlsListener) -> Contents:
    """Returns the contents of the files. Errors: MissingError."""
    trust = settings.trust_store
    return await _content(settings.key_store), b"" if trust is None else await _content(trust)


async def _content(store: Store) -> bytes:
    """Returns the content of a file. Errors: MissingError."""
    if not store.location:
        return b""
    try:
        return await read_file(store.location, STORE_BYTES_MAX)
    except OSError as error:
        raise MissingError(f"{store.location} cannot be read: {error.strerror}") from None


class ListenerCertificates:
    """The certificates of all listeners. Call `load` once; `watch` runs as long as the broker."""

    def __init__(self, config: BrokerConfig, log: Any) -> None:
        self.by_listener = MappingProxyType(
            {
                name: Certificates(name, settings, log, is_between_brokers=name == config.inter_broker_listener)
                for name, settings in _settings(config).items()
            }
        )

    async def load(self) -> None:
        for each in self.by_listener.values():
            await each.load()

    async def watch(self, interval_ms: int) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.reload()

    async def reload(self) -> None:
        for each in self.by_listener.values():
            await each.reload()

    def follow(self, config: BrokerConfig) -> bool:
        others = [name for name, settings in _settings(config).items() if self.by_listener[name].set_wanted(settings)]
        return bool(others)

    async def prepare(self, config: BrokerConfig, named: Collection[str]) -> Callable[[], None]:
        """Loads and checks the certificates of a new configuration; rereads the files of `named` keys.

        Returns the function that applies them. Errors: ConfigError, a sentence that names the listener.
        """
        prepared: list[tuple[Certificates, LoadedCertificates]] = []
        again = {store_listener(name) for name in named}
        for name, settings in _settings(config).items():
            certificates = self.by_listener[name]
            if name in again or settings != certificates.settings:
                try:
                    prepared.append((certificates, await certificates.prepare(settings)))
                except TlsError as error:
                    raise ConfigError(f"the certificates of the listener {name} cannot be used: {error}") from None

        def put_in_force() -> None:
            for certificates, loaded in prepared:
                certificates.use(loaded)

        return put_in_force


def _settings(config: BrokerConfig) -> dict[str, TlsListener]:
    return {name: each.tls for name, each in config.secured_listeners.items() if each.tls is not None}
