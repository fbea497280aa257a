"""A broker's configuration while it runs: what it was started with, and what was set on it, or on all brokers, since.

From weak to strong: defaults, what the broker was started with, what is set on all brokers, what is set on this one.
Guards: the configuration in force has been checked whole; what is stored and cannot be, because another version wrote
it, is left aside.

A key can be set while the broker runs if Apache Kafka lists it so **and** the change takes effect here at once: the
defaults of topics, the limits of connections, the memory of silent producers, the key store and trust store of a
listener, and by which mechanisms and with which passwords clients log in at one. Every other key is refused, and
described as read-only.

Sources: KIP-226, Kafka's `DynamicBrokerConfig`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from lowtide.broker.config.broker_config import BROKER_KEYS, BrokerConfig, broker_key, load_config
from lowtide.broker.config.key import ConfigError
from lowtide.broker.config.keys_topics import TOPIC_KEYS
from lowtide.broker.config.sasl_settings import LOGIN_KEYS, check_login_key, login_listener
from lowtide.broker.config.sources import DYNAMIC_BROKER, DYNAMIC_DEFAULT, Given
from lowtide.broker.config.tls_settings import STORE_KEYS, is_of_trust_store, store_listener
from lowtide.broker.config.topic_defaults import TOTALS_OF_LOCAL, check_consumed_retention, check_local_retention
from lowtide.metadata.config_image import NOTHING_SET
from lowtide.metadata.image import MetadataImage

DYNAMIC_KEYS: Final = frozenset(
    {key.broker_key for key in TOPIC_KEYS if key.broker_key is not None}
    | {"max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides", "producer.id.expiration.ms"}
    | {"max.connection.creation.rate"}
    | {"log.retention.commitoffset.enable"}
    | {"log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size", "log.cleaner.io.max.bytes.per.second"}
    | {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}
    | {"replica.alter.log.dirs.io.max.bytes.per.second"}
)
"""The keys that can be set while a broker runs, besides those of listeners (`is_dynamic`)."""

assert BROKER_KEYS.keys() >= DYNAMIC_KEYS

CLUSTER_WIDE: Final = "min.insync.replicas"
"""What can't be set on single brokers while partitions have eligible leaders (KIP-966)."""

_ONLY_OF_LISTENERS: Final = STORE_KEYS | LOGIN_KEYS
"""What can be set while a broker runs, but for single listeners only."""

Layer = Mapping[str, str]
"""Texts by key."""


def is_dynamic(name: str) -> bool:
    """Whether a key can be set while a broker runs; those of stores and logins on single brokers, and for single listeners."""
    return name in DYNAMIC_KEYS or part_of(name) is not None


class Part(NamedTuple):
    """What of a listener is set together."""

    listener: str
    protocol: str
    """TLS for its stores, SASL for its logins."""

    def is_of(self, config: BrokerConfig) -> bool:
        """Whether a broker has a listener with this part."""
        secured = config.secured_listeners.get(self.listener)
        return secured is not None and (secured.tls if self.protocol == "TLS" else secured.sasl) is not None


def part_of(name: str) -> Part | None:
    """The part of a listener that a key is about, where it can be set while a broker runs; None for any other key."""
    of_store, of_login = store_listener(name), login_listener(name)
    if of_store is not None:
        return Part(of_store, "TLS")
    return None if of_login is None else Part(of_login, "SASL")


def decides_logins(name: str) -> bool:
    """Whether a key decides who may log in: mechanisms, passwords and trust stores.

    It can make its holder any user, so setting or removing it needs as much as setting a user's password does: ALTER on
    the cluster. A key store only says which certificate the broker shows.
    """
    return login_listener(name) is not None or is_of_trust_store(name)


class BrokerConfigs:
    """The configuration of one broker, as it is now."""

    def __init__(self, started_with: BrokerConfig) -> None:
        self.started_with = started_with
        self.current = started_with
        self.of_all: Layer = {}
        """What is set on all brokers, as it is stored."""
        self.of_this: Layer = {}
        """What is set on this broker, as it is stored."""

    def follow(self, image: MetadataImage) -> str | None:
        """Take over what the metadata say.

        Returns what is wrong with them, if something is: the keys that are left aside.
        """
        self.of_all = image.broker_configs.get("", NOTHING_SET).configs
        self.of_this = image.broker_configs.get(str(self.started_with.node_id), NOTHING_SET).configs
        if image.has_eligible_leaders and CLUSTER_WIDE in self.of_this:
            self.of_this = {name: text for name, text in self.of_this.items() if name != CLUSTER_WIDE}
        of_all, of_this = self._possible_of(self.of_all, of_all=True), self._possible_of(self.of_this, of_all=False)
        try:
            self.current = self._overlaid(of_all, of_this)
        except ConfigError as error:  # Possible each, but not with each other: set while brokers ran on something else.
            self.current = self.started_with
            return str(error)
        left_aside = (self.of_all.keys() - of_all.keys()) | (self.of_this.keys() - of_this.keys())
        return f"not possible: {', '.join(sorted(left_aside))}" if left_aside else None

    def check(self, wanted: Layer, *, of_all: bool) -> BrokerConfig:
        """What this broker would run on with `wanted` instead of what is set on all brokers, or on this one.

        What is stored and left aside may stay as it is. Errors: ConfigError, one sentence.
        """
        stored = self.of_all if of_all else self.of_this
        possible = self._possible_of(stored, of_all=of_all)
        judged = {name: text for name, text in wanted.items() if stored.get(name) != text or name in possible}
        _check_names(judged, of_all=of_all)
        of_this = self._possible_of(self.of_this, of_all=False)
        config = (
            self._overlaid(judged, of_this)
            if of_all
            else self._overlaid(self._possible_of(self.of_all, of_all=True), judged)
        )
        check_consumed_retention(config.values, config.topic_defaults)
        if any(config.values[name] != self.current.values[name] for pair in TOTALS_OF_LOCAL.items() for name in pair):
            check_local_retention(config.values, config.topic_defaults)
        for name in judged:
            part = part_of(name)
            if part is not None and not part.is_of(config):
                message = f"{name} is not possible: this broker has no listener {part.listener} with {part.protocol}"
                raise ConfigError(message)
            if part is not None and part.protocol == "SASL":
                check_login_key(config.values, config.given, name)
        return config

    def _possible_of(self, layer: Layer, *, of_all: bool) -> dict[str, str]:
        """What this broker can run on: each key by itself, but all keys of a part of a listener together."""
        possible = {
            name: text for name, text in layer.items() if name in DYNAMIC_KEYS and self._is_possible({name: text})
        }
        for part in {part_of(name) for name in layer} - {None} if not of_all else ():
            together = {name: text for name, text in layer.items() if part_of(name) == part}
            if self._is_possible(together):
                possible |= together
        return possible

    def _is_possible(self, layer: Layer) -> bool:
        try:
            config = self._overlaid({}, layer)
        except ConfigError:
            return False
        return all(part is None or part.is_of(config) for part in map(part_of, layer))

    def _overlaid(self, of_all: Layer, of_this: Layer) -> BrokerConfig:
        started = self.started_with
        if not of_all and not of_this:
            return started
        given = dict(started.given)
        given |= {name: Given(text, DYNAMIC_DEFAULT) for name, text in of_all.items()}
        given |= {name: Given(text, DYNAMIC_BROKER) for name, text in of_this.items()}
        return msgspec.structs.replace(
            load_config(given=given), listeners=started.listeners, advertised_listeners=started.advertised_listeners
        )


def _check_names(names: Iterable[str], *, of_all: bool) -> None:
    """Refuse keys that can't be set while the broker runs, in Kafka's order and words. Errors: ConfigError."""
    sorted_names = sorted(broker_key(name).name for name in names)
    refusals = (
        (
            "Cannot update these configs dynamically",
            lambda name: not is_dynamic(name) and name not in _ONLY_OF_LISTENERS,
        ),
        (
            "These security configs can be dynamically updated only per-listener using the listener prefix",
            _ONLY_OF_LISTENERS.__contains__,
        ),
        (
            "Cannot update these configs at default cluster level, broker id must be specified",
            lambda name: of_all and name not in DYNAMIC_KEYS,
        ),
    )
    for sentence, is_refused in refusals:
        refused = [name for name in sorted_names if is_refused(name)]
        if refused:
            message = f"{sentence}: [{', '.join(refused)}]"
            raise ConfigError(message)
