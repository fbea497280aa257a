"""What asks for protection that is not enforced yet keeps a broker from starting: nobody gets open service by mistake."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import ConfigError, broker_key, load_config
from lowtide.broker.config.key import Type
from lowtide.broker.config.keys_security import SECURITY_KEYS

POLICIES = ["alter.config.policy.class.name", "client.quota.callback.class", "create.topic.policy.class.name"]

NOT_DEFAULT = {Type.BOOLEAN: "true", Type.STRING: "x", Type.LIST: "x", Type.CLASS: "org.example.X", Type.PASSWORD: "geheim"}
"""A value for each type that is not the default of any key; numbers are made below."""


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
    """With a sentence that names the key and the source, and without the secret."""
    for key in (name, f"listener.name.internal.{name}", f"listener.name.internal.plain.{name}"):
        text = another_value(name)
        with pytest.raises(ConfigError, match="asks for protection that Lowtide does not enforce yet") as caught:
            load_config(settings={key: text})
        assert key in str(caught.value)
        assert "(in settings)" in str(caught.value)
        assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("ssl.client.auth", "required"),
        ("sasl.enabled.mechanisms", "SCRAM-SHA-512"),
        ("sasl.enabled.mechanisms", "GSSAPI"),
    ],
)
def test_settings_that_were_a_warning_and_open_service(name: str, text: str):
    """As operators write them."""
    with pytest.raises(ConfigError, match=f"^{name}={text} asks for protection"):
        load_config(settings={name: text})


@pytest.mark.parametrize(
    ("name", "text"),
    [("authorizer.class.name", ""), ("ssl.client.auth", "none"), ("sasl.enabled.mechanisms", ""), ("ssl.protocol", "TLSv1.3")],
)
def test_settings_that_ask_for_nothing_are_fine(name: str, text: str):
    """A default that is written down protects nothing in Kafka either."""
    assert load_config(settings={name: text}).unenforced_keys_given == (name,)


@pytest.mark.parametrize("name", ["super.users", "allow.everyone.if.no.acl.found"])
def test_settings_of_an_authorizer_are_refused(name: str):
    """There is no authorizer that would read them."""
    with pytest.raises(ConfigError, match=name):
        load_config(settings={name: "User:a"})
