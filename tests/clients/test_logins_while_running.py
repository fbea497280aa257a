"""Mechanisms and passwords of a listener are set while the broker runs: they hold for each login after the answer.

Apache Kafka lists these keys as changeable per broker (KIP-226) and refuses a change at a listener that there is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from lowtide import LowtideCluster
from lowtide.admin import BlockingAdminClient, NewTopic
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_groups import ListGroupsRequest
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest
from lowtide.protocol.scram import ScramMechanism
from tests.frames import Frames
from tests.issuer import AUDIENCE, ISSUER, Issuer, key_set

from .certificate_files import alter_broker
from .logging_in import confluent

PREFIX = "listener.name.sasl_plaintext."
ENABLED = f"{PREFIX}sasl.enabled.mechanisms"
USERS = f"{PREFIX}plain.sasl.jaas.config"
TOKENS = f"{PREFIX}oauthbearer."
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
Changes = dict[str, str | None]


def plain(**users: str) -> str:
    return f"{MODULE} " + " ".join(f'user_{user}="{password}"' for user, password in users.items()) + ";"


CONFIG = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    USERS: plain(alice="geheim-1"),
    "connection.failed.authentication.delay.ms": "0",
}


class World:
    """A broker with a listener where clients log in, beside an open one."""

    def __init__(self, cluster: LowtideCluster) -> None:
        self.cluster = cluster

    def _address(self, listener: str) -> str:
        return f"127.0.0.1:{self.cluster.ports(self.cluster.broker_ids[0])[listener]}"

    @cached_property
    def open(self) -> AdminClient:
        return AdminClient(
            {"bootstrap.servers": self._address("PLAINTEXT"), "error_cb": lambda _error: None, "log_level": 0}
        )

    @property
    def ours(self) -> BlockingAdminClient:
        return BlockingAdminClient({"bootstrap.servers": self._address("PLAINTEXT")})

    def logs_in(self, mechanism: str, password: str, user: str = "alice") -> bool:
        """Returns whether librdkafka is served by this login."""
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
        is_expected = not password.startswith("wrong")
        return confluent({"bootstrap.servers": self._address("SASL_PLAINTEXT"), **login}, refused=not is_expected) == ""

    def frames(self) -> Frames:
        return Frames(self._address("SASL_PLAINTEXT"))

    def handshake(self, mechanism: str) -> tuple[int, list[str]]:
        """Returns the answer to a handshake: its code, and the mechanisms that there are."""
        with self.frames() as frames:
            answer = frames.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
            return answer.error_code, answer.mechanisms

    def plain(self, password: str, user: str = "alice") -> int:
        """Returns the code that a login by PLAIN is answered with."""
        with self.frames() as frames:
            return log_in(frames, password, user)

    def token(self, token: str) -> bool:
        """Returns whether a token is a login; where it is not, the reason comes before the refusal."""
        with self.frames() as frames:
            return bool(frames.present(token).auth_bytes == b"")

    def refuses(self, changes: Changes, *words: str) -> None:
        """The broker doesn't take these changes, shows no secret, and keeps what it had."""
        before = self.described()
        with pytest.raises(KafkaException) as caught:
            alter_broker(self.open, changes)
        error = caught.value.args[0]
        assert error.code() == ErrorCode.INVALID_REQUEST
        for word in words:
            assert word in error.str()
        assert "geheim" not in error.str()
        assert self.described() == before
        assert self.plain("geheim-1") == 0

    def described(self) -> dict[str, tuple[str | None, bool, bool]]:
        """Returns the keys of the listener: value, whether it is read-only, whether it is a secret."""
        (found,) = self.open.describe_configs([ConfigResource(ResourceType.BROKER, "0")]).values()
        return {
            name: (each.value, each.is_read_only, each.is_sensitive)
            for name, each in found.result(10).items()
            if name.startswith(PREFIX)
        }


def log_in(frames: Frames, password: str, user: str = "alice") -> int:
    assert frames.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    return int(frames.ask(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{password}".encode()), 2).error_code)


@pytest.fixture
def world() -> Iterator[World]:
    with LowtideCluster(config=CONFIG) as cluster:
        yield World(cluster)


def test_a_mechanism_that_is_added_can_be_logged_in_with_at_once(world: World) -> None:
    change = ScramUpsertion(mechanism=ScramMechanism.SHA_512, password="pencil", salt=b"salt")
    with world.ours as ours:
        assert ours.alter_scram_users({"alice": change}) == {"alice": None}
    assert world.handshake("SCRAM-SHA-512") == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
    alter_broker(world.open, {ENABLED: "PLAIN,SCRAM-SHA-512"})
    assert world.handshake("SCRAM-SHA-512") == (0, ["PLAIN", "SCRAM-SHA-512"])
    assert world.logs_in("SCRAM-SHA-512", "pencil")
    assert not world.logs_in("SCRAM-SHA-512", "wrong")
    assert world.plain("geheim-1") == 0


@pytest.mark.slow
def test_a_mechanism_that_is_taken_away_is_refused(world: World) -> None:
    """A connection on which its client is logged in stays, and a login that has begun ends."""
    with world.frames() as inside, world.frames() as early, world.frames() as half:
        assert log_in(inside, "geheim-1") == 0
        assert half.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        alter_broker(world.open, {ENABLED: "SCRAM-SHA-256"})
        assert world.handshake("PLAIN") == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-256"])
        answer = early.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert half.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0geheim-1"), 2).error_code == 0
        assert inside.ask(ListGroupsRequest(), 4).error_code == 0
    assert not world.logs_in("PLAIN", "wrong, as each is")
    alter_broker(world.open, {ENABLED: None})
    assert world.logs_in("PLAIN", "geheim-1")


@pytest.mark.slow
def test_a_login_again_is_by_what_holds_then() -> None:
    with LowtideCluster(config=CONFIG | {"connections.max.reauth.ms": "3600000"}) as cluster:
        world = World(cluster)
        with world.frames() as frames, world.frames() as other:
            assert log_in(frames, "geheim-1") == log_in(other, "geheim-1") == 0
            alter_broker(world.open, {USERS: plain(alice="geheim-2")})
            assert frames.ask(ListGroupsRequest(), 4).error_code == 0
            assert log_in_again(frames, "geheim-1") == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert log_in_again(other, "geheim-2") == 0


def log_in_again(frames: Frames, password: str) -> int:
    """Returns the error code of another login, once the broker accepts one: a second after the last."""
    give_up = time.monotonic() + 30
    while frames.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return int(frames.ask(SaslAuthenticateRequest(auth_bytes=f"\0alice\0{password}".encode()), 2).error_code)


def test_a_changed_password_holds_for_new_logins_and_after_a_restart(tmp_path: Path) -> None:
    with LowtideCluster(config=CONFIG, data_directory=tmp_path) as cluster:
        world = World(cluster)
        alter_broker(world.open, {USERS: plain(alice="geheim-2", bob="geheim-3"), ENABLED: "PLAIN,SCRAM-SHA-256"})
        for _ in range(2):
            assert world.plain("geheim-1") == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert world.plain("geheim-2") == world.plain("geheim-3", "bob") == 0
            assert world.logs_in("PLAIN", "geheim-2")
            assert world.handshake("SCRAM-SHA-256")[0] == 0
            assert world.described() == {USERS: (None, False, True), ENABLED: ("PLAIN,SCRAM-SHA-256", False, False)}
            cluster.restart()
        alter_broker(world.open, {USERS: None, ENABLED: None})
        assert world.plain("geheim-1") == 0
        assert world.plain("geheim-2") == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.slow
def test_a_bad_value_is_refused_and_changes_nothing(world: World) -> None:
    world.refuses({ENABLED: "PLAIN,GSSAPI"}, "Kerberos", "allowed are PLAIN")
    world.refuses({ENABLED: ""}, "none is not a supported mechanism")
    world.refuses({ENABLED: "PLAIN,OAUTHBEARER"}, "sasl.oauthbearer.jwks.endpoint.url is missing")
    world.refuses({USERS: f'{MODULE} user_alice="geheim-9'}, USERS, "[hidden] is invalid")
    world.refuses(
        {USERS: 'org.example.Other required user_alice="geheim-9";'}, "names the login module org.example.Other"
    )
    scram = f"{PREFIX}scram-sha-256.sasl.jaas.config"
    world.refuses({scram: f'{MODULE} username="geheim-9";'}, scram, "ScramLoginModule")
    world.refuses({"listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN"}, "PLAINTEXT has no SASL")
    world.refuses({"listener.name.no.plain.sasl.jaas.config": plain(alice="geheim-9")}, "the listener NO has no SASL")
    world.refuses({"sasl.enabled.mechanisms": "PLAIN"}, "only per-listener using the listener prefix")
    world.refuses({"sasl.jaas.config": plain(alice="geheim-9")}, "only per-listener using the listener prefix")
    world.refuses({f"{PREFIX}sasl.jaas.config": plain(alice="geheim-9")}, "Cannot update these configs dynamically")
    world.refuses({f"{PREFIX}connections.max.reauth.ms": "5000"}, "Cannot update these configs dynamically")
    alter_broker(world.open, {USERS: plain(alice="geheim-1", bob="geheim-9")})
    assert world.plain("geheim-9", "bob") == 0


@pytest.fixture
def issued(tmp_path: Path) -> tuple[Issuer, dict[str, str]]:
    """An issuer, and what a broker needs for its tokens: the file of its keys is not there yet."""
    url = f"file:{tmp_path}/keys.json"
    given = {
        "lowtide.sasl.oauthbearer.allowed.urls": url,
        f"{TOKENS}sasl.oauthbearer.jwks.endpoint.url": url,
        f"{TOKENS}sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{TOKENS}sasl.oauthbearer.expected.issuer": ISSUER,
    }
    return Issuer(), given


@pytest.mark.slow
def test_tokens_are_taken_once_their_keys_are_there(tmp_path: Path, issued: tuple[Issuer, dict[str, str]]) -> None:
    issuer, given = issued
    with LowtideCluster(config=CONFIG | given) as cluster:
        world = World(cluster)
        for _ in range(2):
            (tmp_path / "keys.json").unlink(missing_ok=True)
            world.refuses({ENABLED: "PLAIN,OAUTHBEARER"}, "the listener SASL_PLAINTEXT has no keys to verify tokens by")
            (tmp_path / "keys.json").write_bytes(key_set(issuer))
            alter_broker(world.open, {ENABLED: "PLAIN,OAUTHBEARER"})
            assert world.token(issuer.token())
            assert not world.token(Issuer().token())
            alter_broker(world.open, {USERS: plain(alice="geheim-1", carol="geheim-4")})
            assert world.token(issuer.token())
            alter_broker(world.open, {ENABLED: None})
            assert world.handshake("OAUTHBEARER")[0] == ErrorCode.UNSUPPORTED_SASL_MECHANISM


def inside(own: tuple[str, str], **users: str) -> str:
    return plain(**users).replace(MODULE, f'{MODULE} username="{own[0]}" password="{own[1]}"')


@pytest.mark.slow
def test_brokers_go_on_logging_in_to_each_other() -> None:
    """Their user is changed in three steps on each broker; what would keep two from connecting is refused."""
    between = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "min.insync.replicas": "3",
        "connections.max.reauth.ms": "2000",
        "listener.name.plaintext.plain.sasl.jaas.config": inside(("one", "geheim-0"), one="geheim-0", alice="pencil"),
    }
    with LowtideCluster(brokers=3, config=between) as cluster:
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "pencil",
        }
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **login})
        key = "listener.name.plaintext.plain.sasl.jaas.config"

        def refused(changes: Changes) -> str:
            with pytest.raises(KafkaException) as caught:
                alter_broker(admin, changes, "1")
            assert "geheim" not in caught.value.args[0].str()
            return str(caught.value.args[0].str())

        assert "the old user of brokers is not among the new users" in refused(
            {key: inside(("two", "2nd"), two="2nd", alice="pencil")}
        )
        assert "the new user of brokers is not among the old users" in refused(
            {key: inside(("two", "2nd"), one="geheim-0", two="2nd", alice="pencil")}
        )
        assert "must have username and password" in refused({key: plain(one="geheim-0", alice="pencil")})
        enabled = "listener.name.plaintext.sasl.enabled.mechanisms"
        assert "sasl.mechanism.inter.broker.protocol=PLAIN is invalid" in refused({enabled: "SCRAM-SHA-256"})
        both = {"one": "geheim-0", "two": "2nd", "alice": "pencil"}
        for own, users in (
            (("one", "geheim-0"), both),
            (("two", "2nd"), both),
            (("two", "2nd"), {"two": "2nd", "alice": "pencil"}),
        ):
            for broker in ("1", "2", "3"):
                alter_broker(admin, {key: inside(own, **users)}, broker)
        cluster.stop_broker(3)
        cluster.start_broker(3)
        with BlockingAdminClient({"bootstrap.servers": cluster.bootstrap, **login}) as ours:
            ours.create_topics([NewTopic(name="t", partitions=3, replication_factor=3)])
            wait_for_isr(ours)


def wait_for_isr(ours: BlockingAdminClient) -> None:
    """All three replicate, also the one with a user in its file and the one with a user in the metadata."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        topic = ours.describe_topics(["t"])["t"]
        if all(len(each.isr) == 3 for each in topic.partitions.values()):
            return
        time.sleep(0.1)
    raise AssertionError("a broker does not replicate")
