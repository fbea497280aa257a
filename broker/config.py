"""A broker's configuration: the table of all keys, and the typed values that the broker runs on.

Guards: whatever starts was checked whole; every unknown key and every impossible value is refused with one sentence. It doesn't read files
or the environment (`config_sources.py`, and the command line above it), and doesn't know which topics there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

import msgspec

from lowtide.broker.config_apis import MAX_VERSION_PREFIX, capped_api, max_version
from lowtide.broker.config_key import ConfigError, ConfigKey, Type, Value, value_text
from lowtide.broker.config_keys_cluster import CLUSTER_KEYS
from lowtide.broker.config_keys_groups import GROUP_KEYS
from lowtide.broker.config_keys_remote import REMOTE_KEYS
from lowtide.broker.config_keys_security import SECURITY_KEYS
from lowtide.broker.config_keys_server import SERVER_KEYS
from lowtide.broker.config_keys_topics import TOPIC_KEYS
from lowtide.broker.config_listeners import Listener, is_every_interface, parse_listeners
from lowtide.broker.config_sources import Given
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.storage.log_values import LogConfig

__all__ = [
    "BROKER_KEYS",
    "TOPIC_KEYS_BY_NAME",
    "BrokerConfig",
    "ConfigError",
    "Given",
    "Listener",
    "TopicConfigEntry",
    "TopicConfigFault",
    "broker_key",
    "describe_topic_configs",
    "load_config",
    "log_config",
    "validate_topic_configs",
]

BROKER_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {key.name: key for table in (SERVER_KEYS, CLUSTER_KEYS, GROUP_KEYS, SECURITY_KEYS, REMOTE_KEYS) for key in table}
)
"""All keys of a broker by name, but for those whose names have a free part (`broker_key`)."""

TOPIC_KEYS_BY_NAME: Final[Mapping[str, ConfigKey]] = MappingProxyType({key.name: key for key in TOPIC_KEYS})
"""All keys of a topic by name."""

_LISTENER_PREFIX: Final = "listener.name."
_FREE_PREFIXES: Final = ("config.providers.", "rlmm.config.", "rsm.config.")
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000


class TopicConfigFault(NamedTuple):
    """Why a topic's configuration is refused: the code and the sentence that the client gets."""

    error_code: ErrorCode
    message: str


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one broker runs on. Names are Kafka's keys; `values` has every key, `given` those that somebody set."""

    node_id: int
    broker_rack: str | None
    listeners: tuple[Listener, ...]
    """Those of clients and brokers; a controller's listeners of KRaft aren't opened."""
    advertised_listeners: tuple[Listener, ...]
    """What clients are told, in the order of `listeners`; port 0 stands for the port that was bound."""
    log_dirs: tuple[str, ...]
    num_partitions: int
    default_replication_factor: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    message_max_bytes: int
    min_insync_replicas: int
    socket_request_max_bytes: int
    queued_max_request_bytes: int
    """At least `socket_request_max_bytes`; no limit is the largest number there is."""
    connections_max_idle_ms: int
    """No limit is the largest number there is."""
    max_connections: int
    max_connections_per_ip: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    producer_id_expiration_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    max_versions: Mapping[ApiKey, int]
    """The highest version to offer, for the APIs that somebody capped."""
    topic_defaults: Mapping[str, Value]
    """What a topic that sets nothing has, by the topic's keys."""
    values: Mapping[str, Value]
    given: Mapping[str, Given]

    @property
    def unenforced_keys_given(self) -> tuple[str, ...]:
        """The keys that somebody set although Lowtide doesn't do yet what they say, sorted."""
        return tuple(sorted(name for name in self.given if not broker_key(name).enforced))


def broker_key(name: str) -> ConfigKey:
    """The key of that name, also one with a free part: `listener.name.<listener>.<key>`, `lowtide.max.version.<Api>`.

    Errors: ConfigError when there is none; the message is a sentence without its full stop.
    """
    key = BROKER_KEYS.get(name)
    if key is not None:
        return key
    if name.startswith(MAX_VERSION_PREFIX):
        return max_version(name)
    if name.startswith(_LISTENER_PREFIX):
        rest = name[len(_LISTENER_PREFIX) :].partition(".")[2]
        base = BROKER_KEYS.get(rest) or BROKER_KEYS.get(rest.partition(".")[2])
        if base is not None:
            return msgspec.structs.replace(base, name=name, default=None, enforced=False)
    if name.startswith(_FREE_PREFIXES):
        return ConfigKey(name, Type.STRING, None, None, "Handed to the plug-in that the prefix stands for.")
    message = f"{name} is not a key of a broker's configuration: allowed are the keys listed in docs/configuration.md{_similar(name)}"
    raise ConfigError(message)


def load_config(
    *,
    settings: Mapping[str, str] | None = None,
    given: Mapping[str, Given] | None = None,
    host_name: str = "localhost",
) -> BrokerConfig:
    """Check everything that was given and make the configuration.

    `given` comes from `config_sources.merge`; `settings` is the short form for tests and programs, and stronger. `host_name` is advertised
    for listeners on every interface.

    Errors: ConfigError, one sentence.
    """
    everything = dict(given or {})
    everything.update({name: Given(str(text), "settings") for name, text in (settings or {}).items()})
    values: dict[str, Value] = {key.name: key.default_value for key in BROKER_KEYS.values()}
    for name, (text, source) in everything.items():
        try:
            values[name] = broker_key(name).parse(text)
        except ConfigError as error:
            message = f"{error} (in {source})."
            raise ConfigError(message) from None
    try:
        return _typed(values, everything, host_name)
    except _ImpossibleTogetherError as error:
        message = f"{error} (in {_sources(error.keys, everything)})."
        raise ConfigError(message) from None


def _typed(values: dict[str, Value], given: Mapping[str, Given], host_name: str) -> BrokerConfig:
    """Resolve synonyms, check what keys say of each other, and give the values their types."""
    listeners, advertised = _listeners(values, host_name)
    _check_request_memory(values)
    pick = _Picker(values)
    return BrokerConfig(
        node_id=_node_id(values, given),
        broker_rack=pick.optional_text("broker.rack"),
        listeners=listeners,
        advertised_listeners=advertised,
        log_dirs=_log_dirs(values, given),
        num_partitions=pick.number("num.partitions"),
        default_replication_factor=pick.number("default.replication.factor"),
        auto_create_topics_enable=pick.flag("auto.create.topics.enable"),
        delete_topic_enable=pick.flag("delete.topic.enable"),
        message_max_bytes=pick.number("message.max.bytes"),
        min_insync_replicas=pick.number("min.insync.replicas"),
        socket_request_max_bytes=pick.number("socket.request.max.bytes"),
        queued_max_request_bytes=pick.limit("queued.max.request.bytes"),
        connections_max_idle_ms=pick.limit("connections.max.idle.ms"),
        max_connections=pick.number("max.connections"),
        max_connections_per_ip=pick.number("max.connections.per.ip"),
        fetch_max_bytes=pick.number("fetch.max.bytes"),
        max_incremental_fetch_session_cache_slots=pick.number("max.incremental.fetch.session.cache.slots"),
        producer_id_expiration_ms=pick.number("producer.id.expiration.ms"),
        log_flush_offset_checkpoint_interval_ms=pick.number("log.flush.offset.checkpoint.interval.ms"),
        replica_high_watermark_checkpoint_interval_ms=pick.number("replica.high.watermark.checkpoint.interval.ms"),
        replica_lag_time_max_ms=pick.number("replica.lag.time.max.ms"),
        max_versions=MappingProxyType(_max_versions(values)),
        topic_defaults=MappingProxyType(_topic_defaults(values)),
        values=MappingProxyType(values),
        given=MappingProxyType(dict(given)),
    )


class _ImpossibleTogetherError(ConfigError):
    """Values that are possible one by one. `keys` are the ones to look at."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


def _sources(keys: Iterable[str], given: Mapping[str, Given]) -> str:
    """Where the values of these keys come from."""
    return ", ".join(dict.fromkeys(given[key].source if key in given else f"the default of {key}" for key in keys))


def _similar(name: str) -> str:
    """A hint at what may have been meant."""
    close = get_close_matches(name, BROKER_KEYS, n=1)
    return f"; did you mean {close[0]}?" if close else ""


class _Picker:
    """Values by key, with the type that the key's definition promises."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def number(self, name: str) -> int:
        return cast(int, self._values[name])

    def limit(self, name: str) -> int:
        """A number below 0 is no limit."""
        number = self.number(name)
        return number if number >= 0 else _NO_LIMIT

    def flag(self, name: str) -> bool:
        return cast(bool, self._values[name])

    def optional_text(self, name: str) -> str | None:
        return cast("str | None", self._values[name])


_NO_LIMIT: Final = 2**63 - 1


def _node_id(values: Mapping[str, Value], given: Mapping[str, Given]) -> int:
    node_id, broker_id = cast(int, values["node.id"]), cast(int, values["broker.id"])
    if broker_id < 0:
        return node_id
    if "node.id" in given and node_id != broker_id:
        message = f"node.id={node_id} and broker.id={broker_id} are not possible together: allowed is one number"
        raise _ImpossibleTogetherError(message, "node.id", "broker.id")
    return broker_id


def _log_dirs(values: Mapping[str, Value], given: Mapping[str, Given]) -> tuple[str, ...]:
    name = "log.dir" if "log.dir" in given and "log.dirs" not in given else "log.dirs"
    directories = tuple(directory for directory in cast("tuple[str, ...]", values[name]) if directory)
    if not directories:
        message = f"{name}= is not possible: allowed is a list of at least one folder"
        raise _ImpossibleTogetherError(message, name)
    return directories


def _listeners(values: Mapping[str, Value], host_name: str) -> tuple[tuple[Listener, ...], tuple[Listener, ...]]:
    """The listeners, and as what clients are told to connect to them."""
    try:
        pairs = [pair.partition(":") for pair in cast(str, values["listener.security.protocol.map"]).split(",") if pair]
        protocols = {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}
        listeners = parse_listeners("listeners", cast("tuple[str, ...]", values["listeners"]), protocols)
        told = cast("tuple[str, ...] | None", values["advertised.listeners"])
        advertised = parse_listeners("advertised.listeners", told, protocols) if told else ()
    except ConfigError as error:
        raise _ImpossibleTogetherError(str(error), "listeners", "advertised.listeners") from None
    if len(listeners) != 1:
        message = f"listeners has {len(listeners)} addresses: allowed is one, until brokers replicate to each other"
        raise _ImpossibleTogetherError(message, "listeners")
    by_name = {listener.name: listener for listener in advertised}
    resolved = []
    for listener in listeners:
        entry = by_name.pop(listener.name, None)
        if entry is None:
            host = host_name if is_every_interface(listener.host) else listener.host
            entry = Listener(listener.name, host, listener.port, listener.security)
        elif is_every_interface(entry.host):
            message = f"advertised.listeners names every interface ({entry.host or 'an empty host'}): allowed is a host that clients can reach"
            raise _ImpossibleTogetherError(message, "advertised.listeners")
        resolved.append(entry)
    if by_name:
        message = f"advertised.listeners has {next(iter(by_name))}, listeners has not: allowed are the names of listeners"
        raise _ImpossibleTogetherError(message, "advertised.listeners", "listeners")
    return listeners, tuple(resolved)


def _check_request_memory(values: Mapping[str, Value]) -> None:
    largest, together = cast(int, values["socket.request.max.bytes"]), cast(int, values["queued.max.request.bytes"])
    if 0 <= together < largest:
        message = f"queued.max.request.bytes={together} is not possible: allowed is at least socket.request.max.bytes={largest}"
        raise _ImpossibleTogetherError(message, "queued.max.request.bytes", "socket.request.max.bytes")


def _max_versions(values: Mapping[str, Value]) -> dict[ApiKey, int]:
    return {capped_api(name): cast(int, value) for name, value in values.items() if name.startswith(MAX_VERSION_PREFIX)}


def _first(values: Mapping[str, Value], *candidates: tuple[str, int]) -> int:
    """The first of several synonyms that is set, times its unit; the last one always is."""
    for name, unit in candidates:
        number = cast("int | None", values[name])
        if number is not None:
            return number if number < 0 else number * unit
    raise AssertionError(candidates)


def _topic_defaults(values: Mapping[str, Value]) -> dict[str, Value]:
    """What each topic key is when a topic doesn't set it: the broker's key, else the key's own default."""
    defaults: dict[str, Value] = {
        key.name: values[key.broker_key] if key.broker_key in values else key.default_value for key in TOPIC_KEYS_BY_NAME.values()
    }
    defaults["segment.ms"] = _first(values, ("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS))
    defaults["segment.jitter.ms"] = _first(values, ("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS))
    defaults["flush.ms"] = _first(values, ("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1))
    defaults["retention.ms"] = _first(
        values, ("log.retention.ms", 1), ("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", _HOUR_MS)
    )
    return defaults


# Topics


def validate_topic_configs(configs: Iterable[tuple[str, str | None]]) -> dict[str, str] | TopicConfigFault:
    """A topic's configuration as a client gave it, or what is wrong with it; of a key given twice the last value counts.

    Faults: INVALID_CONFIG for an unknown key, an impossible value, and null.
    """
    checked: dict[str, str] = {}
    for name, text in configs:
        key = TOPIC_KEYS_BY_NAME.get(name)
        if key is None:
            return TopicConfigFault(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if text is None:
            return TopicConfigFault(ErrorCode.INVALID_CONFIG, f"Null value not supported for the topic config {name}")
        try:
            checked[name] = value_text(key.parse(text))
        except ConfigError as error:
            return TopicConfigFault(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}: {error}")
    return checked


class TopicConfigEntry(NamedTuple):
    """One key of a topic as it is in force. `source` is Kafka's number for where the value comes from (KIP-226)."""

    name: str
    value: str | None
    source: int
    is_sensitive: bool


_SOURCE_TOPIC: Final = 1
_SOURCE_BROKER: Final = 4
_SOURCE_DEFAULT: Final = 5


def describe_topic_configs(config: BrokerConfig, overrides: Mapping[str, str]) -> list[TopicConfigEntry]:
    """Every key of a topic that sets `overrides`, with its value and where that comes from."""
    entries = []
    for key in TOPIC_KEYS_BY_NAME.values():
        if key.internal and key.name not in overrides:
            continue
        if key.name in overrides:
            entries.append(TopicConfigEntry(key.name, overrides[key.name], _SOURCE_TOPIC, is_sensitive=False))
            continue
        given = key.broker_key is not None and key.broker_key in config.given
        value = value_text(config.topic_defaults[key.name])
        entries.append(TopicConfigEntry(key.name, value, _SOURCE_BROKER if given else _SOURCE_DEFAULT, is_sensitive=False))
    return entries


def log_config(config: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """The effective configuration of the logs of a topic that sets `overrides`, which were validated."""
    defaults = config.topic_defaults

    def value(name: str) -> Any:
        return TOPIC_KEYS_BY_NAME[name].parse(overrides[name]) if name in overrides else defaults[name]

    return LogConfig(
        segment_bytes=value("internal.segment.bytes") or value("segment.bytes"),
        segment_ms=value("segment.ms"),
        segment_index_bytes=value("segment.index.bytes"),
        index_interval_bytes=value("index.interval.bytes"),
        max_message_bytes=value("max.message.bytes"),
        message_timestamp_type=value("message.timestamp.type"),
        message_timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
        cleanup_policy=frozenset(value("cleanup.policy")),
        compression_type=value("compression.type"),
        flush_messages=value("flush.messages"),
        flush_ms=value("flush.ms"),
        file_delete_delay_ms=value("file.delete.delay.ms"),
        preallocate=value("preallocate"),
        retention_ms=value("retention.ms"),
        retention_bytes=value("retention.bytes"),
        min_insync_replicas=value("min.insync.replicas"),
    )
