"""A broker's configuration: the table of all keys, and the typed values that the broker runs on.

Guards: whatever starts was checked whole; every unknown key and every impossible value is refused with one sentence. It
doesn't read files or the environment (`sources.py`, and the command line above it), and doesn't know which topics there
are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from lowtide.broker.config.connection_overrides import parse_overrides
from lowtide.broker.config.follower_fetch_rules import check_follower_fetches
from lowtide.broker.config.group_config import check_groups
from lowtide.broker.config.http_listeners import HttpListener, http_listeners, trusted_proxies
from lowtide.broker.config.key import LISTENER_PREFIX, ConfigError, ConfigKey, ImpossibleTogetherError, Type, Value
from lowtide.broker.config.keys_cluster import CLUSTER_KEYS
from lowtide.broker.config.keys_groups import GROUP_KEYS
from lowtide.broker.config.keys_own import OWN_KEYS
from lowtide.broker.config.keys_remote import REMOTE_KEYS
from lowtide.broker.config.keys_security import SECURITY_KEYS
from lowtide.broker.config.keys_server import SERVER_KEYS
from lowtide.broker.config.listener_settings import SecuredListener, secured_listeners
from lowtide.broker.config.listeners import Listener, advertised_listeners, client_listeners, inter_broker_listener
from lowtide.broker.config.maximum_versions import MAX_VERSION_PREFIX, api_of, max_version_key
from lowtide.broker.config.sasl_settings import OwnLogin, inter_broker_login
from lowtide.broker.config.security_rules import check_security
from lowtide.broker.config.sources import DYNAMIC_BROKER, DYNAMIC_DEFAULT, Given
from lowtide.broker.config.topic_defaults import check_consumed_retention, topic_defaults
from lowtide.protocol.api_keys import ApiKey

__all__ = ["BROKER_KEYS", "BrokerConfig", "ConfigError", "Given", "Listener", "broker_key", "load_config"]

BROKER_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {
        key.name: key
        for table in (SERVER_KEYS, CLUSTER_KEYS, GROUP_KEYS, SECURITY_KEYS, REMOTE_KEYS, OWN_KEYS)
        for key in table
    }
)
"""All keys of a broker by name, but for those whose names have a free part (`broker_key`)."""

_DEFAULTS: Final[Mapping[str, Value]] = MappingProxyType({key.name: key.default_value for key in BROKER_KEYS.values()})
FREE_PREFIXES: Final = ("config.providers.", "rlmm.config.", "rsm.config.")
"""Keys that begin so are handed to plug-ins, of which Lowtide has none."""
_UNLIMITED: Final = 2**63 - 1

_NEWEST: Final = (_UNLIMITED,)
_LOG_START_VERSION: Final = (0, 11)
"""The version of Apache Kafka from which on followers tell their log starts. Source: KIP-107."""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one broker runs on. Names are Kafka's keys; `values` has every key, `given` those that were set."""

    node_id: int
    broker_rack: str | None
    listeners: tuple[Listener, ...]
    """Those of clients and brokers; a controller's listeners of KRaft aren't opened."""
    advertised_listeners: tuple[Listener, ...]
    """The addresses that clients get, by listener names; port 0 stands for the port that was bound."""
    http_listeners: tuple[HttpListener, ...]
    trusted_proxies: tuple[str, ...]
    secured_listeners: Mapping[str, SecuredListener]
    """How listeners are secured that aren't open to everybody, by their names."""
    inter_broker_login: tuple[str, OwnLogin] | None
    """Mechanism and user by which this broker logs in to others, where that listener has SASL."""
    inter_broker_listener: str
    """The name of the one that is for other brokers."""
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
    request_decompressed_max_bytes: int
    request_rows_max: int
    answers_unread_max_bytes: int
    connections_max_idle_ms: int
    """No limit is the largest number there is."""
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
    """Whether this broker tells its log starts when it follows: `inter.broker.protocol.version` isn't below 0.11."""
    max_versions: Mapping[ApiKey, int]
    """The highest version to offer, for the APIs that are capped."""
    topic_defaults: Mapping[str, Value]
    """What a topic that sets nothing has, by the topic's keys."""
    values: Mapping[str, Value]
    given: Mapping[str, Given]

    @property
    def advertises_local_address(self) -> bool:
        """Whether a client gets the address at which its connection arrived: nothing else is set to be advertised."""
        return self.values["lowtide.advertise.local.address"] is True and "advertised.listeners" not in self.given

    @property
    def follower_fetch_bytes(self) -> int:
        """What a follower fetches of a partition at a time."""
        return min(
            _number(self.values, "replica.fetch.max.bytes"), _number(self.values, "replica.fetch.response.max.bytes")
        )

    @property
    def unenforced_keys_given(self) -> tuple[str, ...]:
        """The keys that are set and have no effect yet, sorted."""
        return tuple(sorted(name for name in self.given if not broker_key(name).enforced))


def broker_key(name: str) -> ConfigKey:
    """The key of that name, also one with a free part: `listener.name.<listener>.<key>`, `lowtide.max.version.<Api>`.

    Errors: ConfigError when there is none; the message is a sentence without its full stop.
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
        return ConfigKey(name, Type.STRING, None, None, "Handed to the plug-in that the prefix stands for.")
    message = f"{name} is not a key of a broker's configuration: allowed are the keys listed in docs/configuration.md{_similar(name)}"
    raise ConfigError(message)


def load_config(
    *, settings: Mapping[str, str] | None = None, given: Mapping[str, Given] | None = None, host_name: str = "localhost"
) -> BrokerConfig:
    """Check everything that was given and make the configuration.

    `given` comes from `sources.merge`; `settings` is the short form for tests and programs, and stronger. `host_name` is advertised
    for listeners on every interface.

    Errors: ConfigError, one sentence.
    """
    everything = dict(given or {})
    everything.update({name: Given(text, "settings") for name, text in (settings or {}).items()})
    values = dict(_DEFAULTS)
    canonical: dict[str, Given] = {}
    for name, value in everything.items():
        try:
            key = broker_key(name)
            values[key.name] = key.parse(value.text)
        except ConfigError as error:
            message = f"{error} (in {value.source})."
            raise ConfigError(message) from None
        canonical[key.name] = value
    try:
        return _typed(values, canonical, host_name)
    except ImpossibleTogetherError as error:
        sources = sorted({canonical[key].source for key in error.keys if key in canonical})
        message = f"{error} (in {', '.join(sources)})."
        raise ConfigError(message) from None


def _typed(values: dict[str, Value], given: Mapping[str, Given], host_name: str) -> BrokerConfig:
    """Resolve synonyms, check what keys say of each other, and give the values their types."""
    check_security(values, given)
    check_follower_fetches(values)
    check_groups(values)
    parse_overrides(values)
    defaults = topic_defaults(values)
    if not any(each.source in (DYNAMIC_BROKER, DYNAMIC_DEFAULT) for each in given.values()):
        # What is set later was checked then; a broker that was started on something else shortens the time.
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
        num_partitions=_number(values, "num.partitions"),
        default_replication_factor=_number(values, "default.replication.factor"),
        auto_create_topics_enable=values["auto.create.topics.enable"] is True,
        delete_topic_enable=values["delete.topic.enable"] is True,
        message_max_bytes=_number(values, "message.max.bytes"),
        min_insync_replicas=_number(values, "min.insync.replicas"),
        socket_request_max_bytes=_number(values, "socket.request.max.bytes"),
        queued_max_request_bytes=_request_memory(values),
        request_decompressed_max_bytes=_number(values, "lowtide.request.decompressed.max.bytes"),
        request_rows_max=_number(values, "lowtide.request.rows.max"),
        answers_unread_max_bytes=_number(values, "lowtide.answers.unread.max.bytes"),
        connections_max_idle_ms=_limit(values, "connections.max.idle.ms"),
        frees_deleted=values["lowtide.log.free.deleted"] is True,
        login_timeout_ms=_number(values, "lowtide.login.timeout.ms"),
        max_connections=_number(values, "max.connections"),
        max_connections_per_ip=_number(values, "max.connections.per.ip"),
        fetch_max_bytes=_number(values, "fetch.max.bytes"),
        max_incremental_fetch_session_cache_slots=_number(values, "max.incremental.fetch.session.cache.slots"),
        max_request_partition_size_limit=_number(values, "max.request.partition.size.limit"),
        producer_id_expiration_ms=_number(values, "producer.id.expiration.ms"),
        log_flush_offset_checkpoint_interval_ms=_number(values, "log.flush.offset.checkpoint.interval.ms"),
        replica_high_watermark_checkpoint_interval_ms=_number(values, "replica.high.watermark.checkpoint.interval.ms"),
        replica_lag_time_max_ms=_number(values, "replica.lag.time.max.ms"),
        broker_session_timeout_ms=_number(values, "broker.session.timeout.ms"),
        broker_heartbeat_interval_ms=_heartbeat(values),
        initial_broker_registration_timeout_ms=_number(values, "initial.broker.registration.timeout.ms"),
        controlled_shutdown_enable=values["controlled.shutdown.enable"] is True,
        reports_log_starts=_version(values, "inter.broker.protocol.version") >= _LOG_START_VERSION,
        max_versions=MappingProxyType(
            {api_of(name): _number(values, name) for name in given if name.startswith(MAX_VERSION_PREFIX)}
        ),
        topic_defaults=MappingProxyType(defaults),
        values=MappingProxyType(values),
        given=MappingProxyType(dict(given)),
    )


def _number(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), f"{name} is {value!r}"
    return value


def _limit(values: Mapping[str, Value], name: str) -> int:
    """A limit that a negative number switches off."""
    value = _number(values, name)
    return value if value >= 0 else _UNLIMITED


def _text_or_none(values: Mapping[str, Value], name: str) -> str | None:
    value = values[name]
    assert value is None or isinstance(value, str), f"{name} is {value!r}"
    return value or None


def _request_memory(values: Mapping[str, Value]) -> int:
    """The limit over all connections, which the largest request must fit into.

    Source: Kafka's KafkaConfig says the same.
    """
    limit, largest = _limit(values, "queued.max.request.bytes"), _number(values, "socket.request.max.bytes")
    if limit < largest:
        message = f"queued.max.request.bytes={limit} is not possible: allowed is at least socket.request.max.bytes={largest}, or below 0"
        raise ImpossibleTogetherError(message, "queued.max.request.bytes", "socket.request.max.bytes")
    return limit


def _heartbeat(values: Mapping[str, Value]) -> int:
    """How often a lease is renewed: one that is lost on the way must not cost the broker its place."""
    interval, timeout = _number(values, "broker.heartbeat.interval.ms"), _number(values, "broker.session.timeout.ms")
    if 2 * interval > timeout:
        message = f"broker.heartbeat.interval.ms={interval} is not possible: allowed is at most half of broker.session.timeout.ms={timeout}"
        raise ImpossibleTogetherError(message, "broker.heartbeat.interval.ms", "broker.session.timeout.ms")
    return interval


def _version(values: Mapping[str, Value], name: str) -> tuple[int, ...]:
    """The numbers of a version of Apache Kafka; without one it is the newest."""
    text = _text_or_none(values, name)
    return _NEWEST if text is None else tuple(map(int, text.partition("-")[0].split(".")))


def _node_id(values: Mapping[str, Value], given: Mapping[str, Given]) -> int:
    """The broker's number, by either of its two keys."""
    node_id, older = _number(values, "node.id"), _number(values, "broker.id")
    if older < 0 or older == node_id:
        return node_id
    if "node.id" in given:
        message = (
            f"node.id={node_id} and broker.id={older} are not possible together: allowed is one number under both names"
        )
        raise ImpossibleTogetherError(message, "node.id", "broker.id")
    return older


def _log_dirs(values: Mapping[str, Value], given: Mapping[str, Given]) -> tuple[str, ...]:
    """The log directories: log.dirs, else log.dir, else the default."""
    name = "log.dir" if "log.dir" in given and "log.dirs" not in given else "log.dirs"
    directories = values[name]
    assert isinstance(directories, tuple), name
    if not directories or "" in directories or len(set(directories)) != len(directories):
        message = (
            f"{name}={','.join(directories)} is not possible: allowed is a list of different directories, at least one"
        )
        raise ImpossibleTogetherError(message, name)
    return directories


def _similar(name: str) -> str:
    """A guess at what was meant."""
    from difflib import get_close_matches  # noqa: PLC0415  a broker that starts doesn't need it

    matches = get_close_matches(name, BROKER_KEYS, n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""
