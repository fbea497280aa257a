"""The client of schema registries: what it asks, what it repeats, and what it says of failures."""

from __future__ import annotations

import ssl

import pytest
import trustme

from lowtide.admin.schemas.registry import (
    ATTEMPTS,
    MAX_ANSWER_BYTES,
    MAX_REFERENCES,
    Registry,
    RegistryError,
    UnknownReferenceError,
)
from lowtide.pipeline.table.schemas import SchemaSettings

from .registry_server import schema_registry


def client(registry, **settings):
    """Returns a client that does not wait between attempts."""
    given = {"url": registry.url, **{key.replace("_", "."): value for key, value in settings.items()}}
    return Registry(tuple(given.items()), wait=lambda _: None)


def test_a_schema_is_asked_for_once(registry):
    number = registry.register("s", '"string"')
    asked = client(registry)
    assert asked.schema(number) is asked.schema(number)
    assert asked.schema(number).kind == "AVRO"
    assert asked.schema(number).text == '"string"'
    assert len(registry.requests) == 1


def test_an_unknown_id_is_an_answer_and_remembered(registry):
    asked = client(registry)
    assert asked.schema(77) is None
    assert asked.schema(77) is None
    assert len(registry.requests) == 1


def test_references_come_before_what_refers_to_them(registry):
    registry.register("c", '"c"')
    registry.register("b", '"b"', references=[("C", "c", 1)])
    number = registry.register("a", '"a"', references=[("B", "b", 1), ("C", "c", 1)])
    asked = client(registry)
    assert list(asked.references_of(asked.schema(number)).items()) == [("C", '"c"'), ("B", '"b"')]


def test_a_missing_reference_is_named(registry):
    number = registry.register("a", '"a"', references=[("B", "b/x", 3)])
    asked = client(registry)
    with pytest.raises(UnknownReferenceError, match="version 3 of the subject 'b/x', to which it refers, is unknown"):
        asked.references_of(asked.schema(number))


def test_references_are_bounded_and_may_be_circular(registry):
    registry.subjects["self"] = [1]
    assert registry.register("self", '"x"', references=[("Self", "self", 1)]) == 1
    asked = client(registry)
    assert asked.references_of(asked.schema(1)) == {"Self": '"x"'}
    many = [(f"n{index}", "self", 1) for index in range(MAX_REFERENCES + 1)]
    number = registry.register("many", '"x"', references=many)
    with pytest.raises(UnknownReferenceError, match="more than"):
        asked.references_of(asked.schema(number))


@pytest.mark.parametrize("answer", [None, (500, {"error_code": 50001}), (503, b"busy"), (429, b"")])
def test_what_may_pass_is_tried_again(registry, answer):
    number = registry.register("s", '"string"')
    registry.answers = [answer] * (ATTEMPTS - 1)
    assert client(registry).schema(number) is not None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "/schemas/ids/7: "),
        ((500, {"error_code": 50001, "message": "Error in the backend\n data store"}), "500 Error in the backend data"),
    ],
)
def test_what_does_not_pass_is_an_error_with_the_url(registry, answer, reason):
    registry.answers = [answer] * ATTEMPTS
    with pytest.raises(RegistryError) as error:
        client(registry).schema(7)
    assert reason in str(error.value)
    assert registry.url in str(error.value)
    assert len(registry.requests) == ATTEMPTS


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((404, b"<html>not here</html>"), "status 404"),
        ((404, {"error_code": 404, "message": "HTTP 404 Not Found"}), "status 404 HTTP 404 Not Found"),
        ((403, {"error_code": 40301, "message": "User is denied"}), "status 403 User is denied"),
        ((302, b""), "status 302"),
        ((200, b"<html>"), "the answer is not JSON"),
        ((200, b"[" * 1_000_000), "the answer is not JSON"),
        ((200, []), "the answer is not that of a registry"),
        ((200, {"schema": 5}), "the answer is not that of a registry"),
        ((200, {"schema": "x", "references": [{"name": "a"}]}), "the answer is not that of a registry"),
        ((200, b'"' + b"x" * MAX_ANSWER_BYTES + b'"'), "the answer has more than"),
    ],
)
def test_what_is_no_registry_says_nothing_about_records(registry, answer, reason):
    registry.answers = [answer]
    with pytest.raises(RegistryError, match=reason):
        client(registry).schema(7)
    assert len(registry.requests) == 1


def test_a_registry_that_does_not_listen(free_port):
    asked = Registry((("url", f"http://127.0.0.1:{free_port}"),), wait=lambda _: None)
    with pytest.raises(RegistryError, match=f"http://127.0.0.1:{free_port}/schemas/ids/1: .*refused"):
        asked.schema(1)


@pytest.fixture
def free_port():
    with schema_registry() as served:
        number = int(served.url.rpartition(":")[2])
    assert number
    return number


def test_the_second_server_is_asked_if_the_first_is_gone(registry, free_port):
    number = registry.register("s", '"string"')
    asked = Registry((("url", f"http://127.0.0.1:{free_port}, {registry.url}/"),), wait=lambda _: None)
    assert asked.schema(number) is not None


@pytest.mark.parametrize("in_url", [True, False])
def test_a_login(in_url):
    with schema_registry("us er:pass:word") as served:
        number = served.register("s", '"string"')
        if in_url:
            asked = Registry((("url", served.url.replace("//", "//us%20er:pass:word@")),))
        else:
            asked = client(served, basic_auth_user_info="us er:pass:word")
        assert asked.schema(number) is not None


def test_no_error_shows_a_login():
    with schema_registry("user:secret") as served:
        asked = Registry((("url", served.url.replace("//", "//user:wrong-secret@")),))
        with pytest.raises(RegistryError, match="status 401 Unauthorized") as error:
            asked.schema(1)
    assert "wrong-secret" not in str(error.value)
    settings = SchemaSettings(kind="avro", registry=(("url", "http://u:secret@h"),))
    assert "secret" not in repr(settings)


def test_tls(tmp_path):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusted = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trusted)
    with schema_registry(context=context) as served:
        number = served.register("s", '"string"')
        assert client(served, ssl_ca_location=str(trusted)).schema(number) is not None
        with pytest.raises(RegistryError, match="CERTIFICATE_VERIFY_FAILED"):
            client(served).schema(number)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ((), "the URL of the schema registry is missing: set url"),
        ((("url", "file:///etc/passwd"),), "must begin with http:// or https://"),
        ((("url", "localhost:8081"),), "must begin with http:// or https://"),
        ((("url", "http://h"), ("password", "x")), "the registry has no setting password"),
        ((("url", "https://h"), ("ssl.ca.location", "/not/there")), "/not/there can't be read"),
    ],
)
def test_wrong_settings_are_named(settings, reason):
    with pytest.raises(ValueError, match=reason):
        Registry(settings)
