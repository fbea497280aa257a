"""The certificates of all listeners with TLS: loaded at the start, looked at again and again, and followed by the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lowtide.broker.config.key import ConfigError
from lowtide.broker.config.tls_settings import TlsListener, store_listener
from lowtide.broker.lifecycle.certificates import Certificates, Loaded
from lowtide.runtime.tls import TlsError

if TYPE_CHECKING:
    from lowtide.broker.config.broker_config import BrokerConfig


class ListenerCertificates:
    """`load` once; `watch` runs as long as the broker does."""

    def __init__(self, config: BrokerConfig, log: Any) -> None:
        self.by_listener = MappingProxyType(
            {
                name: Certificates(name, settings, log, is_between_brokers=name == config.inter_broker_listener)
                for name, settings in _settings(config).items()
            }
        )

    async def load(self) -> None:
        """Read and check all. Errors: OSError, a sentence that names the listener."""
        for each in self.by_listener.values():
            await each.load()

    async def watch(self, interval_ms: int) -> None:
        """Look at the files of all listeners, again and again."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.look()

    async def look(self) -> None:
        """Take over what has changed."""
        for each in self.by_listener.values():
            await each.look()

    def follow(self, config: BrokerConfig) -> bool:
        """Have the next look take the settings of this configuration. Returns whether there are others among them."""
        others = [name for name, settings in _settings(config).items() if self.by_listener[name].want(settings)]
        return bool(others)

    async def prepare(self, config: BrokerConfig, named: Collection[str]) -> Callable[[], None]:
        """Read and check what this configuration wants; `named` keys have their files read again.

        Returns what puts it in force.
        Errors: ConfigError, a sentence that names the listener.
        """
        prepared: list[tuple[Certificates, Loaded]] = []
        again = {store_listener(name) for name in named}
        for name, settings in _settings(config).items():
            certificates = self.by_listener[name]
            if name in again or settings != certificates.settings:
                try:
                    prepared.append((certificates, await certificates.prepare(settings)))
                except TlsError as error:
                    raise ConfigError(f"the certificates of the listener {name} can't be used: {error}") from None

        def put_in_force() -> None:
            for certificates, loaded in prepared:
                certificates.use(loaded)

        return put_in_force


def _settings(config: BrokerConfig) -> dict[str, TlsListener]:
    return {name: each.tls for name, each in config.secured_listeners.items() if each.tls is not None}
