"""The answers to DescribeConfigs for topics, brokers and groups: values, their sources, and their synonyms.

Guards: the value of a secret is never returned. Decisions only. Sources: KIP-226 (sources, synonyms), KIP-569 (types,
documentation), Kafka's `ConfigHelper`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import msgspec

from lowtide.broker.config.broker_config import BROKER_KEYS, FREE_PREFIXES, ConfigError, broker_key
from lowtide.broker.config.client_metrics import DEFAULTS as CLIENT_METRICS_DEFAULTS
from lowtide.broker.config.client_metrics import KEYS as CLIENT_METRICS_KEYS
from lowtide.broker.config.dynamic_config import BrokerConfigs, is_dynamic
from lowtide.broker.config.key import HIDDEN, ConfigKey, Type, Value, value_text
from lowtide.broker.config.keys_of_groups import KEYS_OF_GROUPS
from lowtide.broker.config.keys_topics import TOPIC_KEYS
from lowtide.broker.config.resources import ConfiguredResource
from lowtide.broker.config.topic_config import BROKER_SYNONYMS
from lowtide.protocol.config_values import ConfigResourceType, ConfigSource

LISTENER_PREFIX: Final = "listener.name."


class WireType(IntEnum):
    """Types with their numbers in the protocol (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Synonym(msgspec.Struct, frozen=True, gc=False):
    """A key that sets, or would set, a value."""

    name: str
    value: str | None
    source: ConfigSource


class DescribedConfig(msgspec.Struct, frozen=True, gc=False):
    """The effective value of a key. `value` is None for a secret and for a key that is not set."""

    name: str
    value: str | None
    source: ConfigSource
    synonyms: tuple[Synonym, ...]
    wire_type: WireType
    documentation: str
    is_read_only: bool = False
    is_sensitive: bool = False


Layers = Sequence[tuple[Mapping[str, str], ConfigSource]]


def describe_topic_defaults(configs: BrokerConfigs) -> dict[str, DescribedConfig]:
    """Returns every key of a topic with its default."""
    layers = _layers(configs)
    entries = {}
    for key in TOPIC_KEYS:
        synonyms = () if key.broker_key is None else _synonyms(layers, key.broker_key)
        value = _text(configs.current.topic_defaults[key.name])
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        entries[key.name] = DescribedConfig(key.name, value, source, synonyms, WireType[key.type.name], key.doc)
    return entries


def describe_topic(
    defaults: Mapping[str, DescribedConfig], overrides: Mapping[str, str], wanted: Sequence[str] | None
) -> list[DescribedConfig]:
    """Returns the keys of a topic that sets `overrides`: those in `wanted`, or all. Skips unknown keys."""
    entries = []
    for key in _chosen((key for key in TOPIC_KEYS if not key.internal or key.name in overrides), wanted):
        entry, value = defaults[key.name], overrides.get(key.name)
        if value is not None:
            source = ConfigSource.TOPIC
            synonyms = (Synonym(key.name, value, source), *entry.synonyms)
            entry = msgspec.structs.replace(entry, value=value, source=source, synonyms=synonyms)
        entries.append(entry)
    return entries


def describe_group(
    configs: BrokerConfigs, overrides: Mapping[str, str], wanted: Sequence[str] | None
) -> list[DescribedConfig]:
    """Returns the keys of a group that sets `overrides`: those in `wanted`, or all. Skips unknown keys."""
    layers = _layers(configs)
    entries = []
    for key in _chosen((key for key in KEYS_OF_GROUPS if not key.internal or key.name in overrides), wanted):
        value, synonyms = overrides.get(key.name), _inherited(layers, key)
        if value is not None:
            synonyms = (Synonym(key.name, value, ConfigSource.GROUP), *synonyms)
        inherited = key.default if key.broker_key is None else _text(configs.current.values[key.broker_key])
        shown = inherited if value is None else value
        entries.append(DescribedConfig(key.name, shown, synonyms[0].source, synonyms, WireType[key.type.name], key.doc))
    return entries


def _inherited(layers: Layers, key: ConfigKey) -> tuple[Synonym, ...]:
    """Returns the sources of a value that a group does not set: the broker's key, or the group's default."""
    if key.broker_key is None:
        return (Synonym(key.name, key.default or "", ConfigSource.DEFAULT),)
    return _synonyms(layers, key.broker_key)


def describe_client_metrics(configs: Mapping[str, str], wanted: Sequence[str] | None) -> list[DescribedConfig]:
    """Returns the keys of a client metrics subscription: those in `wanted`, or all."""
    types = {"interval.ms": WireType.INT, "match": WireType.LIST, "metrics": WireType.LIST}
    entries = []
    for name, default in CLIENT_METRICS_DEFAULTS.items():
        if not wanted or name in wanted:
            source = ConfigSource.CLIENT_METRICS if name in configs else ConfigSource.DEFAULT
            entries.append(
                DescribedConfig(name, configs.get(name, default), source, (), types[name], CLIENT_METRICS_KEYS[name])
            )
    return entries


def describe_loggers(levels: Mapping[str, str], wanted: Sequence[str] | None) -> list[DescribedConfig]:
    """Returns the effective levels of loggers: those in `wanted`, or all."""
    return [
        DescribedConfig(
            name, level, ConfigSource.DYNAMIC_BROKER_LOGGER, (), WireType.UNKNOWN, "The minimum level of log lines."
        )
        for name, level in levels.items()
        if not wanted or name in wanted
    ]


def describe_broker(configs: BrokerConfigs, wanted: Sequence[str] | None) -> list[DescribedConfig]:
    """Returns the keys of this broker: those in `wanted`, or all. Includes keys with a variable part that are set."""
    layers = _layers(configs)
    current = configs.current
    names = dict.fromkeys([*(name for name, key in BROKER_KEYS.items() if not key.internal), *current.given])
    entries = []
    for key in _chosen(map(broker_key, names), wanted):
        synonyms = _synonyms(layers, key.name)
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        is_given_node_id = key.name in _NODE_ID and source is not ConfigSource.DEFAULT
        value = _text(current.node_id if is_given_node_id else current.values[key.name])
        entries.append(_broker_entry(key, value, source, synonyms))
    return entries


def describe_all_brokers(configs: BrokerConfigs, wanted: Sequence[str] | None) -> list[DescribedConfig]:
    """Returns the cluster-wide defaults: the keys in `wanted`, or all."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    entries = []
    for key in _chosen(map(_known_or_secret, configs.of_all), wanted):
        value = configs.of_all[key.name]
        entries.append(
            _broker_entry(key, value, source, (Synonym(key.name, None if _is_sensitive(key) else value, source),))
        )
    return entries


def _broker_entry(
    key: ConfigKey, value: str | None, source: ConfigSource, synonyms: tuple[Synonym, ...]
) -> DescribedConfig:
    secret = _is_sensitive(key)
    return DescribedConfig(
        key.name,
        None if secret else value,
        source,
        synonyms,
        WireType[key.type.name],
        key.doc,
        is_read_only=not is_dynamic(key.name),
        is_sensitive=secret,
    )


def _chosen(keys: Iterable[ConfigKey], wanted: Sequence[str] | None) -> list[ConfigKey]:
    """Returns the wanted keys in the order given; an empty list means all, as in Kafka."""
    only = set(wanted or ())
    return [key for key in keys if not only or key.name in only]


_NODE_ID: Final = ("node.id", "broker.id")
"""Two names of one key: setting one sets the other."""

_DEFAULTS: Final = {name: key.default for name, key in BROKER_KEYS.items() if key.default is not None}


def _layers(configs: BrokerConfigs) -> Layers:
    """Returns all sources of a broker's values, strongest first."""
    started_with = configs.started_with
    static = {name: given.text.strip() for name, given in started_with.given.items()}
    if not static.keys().isdisjoint(_NODE_ID):
        static |= dict.fromkeys(_NODE_ID, str(started_with.node_id))
    return (
        (configs.of_this, ConfigSource.DYNAMIC_BROKER),
        (configs.of_all, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (static, ConfigSource.STATIC_BROKER),
        (_DEFAULTS, ConfigSource.DEFAULT),
    )


def _synonyms(layers: Layers, name: str) -> tuple[Synonym, ...]:
    """Returns the sources of a key's value, strongest first, beginning with the key itself."""
    names = BROKER_SYNONYMS.get(name, (name,))
    if name.startswith(LISTENER_PREFIX):
        names = (name, *_base_of(name))
    found = [
        Synonym(each, shown_value(each, layer[each]), source)
        for layer, source in layers
        for each in names
        if each in layer
    ]
    first = next((number for number, synonym in enumerate(found) if synonym.name == name), len(found))
    return tuple(found[first:])


def _base_of(name: str) -> list[str]:
    """Returns the key that a listener's own key overrides."""
    rest = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    return [base for base in (rest, rest.partition(".")[2]) if base in BROKER_KEYS][:1]


def _text(value: Value) -> str | None:
    return None if value is None else value_text(value)


def shown_value(name: str, text: str) -> str | None:
    """Returns the value of a broker's key for display; None for a secret."""
    return None if _is_sensitive(_known_or_secret(name)) else text


def _known_or_secret(name: str) -> ConfigKey:
    """Returns the key of that name; an unknown key, which another version may have stored, counts as a secret."""
    try:
        return broker_key(name)
    except ConfigError:
        return ConfigKey(name, Type.PASSWORD, None, None, "")


def _is_sensitive(key: ConfigKey) -> bool:
    """Returns whether the value must be hidden: secrets, and settings of plug-ins, which may be secrets."""
    return key.type is Type.PASSWORD or key.name.startswith(FREE_PREFIXES)


def log_changes(resource: ConfiguredResource, before: Mapping[str, str], now: Mapping[str, str], log: Any) -> None:
    """Logs one line for each key that changed, without secrets. None stands for a key that is not set."""
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if old != new:
            log.info(
                "configuration changed",
                resource=resource.type.name,
                name=resource.name,
                key=key,
                old_value=_logged_value(resource, key, old),
                new_value=_logged_value(resource, key, new),
            )


def _logged_value(resource: ConfiguredResource, key: str, value: str | None) -> str | None:
    if value is None or resource.type is not ConfigResourceType.BROKER:
        return value
    return HIDDEN if shown_value(key, value) is None else value
