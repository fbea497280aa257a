"""The certificates of a listener: read at the start, again while the broker runs, and when the configuration of its stores changes.

Renewed ones take effect at the next connection; connections that are open stay. What can't be read, doesn't fit together or may not take
the place of what is in use is logged once and changes nothing: the listener goes on with what it has. A request that changes the keys of
the stores, or sets one of them again, is refused with that reason instead.

Files are read beside serving. Sources: KIP-226, Kafka's `SslFactory` (`createNewSslEngineFactory`,
`CertificateEntries.ensureCompatible`, `SslEngineValidator`).
"""

from __future__ import annotations

import ssl
from typing import Any

import msgspec

from lowtide.broker.config.tls_settings import PKCS12, Store, TlsListener
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

STORE_BYTES_MAX = 4 << 20
"""Design limit: a file with certificates has a few kilobytes."""

Contents = tuple[bytes, bytes]
"""Of the key store's file and the trust store's; empty where there is none."""


class Loaded(msgspec.Struct, frozen=True):
    """Certificates that were read and fit together."""

    settings: TlsListener
    contents: Contents
    material: ServerMaterial
    context: ssl.SSLContext
    peer_context: ssl.SSLContext
    names_authorities: bool = True
    """Whether clients that are asked for a certificate get the names of those that may have signed it."""


class Certificates:
    """The certificates of one listener. `load` once, then `look` now and then."""

    def __init__(
        self, listener_name: str, settings: TlsListener, log: Any, *, is_between_brokers: bool = False
    ) -> None:
        """`is_between_brokers`: brokers that have the old certificates have to get on with the new ones."""
        self._name = listener_name
        self._wanted = settings
        self._log = log
        self._is_between_brokers = is_between_brokers
        self._loaded: Loaded | None = None
        self._refused: tuple[TlsListener, Contents] | None = None
        self._is_missing = False

    def context(self) -> ssl.SSLContext:
        """The one in force."""
        return self._in_force.context

    def peer_context(self) -> ssl.SSLContext:
        """The one by which this broker connects to others at this listener: it shows the same certificate."""
        return self._in_force.peer_context

    @property
    def settings(self) -> TlsListener:
        """Those in force."""
        return self._in_force.settings

    @property
    def _in_force(self) -> Loaded:
        assert self._loaded is not None, "the certificates are not loaded"
        return self._loaded

    def identify(self, certificate: bytes | None) -> KafkaPrincipal | None:
        """The principal that a client's certificate (in DER) stands for; None where no rule matches its name."""
        if certificate is None:
            return ANONYMOUS
        try:
            name = principal_name(self.settings.rules, subject_name(certificate))
        except TlsError:
            return None
        return None if name is None else KafkaPrincipal(USER_TYPE, name)

    async def load(self) -> None:
        """Read and check all. Errors: OSError, a sentence that names the listener."""
        try:
            self._take(_loaded(self._wanted, await _contents(self._wanted)))
        except TlsError as error:
            raise OSError(f"the listener {self._name} has no certificate: {error}") from error

    async def prepare(self, settings: TlsListener) -> Loaded:
        """Read what these settings name, and check that it may take the place of what is in force. Errors: TlsError."""
        return self._checked(settings, await _contents(settings))

    def use(self, loaded: Loaded) -> None:
        """From now on new connections use this."""
        before, self._wanted = self._in_force, loaded.settings
        self._take(loaded)
        self._refused, self._is_missing = None, False
        if (before.settings, before.contents) != (loaded.settings, loaded.contents):
            self._log.info("renewed certificate is in use", listener=self._name)

    def _take(self, loaded: Loaded) -> None:
        self._loaded = loaded
        if not loaded.names_authorities:
            message = (
                "clients are asked for a certificate without the names of accepted authorities: "
                "a client may present one of another authority and be refused"
            )
            self._log.warning(message, listener=self._name)

    def want(self, settings: TlsListener) -> bool:
        """Have the next `look` take these settings over. Returns whether they are others."""
        is_other = settings != self._wanted
        self._wanted = settings
        return is_other

    async def look(self) -> None:
        """Take over what has changed in the files, or in what is wanted."""
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
                    "renewed certificate can't be used, the old one stays", listener=self._name, reason=str(error)
                )
            self._is_missing = is_missing
            return
        self._is_missing = False

    def _checked(self, settings: TlsListener, contents: Contents) -> Loaded:
        """Errors: TlsError."""
        new, old = _loaded(settings, contents), self._in_force
        if (old.settings.trust_store is None) != (settings.trust_store is None):
            raise TlsError("a trust store can't be added or taken away while the broker runs")
        if new.material.certificate != old.material.certificate:
            _check_names(old, new)
        if self._is_between_brokers:
            _check_brokers(old, new)
        return new


class MissingError(TlsError):
    """A file that can't be read."""


def _check_names(old: Loaded, new: Loaded) -> None:
    """Whether the certificate is for those who know the old one. Errors: TlsError."""
    settings, before, now = (
        new.settings,
        certificate_names(old.material.certificate),
        certificate_names(new.material.certificate),
    )
    if before.subject != now.subject and not settings.may_change_subject:
        message = (
            f"its subject is {now.subject!r}, that of the one in use {before.subject!r}: "
            "allowed is another with ssl.allow.dn.changes=true"
        )
        raise TlsError(message)
    lost = before.alternatives - now.alternatives
    if lost and not settings.may_lose_names:
        message = (
            f"it lacks {', '.join(sorted(lost))} of the one in use: allowed is that with ssl.allow.san.changes=true"
        )
        raise TlsError(message)


def _check_brokers(old: Loaded, new: Loaded) -> None:
    """Whether brokers with the old stores and those with the new ones get on, if they do with the old ones.

    Errors: TlsError.
    """

    def as_client(loaded: Loaded) -> ssl.SSLContext:
        return peer_context(loaded.material, protocols=loaded.settings.protocols, checks_host=False)

    try:
        shake_hands(old.context, as_client(old))
    except TlsError:
        return
    for server, client, which in (
        (new, old, "the old stores don't trust the new certificate"),
        (old, new, "the new ones the old one"),
    ):
        try:
            shake_hands(server.context, as_client(client))
        except TlsError as error:
            raise TlsError(f"brokers could not connect to each other during the change, {which}: {error}") from None


def _loaded(settings: TlsListener, contents: Contents) -> Loaded:
    """Errors: TlsError."""
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
    return Loaded(settings, contents, material, context, peer, names)


async def _contents(settings: TlsListener) -> Contents:
    """Errors: MissingError."""
    trust = settings.trust_store
    return await _content(settings.key_store), b"" if trust is None else await _content(trust)


async def _content(store: Store) -> bytes:
    """Errors: MissingError."""
    if not store.location:
        return b""
    try:
        return await read_file(store.location, STORE_BYTES_MAX)
    except OSError as error:
        raise MissingError(f"{store.location} can't be read: {error.strerror}") from None
