"""Every kind of key that can't be read.

What the image shows instead, at a start and while it is followed, and that it heals.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
import pytest

from lowtide.metadata import keys
from lowtide.metadata.broker_facts import RecoveryError
from lowtide.metadata.config_image import ConfigImage
from lowtide.metadata.image import KEEPING_CONFIGS, MetadataImage
from lowtide.metadata.image_change import KEEPING_BROKER_CONFIGS, apply_batch, load_image
from lowtide.metadata.records import (
    AclChangeRecord,
    AclRecord,
    BrokerRecord,
    ControllerRecord,
    FeaturesRecord,
    HistoryRecord,
    Listener,
    NeededKeyError,
    PartitionRecord,
    RegistrationRecord,
    ScramRecord,
    ScramSecretRecord,
    StandingRecord,
    SuspensionRecord,
    TokenRecord,
    TopicRecord,
    encode,
)
from lowtide.metadata.recovery import RecoveryPlan
from lowtide.metadata.store import Batch, KeyEvent, KeyValue
from lowtide.protocol.scram import SCRAM_MECHANISMS
from lowtide.protocol.types import topic_id_text
from tests.each import each

from .test_recovery import facts, planned, rows

ID = b"T" * 16
MECHANISM = next(iter(SCRAM_MECHANISMS.values()))
RULE = encode(AclRecord(2, "t", 3, "User:a", "*", 3, 2))
BROKER = encode(BrokerRecord("i", (Listener("PLAINTEXT", "h", 9092),)))
REPLICAS = encode({topic_id_text(ID): [0]})
GARBAGE = (b"\xff\x00", b"not json", b"[[]]", b"")
STORE_REVISION, LATER, LATEST = 50, 60, 70


class Kind(NamedTuple):
    """A kind of key: one of it, its value, and the field of the image in which it shows.

    None for a key that images leave out.
    """

    key: bytes
    value: bytes
    field: str = ""


KINDS = {
    "cluster_id": Kind(keys.CLUSTER_ID, b"C", "cluster_id"),
    "brokers/<id>": Kind(keys.broker(1), BROKER, "brokers"),
    "known_brokers/<id>": Kind(keys.known_broker(1), BROKER, "known_brokers"),
    "shutdown/<id>": Kind(keys.shutdown(1), b"10", "shutdowns"),
    "offline/<id>": Kind(keys.offline(1), REPLICAS, "offline_replicas"),
    "registrations/<id>": Kind(keys.registration(1), encode(RegistrationRecord(2, 2))),
    "stale/<id>/<number, twenty digits>": Kind(keys.stale(1, 2), REPLICAS, "stale_marks"),
    "unclean_starts/<id>": Kind(keys.unclean_start(1), b"2", "unclean_starts"),
    "features": Kind(keys.FEATURES, encode(FeaturesRecord(1, 1)), "features"),
    "history": Kind(keys.HISTORY, encode(HistoryRecord("H")), "history"),
    "witnesses/<id>": Kind(keys.witness(1), b"7"),
    "suspension": Kind(keys.SUSPENSION, encode(SuspensionRecord("why", 1)), "suspension"),
    "controller": Kind(keys.CONTROLLER, encode(ControllerRecord(1, 1)), "controller_id"),
    "controller_epoch": Kind(keys.CONTROLLER_EPOCH, b"1"),
    "topics/<name>": Kind(keys.topic("t"), encode(TopicRecord(topic_id_text(ID), 1)), "topics"),
    "topic_ids/<topic id>": Kind(keys.topic_id(ID), b"t"),
    "deleted_topics/<topic id>": Kind(keys.deleted_topic(b"D" * 16), b"d", "deleted_topics"),
    "parts/<topic id>/<number, six digits>": Kind(
        keys.partition(ID, 0),
        encode(PartitionRecord((1, 2), (1,), (20,), 1, 4, 7, elr=(2,), elr_epochs=(20,))),
        "topics",
    ),
    "config/topic/<name>": Kind(keys.topic_config("t"), b'{"retention.ms":"5"}', "topics"),
    "config/broker/<id>": Kind(keys.broker_config("1"), b'{"log.retention.ms":"5"}', "broker_configs"),
    "config/broker-default": Kind(keys.broker_config(""), b'{"log.retention.ms":"6"}', "broker_configs"),
    "config/client-metrics/<name>": Kind(keys.client_metrics("m"), b'{"interval.ms":"5"}', "client_metrics"),
    "config/group/<id>": Kind(keys.group_config("g"), b'{"consumer.session.timeout.ms":"5"}', "group_configs"),
    "quotas/<entity>": Kind(keys.client_quotas("user=u"), b'{"producer_byte_rate":"5"}', "client_quotas"),
    "scram/<mechanism>/<user>": Kind(keys.scram(MECHANISM, "u"), encode(ScramRecord(b"s", b"k", b"v", 4096)), "scram"),
    "scram_secret": Kind(keys.SCRAM_SECRET, encode(ScramSecretRecord(b"secret")), "scram"),
    "producer_ids/next": Kind(keys.NEXT_PRODUCER_ID, b"1000"),
    "acls/<hash of the value>": Kind(keys.acl(RULE), RULE, "acls"),
    "acl_change": Kind(keys.ACL_CHANGE, encode(AclChangeRecord((), ("0" * 32,))), "acl_change"),
    "tokens/<hash of the HMAC>": Kind(
        keys.token(b"h"), encode(TokenRecord("i", "User:o", "User:r", (), 1, 2, 3, {})), "tokens"
    ),
    "standing/<erasure id, hexadecimal>": Kind(
        keys.standing(b"i" * 16), encode(StandingRecord(("t",), (), b"c", "User:a", 1, 2, b"s", (b"d",))), "standing"
    ),
    "adoption": Kind(keys.ADOPTION, b"kafka"),
}
"""By the names that the table in `keys` has. A suspension is left out of a store that brokers may act on."""

NEEDED = {"cluster_id", "features", "history"}
HARMLESS_ALWAYS = {"deleted_topics/<topic id>", "unclean_starts/<id>"}
"""Their values say nothing."""


def pairs(**changed: bytes) -> list[KeyValue]:
    values = {kind.key: kind.value for name, kind in KINDS.items() if name != "suspension"}
    values |= {KINDS[name].key: value for name, value in changed.items()}
    return [KeyValue(key, value, 20, 20) for key, value in sorted(values.items())]


def whole() -> MetadataImage:
    return load_image(pairs(), STORE_REVISION, prefix=b"")


def changed(image: MetadataImage, key: bytes, value: bytes | None, revision: int = LATER) -> MetadataImage:
    create = 0 if value is None else 20
    return apply_batch(image, Batch(revision, (KeyEvent(key, value, create, revision),)), prefix=b"")[0]


def others(image: MetadataImage, field: str) -> dict[str, object]:
    left_out = {
        "revision",
        "unreadable",
        field,
        "features_revision",
        "controller_revision",
        "topic_names",
        "loose_partitions",
    }
    return {name: getattr(image, name) for name in image.__struct_fields__ if name not in left_out}


def test_all_kinds_of_keys_are_here() -> None:
    """A kind that is added to the table of keys needs a row here."""
    documented = set()
    for line in (keys.__doc__ or "").splitlines():
        if line.startswith("| `"):
            documented |= set(re.findall(r"`([^`]+)`", line.split("|")[1]))
    assert documented == set(KINDS)


@pytest.mark.parametrize("value", GARBAGE)
@each("name", KINDS)
def test_what_cannot_be_read_at_a_start_harms_nothing_else(name: str, value: bytes) -> None:
    kind, expected = KINDS[name], whole()
    if name == "cluster_id" and value != b"\xff\x00":
        return  # Any text is one.
    if name in NEEDED:
        with pytest.raises(NeededKeyError if name != "cluster_id" else ValueError, match=r".+"):
            load_image(pairs(**{name: value}), STORE_REVISION, prefix=b"")
        return
    image = load_image(pairs(**{name: value}), STORE_REVISION, prefix=b"")
    if not kind.field or name in HARMLESS_ALWAYS:
        assert not image.unreadable
        return
    assert list(image.unreadable) == [kind.key]
    assert image.unreadable[kind.key].revision == 20
    assert image.unreadable[kind.key].reason
    assert not image.unreadable[kind.key].keeps
    assert others(image, kind.field) == others(expected, kind.field)


@pytest.mark.parametrize("value", GARBAGE)
@each("name", KINDS)
def test_what_cannot_be_read_any_more_harms_nothing_else_and_heals(name: str, value: bytes) -> None:
    kind, before = KINDS[name], whole()
    if name == "suspension":
        before = load_image([*pairs(), KeyValue(kind.key, kind.value, 20, 20)], STORE_REVISION, prefix=b"")
    if name == "cluster_id" and value != b"\xff\x00":
        return  # Any text is one.
    image = changed(before, kind.key, value)
    assert others(image, kind.field) == others(before, kind.field)
    if kind.field and name not in HARMLESS_ALWAYS:
        assert list(image.unreadable) == [kind.key]
        assert changed(image, kind.key, b"\xff worse", LATEST).unreadable[kind.key].revision == LATEST
    read_again = load_image(pairs(**{name: value}), LATER, prefix=b"", known=image)
    assert list(read_again.unreadable) == list(image.unreadable)
    for broken in (image, read_again):
        healed = changed(broken, kind.key, kind.value, LATEST)
        assert not healed.unreadable
        assert others(healed, "") == others(changed(before, kind.key, kind.value, LATEST), "")
    if name not in {*NEEDED, "topics/<name>", "parts/<topic id>/<number, six digits>"}:
        assert not changed(image, kind.key, None, LATEST).unreadable


# What is shown instead


def at_a_start(name: str) -> MetadataImage:
    return load_image(pairs(**{name: b"?"}), STORE_REVISION, prefix=b"")


def while_followed(name: str) -> MetadataImage:
    return changed(whole(), KINDS[name].key, b"?")


def test_a_partition() -> None:
    name, expected = "parts/<topic id>/<number, six digits>", whole().topics["t"].partitions[0]
    assert while_followed(name).topics["t"].partitions[0] == msgspec.structs.replace(expected, modify_revision=LATER)
    (unknown,) = at_a_start(name).topics["t"].partitions
    assert (unknown.is_known, unknown.has_leader, unknown.modify_revision) == (False, False, 20)


def test_a_topic() -> None:
    followed, started = while_followed("topics/<name>"), at_a_start("topics/<name>")
    assert followed.topics["t"] == msgspec.structs.replace(whole().topics["t"], modify_revision=LATER)
    assert not followed.hides_topic("t")
    assert started.topics == {}
    assert started.hides_topic("t")
    assert started.hides_topics
    assert list(started.loose_partitions[ID]) == [0]


def test_configurations() -> None:
    """What is followed stays; what was never known keeps all data."""
    assert while_followed("config/topic/<name>").topics["t"].configs == {"retention.ms": "5"}
    assert at_a_start("config/topic/<name>").topics["t"].configs == KEEPING_CONFIGS
    for name, broker in (("config/broker/<id>", "1"), ("config/broker-default", "")):
        assert while_followed(name).broker_configs[broker].configs == whole().broker_configs[broker].configs
        assert while_followed(name).broker_configs[broker].revision == LATER
        assert at_a_start(name).broker_configs[broker].configs == KEEPING_BROKER_CONFIGS
    assert at_a_start("config/group/<id>").group_configs == {"g": ConfigImage({}, 20)}, (
        "a change of it writes a whole value again"
    )
    assert at_a_start("quotas/<entity>").client_quotas == {"user=u": ConfigImage({}, 20)}


def test_rules_of_access_control() -> None:
    """A rule that was never known may be one that denies."""
    for name in ("acls/<hash of the value>", "acl_change"):
        assert not while_followed(name).hides_rules
        assert at_a_start(name).hides_rules
    assert while_followed("acls/<hash of the value>").acls[keys.acl(RULE)].acl == whole().acls[keys.acl(RULE)].acl
    other = encode(AclRecord(2, "other", 3, "User:b", "*", 3, 3))
    exchanged = load_image([*pairs(), KeyValue(keys.acl(b"x"), other, 20, 20)], STORE_REVISION, prefix=b"")
    assert exchanged.hides_rules, "the value is not the one that was written"
    assert keys.acl(b"x") not in exchanged.acls


def test_a_rule_of_a_cluster_whose_prefix_lies_inside_is_none_of_ours() -> None:
    image = changed(whole(), keys.ACLS + keys.acl(RULE), RULE)
    assert not image.hides_rules
    assert image.acls == whole().acls
    assert list(image.unreadable) == [keys.ACLS + keys.acl(RULE)]


def test_credentials_and_tokens_let_nobody_in() -> None:
    for image in (while_followed("scram/<mechanism>/<user>"), at_a_start("scram/<mechanism>/<user>")):
        assert image.scram.of(MECHANISM, "u") is None
        assert image.scram.secret == b"secret"
    for image in (while_followed("tokens/<hash of the HMAC>"), at_a_start("tokens/<hash of the HMAC>")):
        assert image.tokens == {}
    assert while_followed("scram_secret").scram.secret == b"secret"


def test_brokers() -> None:
    assert while_followed("brokers/<id>").brokers == whole().brokers
    assert at_a_start("brokers/<id>").brokers == {}
    again = apply_batch(whole(), Batch(LATER, (KeyEvent(keys.broker(1), b"?", LATER, LATER),)), prefix=b"")[0]
    assert again.brokers == {}, "it is another registration"
    started = at_a_start("known_brokers/<id>")
    assert started.is_known(1)
    assert not started.known_brokers[1].is_reachable
    assert while_followed("known_brokers/<id>").known_brokers[1].is_reachable


def test_a_stale_mark_is_about_all_replicas_of_its_broker() -> None:
    name = "stale/<id>/<number, twenty digits>"
    assert at_a_start(name).is_stale(1, b"X" * 16, 7, 19)
    assert not at_a_start(name).is_stale(1, b"X" * 16, 7, 21)
    assert not while_followed(name).is_stale(1, b"X" * 16, 7, 19)
    assert while_followed(name).is_stale(1, ID, 0, LATER - 1)


def test_a_suspension_and_the_controller() -> None:
    kind = KINDS["suspension"]
    assert "can't be read" in changed(whole(), kind.key, b"?").suspension
    assert (at_a_start("controller").controller_id, while_followed("controller").controller_id) == (-1, 1)


def test_keys_of_a_cluster_inside_change_no_topic() -> None:
    """Its topics are no topics of ours, whatever part of our keys its prefix is."""
    for prefix in (
        b"x/",
        b"topics/",
        b"parts/",
        b"config/",
        b"config/topic/",
        b"config/broker/",
        b"brokers/",
        b"stale/",
        b"scram/",
    ):
        image = load_image(
            [*pairs(), *(KeyValue(prefix + each.key, each.value, 20, 20) for each in pairs())],
            STORE_REVISION,
            prefix=b"",
        )
        assert others(image, "") == others(whole(), "")
        assert image.topics == whole().topics


# A recovery


def recovered(**broken: bytes) -> RecoveryPlan:
    """What is planned where these keys of the copies can't be read; by their names, dots for slashes."""
    garbage = {name.replace(".", "/").encode(): value for name, value in broken.items()}
    found = [(key, garbage.get(key, value), *row) for key, value, *row in rows(40)]
    return planned(*(facts(broker_id, 40, found=found) for broker_id in (1, 2, 3)))


def test_a_recovery_makes_a_topic_again_of_its_partitions() -> None:
    plan = recovered(**{"topics.t": b"?"})
    assert (plan.values[keys.topic("t")], plan.values[keys.partition(ID, 0)]) == (
        recovered().values[keys.topic("t")],
        recovered().values[keys.partition(ID, 0)],
    )
    assert plan.problems == ("topics/t can't be read, and is made again of the topic's 1 partitions",)


def test_a_recovery_writes_what_cannot_be_read_as_it_is() -> None:
    for key in (keys.partition(ID, 0), keys.topic_config("t"), keys.known_broker(2)):
        plan = recovered(**{key.decode().replace("/", "."): b"?"})
        assert plan.values[key] == b"?"
        assert f"{key.decode()} can't be read, and is kept as it is" in " ".join(plan.problems)


@pytest.mark.parametrize("key", [keys.NEXT_PRODUCER_ID, keys.CONTROLLER_EPOCH, keys.registration(1)])
def test_a_recovery_guesses_no_number(key: bytes) -> None:
    with pytest.raises(RecoveryError, match=key.decode()):
        recovered(**{key.decode().replace("/", "."): b"?"})
