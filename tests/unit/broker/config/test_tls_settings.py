"""TLS settings of listeners. Invalid ones are refused with a sentence that has no secret."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import ConfigError, load_config
from lowtide.broker.config.tls_settings import Store

LISTENER = {"listeners": "PLAINTEXT://:9092,SSL://:9093", "ssl.keystore.location": "/k.pem", "ssl.keystore.type": "PEM"}
TRUST = {"ssl.truststore.location": "/t.p12", "ssl.truststore.type": "PKCS12", "ssl.truststore.password": "geheim"}


def test_the_settings_of_a_listener() -> None:
    own = {
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,ECDHE-RSA-CHACHA20-POLY1305",
    }
    tls = load_config(settings=LISTENER | TRUST | own).secured_listeners["SSL"].tls
    assert tls is not None
    assert tls.key_store == Store("PEM", "/k.pem")
    assert tls.trust_store == Store("PKCS12", "/t.p12", "geheim")
    assert (tls.client_auth, tls.protocols) == ("required", ("TLSv1.2", "TLSv1.3"))
    assert tls.ciphers == "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-CHACHA20-POLY1305"
    assert "geheim" not in repr(tls)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ssl.keystore.location": ""}, "the listener SSL uses TLS but has no certificate"),
        (
            {"ssl.keystore.type": "JKS"},
            "keytool -importkeystore -srckeystore /k.pem -destkeystore /k.pem.p12 -deststoretype PKCS12",
        ),
        ({"ssl.keystore.type": "BKS"}, "ssl.keystore.type=BKS is invalid: allowed are PEM and, for files, PKCS12"),
        ({"ssl.keystore.certificate.chain": "geheim"}, "cannot both be set"),
        ({"ssl.client.auth": "required"}, "ssl.client.auth=required requires ssl.truststore.location"),
        ({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "ssl.enabled.protocols=TLSv1.1,TLSv1.2 is invalid"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "a cipher of TLS 1.3, which is not configurable"),
        ({"ssl.principal.mapping.rules": "RULE:(/x/"}, "ssl.principal.mapping.rules is invalid"),
        (TRUST | {"ssl.truststore.type": "JKS"}, "ssl.truststore.type=JKS is invalid"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_config(settings=LISTENER | settings)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["ssl.keystore.location", "ssl.truststore.location", "listener.name.plaintext.ssl.keystore.location"]
)
def test_tls_that_no_listener_speaks_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} requires TLS"):
        load_config(settings={name: "/k.pem"})
