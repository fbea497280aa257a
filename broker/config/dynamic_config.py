"""A broker's configuration while it runs: the startup values, and what was set on it or on all brokers since.

Precedence, lowest first: defaults, startup values, cluster-wide values, values of this broker. Guards: the effective
configuration was checked as a whole; stored values that this version cannot apply are ignored.

A key is dynamic if Apache Kafka lists it as such **and** a change takes effect here at once: topic defaults, connection
limits, producer expiration, cordoned log directories, and the key store, trust store, mechanisms and passwords of a
listener. Other keys are refused and described as read-only.

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
from lowtide.broker.config.sources import DYNAMIC_BROKER, DYNAMIC_DEFAULT, Setting
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
    | {"lowtide.erasure.io.max.bytes.per.second", "lowtide.erasure.standing.interval.ms"}
    | {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}
    | {"replica.alter.log.dirs.io.max.bytes.per.second"}
    | {"errors.deadletterqueue.auto.create.topics.enable", "errors.deadletterqueue.topic.name.prefix"}
    | {"cordoned.log.dirs"}
)
"""The keys that can be changed at runtime, besides those of listeners (`is_dynamic`)."""

assert BROKER_KEYS.keys() >= DYNAMIC_KEYS

CLUSTER_WIDE: Final = "min.insync.replicas"
"""The key that single brokers cannot set while partitions have eligible leaders (KIP-966)."""

_ONLY_OF_BROKERS: Final = frozenset({"cordoned.log.dirs"})
"""The keys that only single brokers can set."""

_ONLY_OF_LISTENERS: Final = STORE_KEYS | LOGIN_KEYS
"""The keys that can be changed at runtime only for single listeners."""

Layer = Mapping[str, str]
"""Values as text, by key."""


def is_dynamic(name: str) -> bool:
    """Returns whether a key can be changed at runtime (stores and logins only for one listener of one broker)."""
    return name in DYNAMIC_KEYS or part_of(name) is not None


class Part(NamedTuple):
    """The settings of a listener that are changed together."""

    listener: str
    protocol: str
    """TLS for stores, SASL for logins."""

    def is_of(self, config: BrokerConfig) -> bool:
        secured = config.secured_listeners.get(self.listener)
        return secured is not None and (secured.tls if self.protocol == "TLS" else secured.sasl) is not None


def part_of(name: str) -> Part | None:
    """Returns the part of a listener that a dynamic key belongs to; None for any other key."""
    of_store, of_login = store_listener(name), login_listener(name)
    if of_store is not None:
        return Part(of_store, "TLS")
    return None if of_login is None else Part(of_login, "SASL")


def decides_logins(name: str) -> bool:
    """Returns whether a key decides who can log in: mechanisms, passwords and trust stores.

    Setting such a key can impersonate any user, so it requires ALTER on the cluster, like setting a user's password. A
    key store only determines the broker's own certificate.
    """
    return login_listener(name) is not None or is_of_trust_store(name)


class BrokerConfigs:
    """The current configuration of one broker."""

    def __init__(self, started_with: BrokerConfig) -> None:
        self.started_with = started_with
        self.current = started_with
        self.of_all: Layer = {}
        """The cluster-wide values, as stored."""
        self.of_this: Layer = {}
        """The values of this broker, as stored."""

    def follow(self, image: MetadataImage) -> str | None:
        """Applies the stored configuration.

        Returns an error message if some keys are ignored.
        """
        self.of_all = image.broker_configs.get("", NOTHING_SET).configs
        self.of_this = image.broker_configs.get(str(self.started_with.node_id), NOTHING_SET).configs
        if image.has_eligible_leaders and CLUSTER_WIDE in self.of_this:
            self.of_this = {name: text for name, text in self.of_this.items() if name != CLUSTER_WIDE}
        of_all, of_this = self._possible_of(self.of_all, of_all=True), self._possible_of(self.of_this, of_all=False)
        try:
            self.current = self._overlaid(of_all, of_this)
        except ConfigError as error:  # Valid alone, but not with what this broker was started with.
            self.current = self.started_with
            return str(error)
        left_aside = (self.of_all.keys() - of_all.keys()) | (self.of_this.keys() - of_this.keys())
        return f"invalid: {', '.join(sorted(left_aside))}" if left_aside else None

    def check(self, wanted: Layer, *, of_all: bool) -> BrokerConfig:
        """Returns the configuration of this broker if `wanted` replaced its own or the cluster-wide values.

        Stored values that are ignored may stay unchanged. Errors: ConfigError, one sentence.
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
                message = f"{name} is invalid: this broker has no listener {part.listener} with {part.protocol}"
                raise ConfigError(message)
            if part is not None and part.protocol == "SASL":
                check_login_key(config.values, config.given, name)
        return config

    def _possible_of(self, layer: Layer, *, of_all: bool) -> dict[str, str]:
        """Returns the values that this broker can apply: each key alone, but all keys of a listener's part together."""
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
        given |= {name: Setting(text, DYNAMIC_DEFAULT) for name, text in of_all.items()}
        given |= {name: Setting(text, DYNAMIC_BROKER) for name, text in of_this.items()}
        return msgspec.structs.replace(
            load_config(given=given), listeners=started.listeners, advertised_listeners=started.advertised_listeners
        )


def _check_names(names: Iterable[str], *, of_all: bool) -> None:
    """Refuses keys that cannot be changed at runtime, in Kafka's order and words. Errors: ConfigError."""
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
            lambda name: of_all and (name not in DYNAMIC_KEYS or name in _ONLY_OF_BROKERS),
        ),
    )
    for sentence, is_refused in refusals:
        refused = [name for name in sorted_names if is_refused(name)]
        if refused:
            raise ConfigError(f"{sentence}: [{', '.join(refused)}]")
