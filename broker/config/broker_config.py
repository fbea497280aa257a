"""A broker's configuration: the table of all keys, and the typed values that the broker runs on.

Guards: a broker starts only with a configuration that was checked as a whole; every unknown key and invalid value is
refused with one sentence. Does not read files or the environment (`sources.py` does), and knows no topics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from lowtide.broker.config.group_config import check_groups
from lowtide.broker.config.http_listeners import HttpListener, http_listeners, trusted_proxies
from lowtide.broker.config.key import LISTENER_PREFIX, ConfigError, ConfigKey, InvalidKeysError, Type, Value, number
from lowtide.broker.config.keys_cluster import CLUSTER_KEYS, REMOTE_KEYS
from lowtide.broker.config.keys_groups import GROUP_KEYS
from lowtide.broker.config.keys_own import OWN_KEYS
from lowtide.broker.config.keys_security import SECURITY_KEYS
from lowtide.broker.config.keys_server import SERVER_KEYS
from lowtide.broker.config.listener_settings import SecuredListener, secured_listeners
from lowtide.broker.config.listeners import (
    ConfiguredListener,
    advertised_listeners,
    client_listeners,
    inter_broker_listener,
    parse_overrides,
)
from lowtide.broker.config.maximum_versions import MAX_VERSION_PREFIX, api_of, max_version_key
from lowtide.broker.config.sasl_settings import OwnLogin, inter_broker_login
from lowtide.broker.config.security_rules import check_security
from lowtide.broker.config.sources import DYNAMIC_BROKER, DYNAMIC_DEFAULT, Setting
from lowtide.broker.config.topic_defaults import check_consumed_retention, topic_defaults
from lowtide.protocol.api_keys import ApiKey
from lowtide.replication.leader_balance import BalanceRules

__all__ = ["BROKER_KEYS", "BrokerConfig", "ConfigError", "ConfiguredListener", "Setting", "broker_key", "load_config"]

BROKER_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {
        key.name: key
        for table in (SERVER_KEYS, CLUSTER_KEYS, GROUP_KEYS, SECURITY_KEYS, REMOTE_KEYS, OWN_KEYS)
        for key in table
    }
)
"""All keys of a broker by name, except those whose names have a variable part (`broker_key`)."""

_DEFAULTS: Final[Mapping[str, Value]] = MappingProxyType({key.name: key.default_value for key in BROKER_KEYS.values()})
FREE_PREFIXES: Final = ("config.providers.", "rlmm.config.", "rsm.config.")
"""Prefixes of keys for plug-ins, which Lowtide does not support."""
_UNLIMITED: Final = 2**63 - 1
_FETCH_WAIT: Final = "replica.fetch.wait.max.ms"

_NEWEST: Final = (_UNLIMITED,)
_LOG_START_VERSION: Final = (0, 11)
"""The Apache Kafka version from which followers report their log start offsets. Source: KIP-107."""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The typed configuration of a broker. `values` has every key, `given` only those that were set."""

    node_id: int
    broker_rack: str | None
    listeners: tuple[ConfiguredListener, ...]
    """The listeners for clients and brokers; listeners of KRaft controllers are not opened."""
    advertised_listeners: tuple[ConfiguredListener, ...]
    """The advertised addresses by listener name; port 0 stands for the port that was bound."""
    http_listeners: tuple[HttpListener, ...]
    trusted_proxies: tuple[str, ...]
    secured_listeners: Mapping[str, SecuredListener]
    """The security settings by listener name, for listeners that require TLS or SASL."""
    inter_broker_login: tuple[str, OwnLogin] | None
    """Mechanism and user of this broker's logins at other brokers, if that listener has SASL."""
    inter_broker_listener: str
    log_dirs: tuple[str, ...]
    cordoned_log_dirs: tuple[str, ...]
    """Those of `log_dirs` that receive no new partitions (KIP-1066)."""
    num_partitions: int
    default_replication_factor: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    message_max_bytes: int
    min_insync_replicas: int
    socket_request_max_bytes: int
    queued_max_request_bytes: int
    """At least `socket_request_max_bytes`; the largest integer stands for no limit."""
    request_decompressed_max_bytes: int
    request_rows_max: int
    answers_unread_max_bytes: int
    connections_max_idle_ms: int
    """The largest integer stands for no limit."""
    frees_deleted: bool
    login_timeout_ms: int
    max_connections: int
    max_connections_per_ip: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    producer_id_expiration_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    broker_session_timeout_ms: int
    broker_heartbeat_interval_ms: int
    """At most half of `broker_session_timeout_ms`."""
    initial_broker_registration_timeout_ms: int
    controlled_shutdown_enable: bool
    reports_log_starts: bool
    """Whether this broker reports its log start offsets when it follows: `inter.broker.protocol.version` is at least
    0.11."""
    max_versions: Mapping[ApiKey, int]
    topic_defaults: Mapping[str, Value]
    """The values of a topic that sets nothing, by the topic's keys."""
    values: Mapping[str, Value]
    given: Mapping[str, Setting]

    @property
    def advertises_local_address(self) -> bool:
        """Whether clients get the address that they connected to, because no other address is configured."""
        return self.values["lowtide.advertise.local.address"] is True and "advertised.listeners" not in self.given

    @property
    def follower_fetch_bytes(self) -> int:
        return min(
            number(self.values["replica.fetch.max.bytes"]), number(self.values["replica.fetch.response.max.bytes"])
        )

    @property
    def unenforced_keys_given(self) -> tuple[str, ...]:
        """The keys that are set but have no effect, sorted."""
        return tuple(sorted(name for name in self.given if not broker_key(name).enforced))


def broker_key(name: str) -> ConfigKey:
    """Returns the key of that name, including `listener.name.<listener>.<key>` and `lowtide.max.version.<Api>`.

    Errors: ConfigError if there is none; the message has no full stop.
    """
    key = BROKER_KEYS.get(name)
    if key is not None:
        return key
    if name.startswith(MAX_VERSION_PREFIX):
        return max_version_key(name)
    if name.startswith(LISTENER_PREFIX):
        rest = name[len(LISTENER_PREFIX) :].partition(".")[2]
        base = BROKER_KEYS.get(rest) or BROKER_KEYS.get(rest.partition(".")[2])
        if base is not None:
            return msgspec.structs.replace(
                base,
                name=name,
                default=None,
                enforced=base.enforced and (base in SECURITY_KEYS or base.name == "max.connection.creation.rate"),
            )
    if name.startswith(FREE_PREFIXES):
        return ConfigKey(name, Type.STRING, None, None, "A setting of a plug-in.", enforced=False)
    raise ConfigError(f"{name} is not a broker configuration key: `lowtide keys` prints all keys{_similar(name)}")


def balance_rules(config: BrokerConfig) -> BalanceRules | None:
    """Returns the rules for moving leaderships between the processes of a machine; None if they are disabled."""
    values = config.values
    if values["lowtide.leader.balance.enable"] is not True:
        return None
    return BalanceRules(
        full=number(values["lowtide.leader.balance.busy.percent"]) / 100,
        moves_per_minute=number(values["lowtide.leader.balance.moves.per.minute"]),
    )


def load_config(
    *,
    settings: Mapping[str, str] | None = None,
    given: Mapping[str, Setting] | None = None,
    host_name: str = "localhost",
) -> BrokerConfig:
    """Checks all settings and returns the configuration.

    `given` comes from `sources.merge`; `settings` is the short form for tests and programs, and takes precedence.
    `host_name` is advertised for listeners on all interfaces.

    Errors: ConfigError, one sentence.
    """
    everything = dict(given or {})
    everything.update({name: Setting(text, "settings") for name, text in (settings or {}).items()})
    values = dict(_DEFAULTS)
    canonical: dict[str, Setting] = {}
    for name, value in everything.items():
        try:
            key = broker_key(name)
            values[key.name] = key.parse(value.text)
        except ConfigError as error:
            raise ConfigError(f"{error} (in {value.source}).") from None
        canonical[key.name] = value
    try:
        return _typed(values, canonical, host_name)
    except InvalidKeysError as error:
        sources = sorted({canonical[key].source for key in error.keys if key in canonical})
        raise ConfigError(f"{error} (in {', '.join(sources)}).") from None


def _typed(values: dict[str, Value], given: Mapping[str, Setting], host_name: str) -> BrokerConfig:
    """Resolves synonyms, checks keys against each other, and converts values to their types."""
    check_security(values, given)
    _check_follower_fetches(values)
    check_groups(values)
    parse_overrides(values)
    defaults = topic_defaults(values)
    if not any(each.source in (DYNAMIC_BROKER, DYNAMIC_DEFAULT) for each in given.values()):
        # Dynamic values were checked when they were set. If a broker restarts with a shorter retention, the time for
        # consumed records is reduced instead.
        check_consumed_retention(values, defaults)
    listeners = client_listeners(values)
    advertised = advertised_listeners(values, listeners, host_name)
    between = inter_broker_listener(values, given, advertised)
    of_http = http_listeners(values)
    secured = secured_listeners(values, given, listeners, of_http)
    sasl = secured[between].sasl if between in secured else None
    return BrokerConfig(
        node_id=_node_id(values, given),
        broker_rack=_text_or_none(values, "broker.rack"),
        listeners=listeners,
        advertised_listeners=advertised,
        http_listeners=of_http,
        trusted_proxies=trusted_proxies(values),
        secured_listeners=MappingProxyType(dict(secured)),
        inter_broker_login=None if sasl is None else inter_broker_login(values, between, sasl),
        inter_broker_listener=between,
        log_dirs=_log_dirs(values, given),
        cordoned_log_dirs=_cordoned(values, _log_dirs(values, given)),
        num_partitions=number(values["num.partitions"]),
        default_replication_factor=number(values["default.replication.factor"]),
        auto_create_topics_enable=values["auto.create.topics.enable"] is True,
        delete_topic_enable=values["delete.topic.enable"] is True,
        message_max_bytes=number(values["message.max.bytes"]),
        min_insync_replicas=number(values["min.insync.replicas"]),
        socket_request_max_bytes=number(values["socket.request.max.bytes"]),
        queued_max_request_bytes=_request_memory(values),
        request_decompressed_max_bytes=number(values["lowtide.request.decompressed.max.bytes"]),
        request_rows_max=number(values["lowtide.request.rows.max"]),
        answers_unread_max_bytes=number(values["lowtide.answers.unread.max.bytes"]),
        connections_max_idle_ms=_limit(values, "connections.max.idle.ms"),
        frees_deleted=values["lowtide.log.free.deleted"] is True,
        login_timeout_ms=number(values["lowtide.login.timeout.ms"]),
        max_connections=number(values["max.connections"]),
        max_connections_per_ip=number(values["max.connections.per.ip"]),
        fetch_max_bytes=number(values["fetch.max.bytes"]),
        max_incremental_fetch_session_cache_slots=number(values["max.incremental.fetch.session.cache.slots"]),
        max_request_partition_size_limit=number(values["max.request.partition.size.limit"]),
        producer_id_expiration_ms=number(values["producer.id.expiration.ms"]),
        log_flush_offset_checkpoint_interval_ms=number(values["log.flush.offset.checkpoint.interval.ms"]),
        replica_high_watermark_checkpoint_interval_ms=number(values["replica.high.watermark.checkpoint.interval.ms"]),
        replica_lag_time_max_ms=number(values["replica.lag.time.max.ms"]),
        broker_session_timeout_ms=number(values["broker.session.timeout.ms"]),
        broker_heartbeat_interval_ms=_heartbeat(values),
        initial_broker_registration_timeout_ms=number(values["initial.broker.registration.timeout.ms"]),
        controlled_shutdown_enable=values["controlled.shutdown.enable"] is True,
        reports_log_starts=_version(values, "inter.broker.protocol.version") >= _LOG_START_VERSION,
        max_versions=MappingProxyType(
            {api_of(name): number(values[name]) for name in given if name.startswith(MAX_VERSION_PREFIX)}
        ),
        topic_defaults=MappingProxyType(defaults),
        values=MappingProxyType(values),
        given=MappingProxyType(dict(given)),
    )


def _check_follower_fetches(values: Mapping[str, Value]) -> None:
    """Checks that a follower does not wait for longer than its leader tolerates. Errors: InvalidKeysError.

    Source: Kafka's KafkaConfig; the limits of 0 are Lowtide's: below them, Kafka's brokers fail with each request.
    """
    for name in ("replica.fetch.min.bytes", _FETCH_WAIT):
        if number(values[name]) < 0:
            raise InvalidKeysError(f"{name}={values[name]} is invalid: allowed is at least 0", name)
    for name in ("replica.lag.time.max.ms", "replica.socket.timeout.ms"):
        if number(values[name]) < max(number(values[_FETCH_WAIT]), 1):
            message = f"{name}={values[name]} is invalid: allowed is at least {_FETCH_WAIT}={values[_FETCH_WAIT]}"
            raise InvalidKeysError(message, name, _FETCH_WAIT)


def _limit(values: Mapping[str, Value], name: str) -> int:
    """Returns a limit; a negative number means no limit."""
    value = number(values[name])
    return value if value >= 0 else _UNLIMITED


def _text_or_none(values: Mapping[str, Value], name: str) -> str | None:
    value = values[name]
    assert value is None or isinstance(value, str), f"{name} is {value!r}"
    return value or None


def _request_memory(values: Mapping[str, Value]) -> int:
    """Returns the limit over all connections, which must not be below the largest request.

    Source: Kafka's KafkaConfig.
    """
    limit, largest = _limit(values, "queued.max.request.bytes"), number(values["socket.request.max.bytes"])
    if limit < largest:
        message = (
            f"queued.max.request.bytes={limit} is invalid: allowed is at least socket.request.max.bytes={largest}, or "
            "below 0"
        )
        raise InvalidKeysError(message, "queued.max.request.bytes", "socket.request.max.bytes")
    return limit


def _heartbeat(values: Mapping[str, Value]) -> int:
    """Returns the heartbeat interval, which must be short enough that a session survives one lost heartbeat."""
    interval, timeout = number(values["broker.heartbeat.interval.ms"]), number(values["broker.session.timeout.ms"])
    if 2 * interval > timeout:
        message = (
            f"broker.heartbeat.interval.ms={interval} is invalid: allowed is at most half of "
            f"broker.session.timeout.ms={timeout}"
        )
        raise InvalidKeysError(message, "broker.heartbeat.interval.ms", "broker.session.timeout.ms")
    return interval


def _version(values: Mapping[str, Value], name: str) -> tuple[int, ...]:
    """Returns the numbers of an Apache Kafka version; the newest if not set."""
    text = _text_or_none(values, name)
    return _NEWEST if text is None else tuple(map(int, text.partition("-")[0].split(".")))


def _node_id(values: Mapping[str, Value], given: Mapping[str, Setting]) -> int:
    """Returns the broker's ID from either of its two keys."""
    node_id, older = number(values["node.id"]), number(values["broker.id"])
    if older < 0 or older == node_id:
        return node_id
    if "node.id" in given:
        message = f"node.id={node_id} and broker.id={older} differ: both are names of one key"
        raise InvalidKeysError(message, "node.id", "broker.id")
    return older


def _log_dirs(values: Mapping[str, Value], given: Mapping[str, Setting]) -> tuple[str, ...]:
    """Returns the log directories: log.dirs, or log.dir, or the default."""
    name = "log.dir" if "log.dir" in given and "log.dirs" not in given else "log.dirs"
    directories = values[name]
    assert isinstance(directories, tuple), name
    if not directories or "" in directories or len(set(directories)) != len(directories):
        message = f"{name}={','.join(directories)} is invalid: allowed is a list of different directories, at least one"
        raise InvalidKeysError(message, name)
    return directories


def _similar(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  a broker that starts doesn't need it

    matches = get_close_matches(name, BROKER_KEYS, n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""


def _cordoned(values: Mapping[str, Value], log_dirs: Sequence[str]) -> tuple[str, ...]:
    """Returns the log directories that receive no new partitions. Source: Kafka's KafkaConfig."""
    name = "cordoned.log.dirs"
    cordoned = values[name]
    assert isinstance(cordoned, tuple), name
    if cordoned == ("*",):
        return tuple(log_dirs)
    if len(set(cordoned)) != len(cordoned) or not set(cordoned) <= set(log_dirs):
        message = f"{name}={','.join(cordoned)} is invalid: allowed is a list of different values of log.dirs, or *"
        raise InvalidKeysError(message, name)
    return cordoned
