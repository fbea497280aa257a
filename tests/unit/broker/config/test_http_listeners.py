"""`http.listeners`: what may stand there, and that its certificates are those of `ssl.*`."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.config.key import ConfigError

PEM = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/etc/lowtide/broker.pem"}


def test_addresses():
    found = load_config(
        settings={"http.listeners": "http://127.0.0.1:9644, https://[::1]:9645,http://:0", **PEM}
    ).http_listeners
    assert [(each.scheme, each.host, each.port, each.is_on_loopback) for each in found] == [
        ("http", "127.0.0.1", 9644, True),
        ("https", "::1", 9645, True),
        ("http", "", 0, False),
    ]
    assert [each.text for each in found] == ["http://127.0.0.1:9644", "https://[::1]:9645", "http://:0"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("127.0.0.1:9644", "allowed is a list of http://host:port or https://host:port"),
        ("ftp://127.0.0.1:9644", "allowed is a list of http://host:port or https://host:port"),
        ("http://127.0.0.1", "allowed is a list of http://host:port or https://host:port"),
        ("http://a/b:1", "allowed is a list of http://host:port or https://host:port"),
        (
            "http://127.0.0.1:99999",
            "http.listeners=http://127.0.0.1:99999 is invalid: allowed is a port from 0 to 65535",
        ),
        (
            "http://127.0.0.1:1,https://127.0.0.1:1",
            "http.listeners=https://127.0.0.1:1 is invalid: allowed is each address once",
        ),
    ],
)
def test_what_is_refused(text, reason):
    with pytest.raises(ConfigError, match=reason):
        load_config(settings={"http.listeners": text})


def test_https_has_the_certificate_of_the_broker():
    settings = {
        "http.listeners": "https://127.0.0.1:9644",
        **PEM,
        "listener.name.https.ssl.enabled.protocols": "TLSv1.3",
    }
    secured = load_config(settings=settings).secured_listeners
    assert list(secured) == ["HTTPS"]
    assert secured["HTTPS"].tls is not None
    assert secured["HTTPS"].tls.key_store.location == "/etc/lowtide/broker.pem"
    assert secured["HTTPS"].tls.protocols == ("TLSv1.3",)
    with pytest.raises(ConfigError, match="the listener HTTPS uses TLS but has no certificate"):
        load_config(settings={"http.listeners": "https://127.0.0.1:9644"})


def test_a_listener_of_that_name_is_refused():
    settings = {
        "http.listeners": "https://127.0.0.1:9644",
        "listeners": "PLAINTEXT://:0,HTTPS://:1",
        "listener.security.protocol.map": "HTTPS:SSL,PLAINTEXT:PLAINTEXT",
        **PEM,
    }
    with pytest.raises(ConfigError, match=r"the name HTTPS is reserved for https:// addresses"):
        load_config(settings=settings)
