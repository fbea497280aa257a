"""The parts of the etcd engine that need no etcd.

Addresses, ranges, the generated messages, and no cost for brokers without etcd.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.broker.lifecycle.ports import real_ports
from lowtide.metadata.etcd_address import MAX_ENDPOINTS, EtcdAccess, EtcdAddress, parse_address
from lowtide.metadata.store import MetadataStoreError

FOLDER = Path(__file__).resolve().parents[3] / "metadata"


def test_an_address_names_its_endpoints_in_order() -> None:
    """Names, IPv4 and IPv6; a slash at the end is accepted."""
    assert parse_address("etcd://a:2379").endpoints == ("a:2379",)
    several = parse_address("etcd://etcd-1.example:2379,10.0.0.2:2379,[::1]:1/")
    assert several.endpoints == ("etcd-1.example:2379", "10.0.0.2:2379", "[::1]:1")


@pytest.mark.parametrize(
    ("address", "prefix"),
    [
        ("etcd://a:1", b"/lowtide/"),
        ("etcd://a:1/", b"/lowtide/"),
        ("etcd://a:1/lowtide", b"/lowtide/"),
        ("etcd://a:1,b:1/west", b"/west/"),
        ("etcd://a:1/kafka/west-2/", b"/kafka/west-2/"),
    ],
)
def test_an_address_names_the_clusters_prefix(address: str, prefix: bytes) -> None:
    """It ends with a slash, so that no cluster's keys are in the range of another."""
    assert parse_address(address).prefix == prefix


def test_secrets_are_not_printed() -> None:
    """Neither by itself, nor with the address."""
    access = EtcdAccess(ca=b"the-ca", key=b"the-key", user="ann", password="the-password")
    shown = f"{access} {EtcdAddress(('a:1',), access=access)!r} {EtcdAddress(('a:1',), access=access).text}"
    assert "ann" in shown
    assert not any(secret in shown for secret in ("the-ca", "the-key", "the-password"))


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("zk://a:2181", "is not the address of a metadata store"),
        ("a:2379", "is not the address of a metadata store"),
        ("etcds://a:2379", "is not the address of a metadata store"),
        ("etcd://", "'' in 'etcd://' is not host:port"),
        ("etcd://a", "'a' in 'etcd://a' is not host:port"),
        ("etcd://a:0", "'a:0' in"),
        ("etcd://a:65536", "'a:65536' in"),
        ("etcd://a:1,", "'' in"),
        ("etcd://a:1, b:2", "' b:2' in"),
        ("etcd://a:1/a b", "'a b' in 'etcd://a:1/a b' is not a prefix"),
        ("etcd://a:1//b", "is not a prefix"),
        ("etcd://a:1/b,c:1", "'b,c:1' in"),
        ("etcd://user@a:1", "can't have a user"),
        ("etcd://a:1,a:1", "names an endpoint twice"),
        ("etcd://" + ",".join(f"a:{port}" for port in range(1, MAX_ENDPOINTS + 2)), "more than"),
    ],
)
def test_another_address_is_refused(address: str, reason: str) -> None:
    """The message has the fault: an ignored part of the address would be missed later."""
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_address(address)


@pytest.mark.parametrize(
    ("prefix", "wanted"),
    [
        (b"", (b"\0", b"\0")),
        (b"/lowtide/", (b"/lowtide/", b"/lowtide0")),
        (b"a\xff\xff", (b"a\xff\xff", b"b")),
        (b"\xff", (b"\xff", b"\0")),
    ],
)
def test_a_prefix_is_a_range(prefix: bytes, wanted: tuple[bytes, bytes]) -> None:
    """In etcd, zero as the end means: up to the last key."""
    messages = pytest.importorskip("lowtide.metadata.etcd_messages", exc_type=ImportError)
    assert messages.key_range(prefix) == wanted


def test_the_generated_code_agrees_with_its_source() -> None:
    """A change of the source requires a new generation."""
    rpc = pytest.importorskip("lowtide.metadata.etcd_rpc_pb2", exc_type=ImportError)
    text = (FOLDER / "etcd_rpc.proto").read_text(encoding="utf-8")
    written = {}
    for name, body in re.findall(r"^message (\w+) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        body = re.sub(r"^  enum \w+ \{.*?^  \}", "", body, flags=re.MULTILINE | re.DOTALL)
        written[name] = {field: int(number) for field, number in re.findall(r"(\w+) = (\d+);", body)}
    described = rpc.DESCRIPTOR.message_types_by_name
    assert {
        name: {field.name: field.number for field in message.fields} for name, message in described.items()
    } == written
    stub = (FOLDER / "etcd_rpc_pb2.pyi").read_text(encoding="utf-8")
    assert set(re.findall(r"^class (\w+)\(", stub, re.MULTILINE)) == set(written)


def test_a_broker_without_etcd_imports_nothing_of_it() -> None:
    """The import takes longer than the rest of the start."""
    code = "import sys, lowtide.cli.serve, lowtide.broker.lifecycle.broker; print(*sys.modules)"
    modules = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "lowtide.broker.lifecycle.broker" in modules
    assert not modules & {"grpc", "google.protobuf", "lowtide.metadata.etcd", "lowtide.metadata.etcd_rpc_pb2"}


async def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs them."""
    import asyncio

    for name in [name for name in sys.modules if name.startswith("lowtide.metadata.etcd")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    ports = real_ports(asyncio.get_running_loop(), etcd=EtcdAddress(("127.0.0.1:1",)))
    with pytest.raises(MetadataStoreError, match="are not installed .* with its extra `etcd`"):
        await ports.open_store("unused")
    ports.worker.close()


@pytest.mark.parametrize(
    "address", ["etcd://ann:secret@a:1", "http://ann:secret@a:1", "etcd://a:1,ann:secret@b:1/x", "ann:secret@a"]
)
def test_a_password_in_an_address_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ValueError, match="LOWTIDE_METADATA_PASSWORD") as caught:
        parse_address(address)
    assert "secret" not in str(caught.value)
