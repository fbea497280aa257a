"""A setting for protection that is not enforced yet refuses the start: no operator runs an open service by mistake."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import ConfigError, broker_key, load_config
from lowtide.broker.config.key import Type
from lowtide.broker.config.keys_security import SECURITY_KEYS

POLICIES = ["alter.config.policy.class.name", "client.quota.callback.class", "create.topic.policy.class.name"]

NOT_DEFAULT = {
    Type.BOOLEAN: "true",
    Type.STRING: "x",
    Type.LIST: "x",
    Type.CLASS: "org.example.X",
    Type.PASSWORD: "geheim",
}
"""A value for each type that is not the default of any key; numbers are computed below."""


def another_value(name: str) -> str:
    """A possible value other than the default."""
    key = broker_key(name)
    for text in (NOT_DEFAULT.get(key.type, ""), "1", "0.5", "2", "required", "SSL", "ES256"):
        try:
            if key.parse(text) not in (key.default_value, None, ()):
                return text
        except ConfigError:
            continue
    raise AssertionError(name)


@pytest.mark.parametrize("name", [*(key.name for key in SECURITY_KEYS if not key.enforced), *POLICIES])
def test_every_setting_of_security_is_refused_until_it_works(name: str):
    """The message names the key and the source, without the secret."""
    for key in (name, f"listener.name.internal.{name}", f"listener.name.internal.plain.{name}"):
        text = another_value(name)
        with pytest.raises(ConfigError, match="asks for protection that Lowtide does not support") as caught:
            load_config(settings={key: text})
        assert key in str(caught.value)
        assert "(in settings)" in str(caught.value)
        assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [("security.providers", "org.example.Provider")])
def test_settings_that_were_a_warning_and_open_service(name: str, text: str):
    """As operators write them."""
    with pytest.raises(ConfigError, match=f"^{name}={text} asks for protection"):
        load_config(settings={name: text})


@pytest.mark.parametrize(("name", "text"), [("ssl.protocol", "TLSv1.3")])
def test_settings_that_ask_for_nothing_are_fine(name: str, text: str):
    """An explicit default protects nothing in Kafka either."""
    assert load_config(settings={name: text}).unenforced_keys_given == (name,)


STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.mark.parametrize(("name", "text"), [("super.users", "User:a"), ("allow.everyone.if.no.acl.found", "true")])
def test_settings_of_an_authorizer_need_one(name: str, text: str):
    """An operator who names administrators expects a closed broker."""
    with pytest.raises(ConfigError, match=f"^{name} has no effect without authorizer.class.name"):
        load_config(settings={name: text})
    assert load_config(settings={name: text, "authorizer.class.name": STANDARD}).unenforced_keys_given == ()


@pytest.mark.parametrize("text", ["kafka.security.authorizer.AclAuthorizer", "org.example.Mine", f"{STANDARD}2"])
def test_other_authorizers_are_refused_in_a_sentence(text: str):
    """Lowtide loads no Java classes; Kafka's name stands for its own authorizer."""
    with pytest.raises(ConfigError, match=f"^authorizer.class.name.*allowed is empty, or {STANDARD}"):
        load_config(settings={"authorizer.class.name": text})


@pytest.mark.parametrize("text", ["a", "User:a,User:b;c", ":a", "User:", "User:a;;b"])
def test_super_users_that_are_none_are_refused(text: str):
    with pytest.raises(ConfigError, match="^super.users"):
        load_config(settings={"authorizer.class.name": STANDARD, "super.users": text})


@pytest.mark.parametrize("text", ["", "User:a", "User:CN=a,O=b; User:c;", "User:a:b"])
def test_super_users_as_kafka_writes_them(text: str):
    assert load_config(settings={"authorizer.class.name": STANDARD, "super.users": text}).values["super.users"] == text


def test_an_audit_log_in_a_file_needs_its_name():
    with pytest.raises(ConfigError, match=r"lowtide.audit.log=file needs lowtide.audit.file"):
        load_config(settings={"lowtide.audit.log": "file"})
    assert (
        load_config(settings={"lowtide.audit.log": "file", "lowtide.audit.file": "/tmp/a"}).values["lowtide.audit.log"]
        == "file"
    )
    with pytest.raises(ConfigError, match="allowed is a list of any of logins,"):
        load_config(settings={"lowtide.audit.events": "deletes,everything"})
