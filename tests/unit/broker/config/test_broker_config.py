"""A broker's configuration as a whole: typed values, synonyms, and rules between keys."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import BROKER_KEYS, BrokerConfig, ConfigError, Setting, broker_key, load_config
from lowtide.broker.config.listeners import ConfiguredListener
from lowtide.protocol.api_keys import API, ApiKey
from tests.each import each

UNLIMITED = 2**63 - 1


def load(**settings: str) -> BrokerConfig:
    """Settings with underscores for dots."""
    return load_config(settings={name.replace("_", "."): value for name, value in settings.items()})


def refusal(**settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**settings)
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


def test_a_broker_starts_without_a_file():
    """The defaults that differ from Apache Kafka's, and some that do not."""
    config = load_config()
    assert (config.node_id, config.log_dirs, config.num_partitions) == (0, ("./data",), 1)
    assert config.queued_max_request_bytes == 256 << 20
    assert config.socket_request_max_bytes == 100 << 20
    assert config.listeners == (ConfiguredListener("PLAINTEXT", "PLAINTEXT", "", 9092),)
    assert config.auto_create_topics_enable
    assert config.broker_rack is None
    assert config.given == {}
    assert config.unenforced_keys_given == ()


def test_typed_values_are_those_of_the_table():
    """Every attribute that has a key's name has that key's value: none reads another key by mistake."""
    changed = {}
    for name in BrokerConfig.__struct_fields__:
        key = BROKER_KEYS.get(name.replace("_", "."))
        if key is None or name in (
            "listeners",
            "advertised_listeners",
            "http_listeners",
            "inter_broker_listener",
            "log_dirs",
            "cordoned_log_dirs",
            "broker_heartbeat_interval_ms",
        ):
            continue
        changed[name] = {"boolean": "false", "string": "b1"}.get(key.type.value, str(300_000_000 + len(changed)))
    config = load(**changed)
    assert len(changed) > 15
    for name, text in changed.items():
        assert str(getattr(config, name)).lower() == text, name


def test_a_lease_is_renewed_twice_in_its_time():
    """A renewal that is lost must not end a broker's registration."""
    config = load(broker_heartbeat_interval_ms="2000")
    assert (config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms) == (2000, 4000)
    assert "broker.session.timeout.ms=4000" in refusal(broker_heartbeat_interval_ms="2001")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"replica_fetch_wait_max_ms": "30001"}, "replica.lag.time.max.ms=30000 is invalid: allowed is at least"),
        ({"replica_lag_time_max_ms": "499"}, "replica.fetch.wait.max.ms=500"),
        ({"replica_socket_timeout_ms": "499"}, "replica.socket.timeout.ms=499 is invalid"),
        ({"replica_fetch_wait_max_ms": "-1"}, "replica.fetch.wait.max.ms=-1 is invalid: allowed is at least 0"),
        ({"replica_fetch_min_bytes": "-1"}, "replica.fetch.min.bytes=-1 is invalid"),
        (
            {"replica_fetch_wait_max_ms": "0", "replica_lag_time_max_ms": "0"},
            "replica.lag.time.max.ms=0 is invalid",
        ),
    ],
)
def test_followers_that_wait_too_long_are_refused(settings, told):
    """They would leave the ISR and rejoin, or their connections would time out."""
    assert told in refusal(**settings)


def test_followers_may_wait_just_as_long_as_their_leader():
    """As in Kafka."""
    load(replica_fetch_wait_max_ms="700", replica_lag_time_max_ms="700", replica_socket_timeout_ms="700")


@pytest.mark.parametrize(
    ("version", "reports"),
    [
        ("0.10.2", False),
        ("0.10.2-IV0", False),
        ("0.11.0", True),
        ("0.11.0-IV2", True),
        ("0.11", True),
        ("3.9-IV0", True),
        ("4.3", True),
    ],
)
def test_which_version_between_brokers_reports_log_starts(version: str, *, reports: bool):
    """KIP-107 is from 0.11; without the key a broker uses the newest version."""
    assert load(inter_broker_protocol_version=version).reports_log_starts is reports
    assert load().reports_log_starts


def test_what_is_no_version_is_refused():
    """It is not treated as the newest."""
    assert "a version of Apache Kafka" in refusal(inter_broker_protocol_version="newest")


@pytest.mark.parametrize("name", ["queued.max.request.bytes", "connections.max.idle.ms"])
def test_a_negative_limit_is_none(name: str):
    """As in Kafka; the broker only compares numbers."""
    assert getattr(load_config(settings={name: "-1"}), name.replace(".", "_")) == UNLIMITED


def test_the_largest_request_fits_the_memory_for_requests():
    """Otherwise it could never be admitted."""
    assert "socket.request.max.bytes=104857600" in refusal(queued_max_request_bytes="104857599")
    assert load(queued_max_request_bytes="104857600").queued_max_request_bytes == 104857600


def test_a_refusal_names_its_source():
    """The file's line, the variable or the flag: the place to change it."""
    with pytest.raises(ConfigError, match=r"num\.partitions=0 .* at least 1 \(in server\.properties line 7\)\.$"):
        load_config(given={"num.partitions": Setting("0", "server.properties line 7")})


@pytest.mark.parametrize(
    "name",
    ["num.partition", "lowtide.max.versions.Fetch", "retention.ms", "listener.name.a.nothing", "", "listener.name."],
)
def test_an_unknown_key_is_refused(name: str):
    """A misspelt key that is silently ignored is worse than a broker that does not start."""
    with pytest.raises(ConfigError, match="is not a broker configuration key"):
        load_config(settings={name: "1"})


def test_a_misspelt_key_is_guessed():
    """Most are one letter off."""
    assert "did you mean num.partitions?" in refusal(num_partition="3")


def test_keys_with_a_free_part_are_checked_as_their_last_part():
    """`listener.name.<listener>.<key>` and those with a SASL mechanism too, as in Kafka; plug-ins' keys are free."""
    config = load_config(
        settings={
            "listener.name.internal.ssl.client.auth": "none",
            "listener.name.internal.plain.sasl.jaas.config": "",
            "config.providers.vault.param.url": "u",
        }
    )
    assert config.unenforced_keys_given == ("config.providers.vault.param.url",)
    with pytest.raises(ConfigError, match="required, requested, none"):
        load_config(settings={"listener.name.internal.ssl.client.auth": "perhaps"})


def test_keys_that_do_nothing_yet_are_named():
    """This is for the warning at the start, which leaves out keys with an effect."""
    config = load(log_cleaner_io_buffer_size="5", num_partitions="2", num_io_threads="3", lowtide_max_version_Fetch="4")
    assert config.unenforced_keys_given == ("log.cleaner.io.buffer.size", "num.io.threads")


# Node id and log directories, which have two names each.


@pytest.mark.parametrize(
    ("settings", "node_id"),
    [
        ({}, 0),
        ({"node_id": "4"}, 4),
        ({"broker_id": "5"}, 5),
        ({"node_id": "6", "broker_id": "6"}, 6),
        ({"broker_id": "-1"}, 0),
    ],
)
def test_the_node_id_has_two_names(settings: dict[str, str], node_id: int):
    """broker.id is the older one; with -1, node.id counts."""
    assert load(**settings).node_id == node_id


def test_two_different_node_ids_are_refused():
    """One of them is a mistake, and the node id decides which log directory belongs to the broker."""
    assert "node.id=1 and broker.id=2" in refusal(node_id="1", broker_id="2")
    assert "node.id=0 and broker.id=2" in refusal(node_id="0", broker_id="2")


@pytest.mark.parametrize(
    ("settings", "directories"),
    [
        ({"log_dir": "/a"}, ("/a",)),
        ({"log_dirs": "/b, /c"}, ("/b", "/c")),
        ({"log_dir": "/a", "log_dirs": "/b"}, ("/b",)),
    ],
)
def test_log_directories_have_two_names(settings: dict[str, str], directories: tuple[str, ...]):
    """log.dirs overrides log.dir, as in Kafka."""
    assert load(**settings).log_dirs == directories


@pytest.mark.parametrize("directories", ["", "/a,", "/a,/a"])
def test_impossible_log_directories_are_refused(directories: str):
    """None, one without a name, one twice."""
    assert "log.dirs=" in refusal(log_dirs=directories)


# Listeners.


@pytest.mark.parametrize(
    ("listeners", "host", "port"),
    [
        ("PLAINTEXT://:0", "", 0),
        ("PLAINTEXT://127.0.0.1:9092", "127.0.0.1", 9092),
        ("plaintext://localhost:65535", "localhost", 65535),
        ("PLAINTEXT://[::1]:9092", "::1", 9092),
        ("PLAINTEXT://:9092,CONTROLLER://:9093", "", 9092),
    ],
)
def test_a_listener_is_read(listeners: str, host: str, port: int):
    """A controller's listener in a file for KRaft is not opened."""
    config = load(
        listeners=listeners,
        controller_listener_names="CONTROLLER",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    )
    assert config.listeners == (ConfiguredListener("PLAINTEXT", "PLAINTEXT", host, port),)


@pytest.mark.parametrize(
    ("listeners", "why"),
    [
        ("PLAINTEXT", "NAME://host:port"),
        ("PLAINTEXT://:x", "NAME://host:port"),
        ("PLAINTEXT://::1:9092", "NAME://host:port"),
        ("PLAINTEXT://:65536", "a port from 0 to 65535"),
        ("PLAINTEXT://:1,plaintext://:2", "each listener name once"),
        ("PLAINTEXT://:1,SSL://:1", "1 is given 2 times"),
        ("PLAINTEXT://:1,SSL://:2", "the listener SSL uses TLS but has no certificate"),
        ("OTHER://:1", "listener.security.protocol.map"),
        ("PLAINTEXT://:1,SASL_PLAINTEXT://:2", "sasl.enabled.mechanisms=GSSAPI is invalid"),
        ("", "has no listener for clients"),
    ],
)
def test_an_impossible_listener_is_refused(listeners: str, why: str):
    """Above all one that looks protected and is not."""
    assert why in refusal(listeners=listeners)


def test_a_listener_may_have_any_name():
    """The map has its protocol."""
    config = load(
        listeners="HERE://:1", listener_security_protocol_map="HERE:PLAINTEXT", inter_broker_listener_name="here"
    )
    assert config.listeners[0].protocol == "PLAINTEXT"
    assert config.inter_broker_listener == "HERE"
    changed = {"listeners": "HERE://:1,OWN://:2", "listener_security_protocol_map": "HERE:SSL,OWN:PLAINTEXT"}
    assert "the listener HERE uses TLS" in refusal(**changed, inter_broker_listener_name="own")
    assert "NAME:PROTOCOL" in refusal(listener_security_protocol_map="HERE:TLS")


def test_clients_receive_an_address_that_they_can_use():
    """A listener on every interface is advertised with this machine's name, an advertised one as configured."""
    assert load_config(host_name="tide-1").advertised_listeners[0].host == "tide-1"
    assert load(listeners="PLAINTEXT://10.0.0.1:9092").advertised_listeners[0].host == "10.0.0.1"
    told = load(
        listeners="PLAINTEXT://0.0.0.0:9092", advertised_listeners="PLAINTEXT://tide.example:19092"
    ).advertised_listeners
    assert told == (ConfiguredListener("PLAINTEXT", "PLAINTEXT", "tide.example", 19092),)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_a_listener_on_every_interface_may_advertise_the_address_at_which_clients_arrive(host: str):
    """Before a client connects, the host name is advertised, as for a listener without a host."""
    settings = {"listeners": f"PLAINTEXT://{host}:9092", "lowtide.advertise.local.address": "true"}
    config = load_config(settings=settings, host_name="tide-1")
    assert config.advertises_local_address
    assert [each.host for each in config.advertised_listeners] == ["tide-1"]


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_every_interface_is_not_advertised(host: str):
    """A client that receives 0.0.0.0 connects to itself. Source: Kafka refuses it too."""
    assert "cannot be advertised" in refusal(listeners=f"PLAINTEXT://{host}:9092")
    assert "cannot be advertised" in refusal(advertised_listeners=f"PLAINTEXT://{host}:9092")


def test_only_a_listener_is_advertised():
    """An advertised name without a listener is a mistake."""
    assert "the names in listeners, PLAINTEXT" in refusal(advertised_listeners="SSL://tide:9093")


INSIDE_AND_OUTSIDE = {
    "listeners": "INSIDE://:19092,OUTSIDE://:9092",
    "advertised_listeners": "OUTSIDE://tide.example:443,INSIDE://tide-1:0",
    "listener_security_protocol_map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    "inter_broker_listener_name": "INSIDE",
}


def test_several_listeners_are_read_and_advertised_by_their_names():
    """In their configured order; a client receives the addresses of the listener that it uses."""
    config = load(**INSIDE_AND_OUTSIDE)
    assert [each.text for each in config.listeners] == ["INSIDE://:19092", "OUTSIDE://:9092"]
    assert [each.text for each in config.advertised_listeners] == ["OUTSIDE://tide.example:443", "INSIDE://tide-1:0"]
    assert config.inter_broker_listener == "INSIDE"


def test_a_listener_may_be_left_out_of_what_is_advertised():
    """Clients may use the listener, but Metadata has no address under its name. Source: Kafka accepts a subset."""
    config = load(**INSIDE_AND_OUTSIDE | {"advertised_listeners": "INSIDE://tide-1:0"})
    assert [each.name for each in config.advertised_listeners] == ["INSIDE"]


@pytest.mark.parametrize(
    ("listeners", "fits"),
    [
        ("A://:0,B://:0", True),
        ("A://127.0.0.1:1,B://[::1]:1", True),
        ("A://127.0.0.1:1,B://127.0.0.2:1", False),
        ("A://[::1]:1,B://[::2]:1", False),
        ("A://localhost:1,B://[::1]:1", False),
        ("A://127.0.0.1:1,B://[::1]:1,C://tide:1", False),
    ],
)
def test_a_port_is_shared_by_an_ipv4_and_an_ipv6_address_only(listeners: str, fits: bool):
    """Source: KIP-797."""
    settings = {
        "listeners": listeners,
        "listener_security_protocol_map": "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT",
        "inter_broker_listener_name": "A",
    }
    if fits:
        assert len(load(**settings).listeners) == 2
    else:
        assert "allowed is each port once, or twice for one IPv4 and one IPv6 address" in refusal(**settings)


def test_what_is_advertised_may_share_an_address():
    """A proxy in front of both. Source: KIP-797."""
    load(**INSIDE_AND_OUTSIDE | {"advertised_listeners": "OUTSIDE://tide.example:443,INSIDE://tide.example:443"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"inter_broker_listener_name": "OTHER"}, "the names in listener.security.protocol.map"),
        (
            {"advertised_listeners": "OUTSIDE://tide:1"},
            "must be a listener name defined in advertised.listeners, and is INSIDE: allowed is OUTSIDE",
        ),
        ({"inter_broker_listener_name": ""}, "and is PLAINTEXT: allowed are OUTSIDE, INSIDE"),
        ({"security_inter_broker_protocol": "PLAINTEXT"}, "cannot both be set"),
    ],
)
def test_where_other_brokers_reach_it_is_one_of_the_listeners_that_are_advertised(changes: dict[str, str], why: str):
    """Above all if the key is not set, and the names are the operator's own."""
    assert why in refusal(**INSIDE_AND_OUTSIDE | changes)


def test_the_protocol_between_brokers_names_a_listener_too():
    """The default is PLAINTEXT."""
    assert load(security_inter_broker_protocol="PLAINTEXT").inter_broker_listener == "PLAINTEXT"
    assert "and is SSL: allowed is PLAINTEXT" in refusal(security_inter_broker_protocol="SSL")


# Highest versions.


def test_an_api_is_capped_in_any_spelling():
    """Names in the environment are upper case, so case is ignored."""
    config = load_config(settings={"lowtide.max.version.DELETERECORDS": "1", "lowtide.max.version.fetch": "12"})
    assert config.max_versions == {ApiKey.DELETE_RECORDS: 1, ApiKey.FETCH: 12}
    assert "lowtide.max.version.DeleteRecords" in config.given


def test_the_later_of_two_spellings_counts():
    """The command line, in its own spelling, overrides the environment."""
    given = {"lowtide.max.version.FETCH": Setting("5", "E"), "lowtide.max.version.Fetch": Setting("6", "--set")}
    assert load_config(given=given).max_versions == {ApiKey.FETCH: 6}


@each("key", API, lambda key: key.name)
def test_a_cap_lies_within_the_supported_versions(key: ApiKey):
    """Below the lowest version the API would disappear, above the highest the cap would have no effect."""
    spec = API[key]
    name = f"lowtide.max.version.{key.name.replace('_', '')}"
    for version in (spec.min_version, spec.max_version):
        assert load_config(settings={name: str(version)}).max_versions == {key: version}
    for version in (spec.min_version - 1, spec.max_version + 1):
        with pytest.raises(ConfigError, match=f"from {spec.min_version} to {spec.max_version}"):
            load_config(settings={name: str(version)})


def test_an_api_that_is_not_served_cannot_be_capped():
    """The message lists those that can."""
    with pytest.raises(ConfigError, match=r"ApiVersions, (\w+, )*DeleteRecords, "):
        broker_key("lowtide.max.version.FetchSnapshot")
