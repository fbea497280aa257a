"""When etcd fails, a broker never prints a password, a token or a key."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from tests.etcd import EtcdProcess, missing
from tests.free_ports import free_ports

from .serving import ServeProcess, run_to_end, serve_command
from .test_etcd_access import ask

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

MARKER = "marker-of-etcd-91b2"
PATIENCE = ("initial.broker.registration.timeout.ms=1000",)


class Files:
    """A certificate and its key, of an authority that etcd's isn't of."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        leaf = authority.issue_cert("client")
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        leaf.private_key_pem.write_to_path(str(directory / "client.key"))
        leaf.cert_chain_pems[0].write_to_path(str(directory / "client.pem"))
        self.options = [
            word
            for name, file in (("ca", "ca.pem"), ("cert", "client.pem"), ("key", "client.key"))
            for word in (f"--metadata-{name}", str(directory / file))
        ]
        self.lines = [line for line in (directory / "client.key").read_text().splitlines() if "-----" not in line]


def check(output: str, *secrets: str) -> None:
    """Errors: AssertionError where something of a secret is printed."""
    assert output.strip(), "it says why it failed"
    assert [secret for secret in (MARKER, *secrets) if secret in output] == []
    assert "password=" not in output


@pytest.fixture(autouse=True)
def _login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process of these tests has the password in its environment."""
    monkeypatch.setenv("LOWTIDE_METADATA_USER", "ann")
    monkeypatch.setenv("LOWTIDE_METADATA_PASSWORD", MARKER)


def test_a_wrong_password(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path / "etcd", "--bcrypt-cost", "4") as etcd:
        ask(etcd, "auth/role/add", name="root")
        for user, password in (("root", "root"), ("ann", "another")):
            ask(etcd, "auth/user/add", name=user, password=password)
            ask(etcd, "auth/user/grant", user=user, role="root")
        ask(etcd, "auth/enable")
        address = f"etcd://{etcd.endpoint}"
        refused = run_to_end(serve_command(tmp_path / "broker", *PATIENCE, metadata=address))
        assert refused.returncode == 2
        assert "authentication failed" in refused.stderr
        check(refused.stdout + refused.stderr)
        shown = run_to_end([sys.executable, "-m", "lowtide.cli.main", "metadata", "status", "--metadata", address])
        assert shown.returncode != 0
        check(shown.stdout + shown.stderr)


@pytest.mark.slow
async def test_an_etcd_that_dies_and_forgets_under_a_broker(tmp_path: Path) -> None:
    """Also what is shown of it afterwards."""
    with EtcdProcess(tmp_path / "etcd", "--bcrypt-cost", "4") as etcd:
        ask(etcd, "auth/role/add", name="root")
        for user, password in (("root", "root"), ("ann", MARKER)):
            ask(etcd, "auth/user/add", name=user, password=password)
            ask(etcd, "auth/user/grant", user=user, role="root")
        ask(etcd, "auth/enable")
        address = f"etcd://{etcd.endpoint}"
        async with ServeProcess(tmp_path / "broker", "broker.session.timeout.ms=2000", metadata=address) as broker:
            etcd.kill()
            await until(lambda: any("store is unreachable" in line["event"] for line in broker.lines))
            await broker.kill()
            check("\n".join([*map(str, broker.lines), *broker.noise]))
        etcd.start()
        options = ["--metadata", address, "--log-dirs", str(tmp_path / "broker")]
        for further in ([], ["--output", "json"]):
            shown = await asyncio.to_thread(
                run_to_end, [sys.executable, "-m", "lowtide.cli.main", "metadata", "status", *options, *further]
            )
            assert shown.returncode == 0, shown.stderr
            check(shown.stdout + shown.stderr)


async def until(condition: Callable[..., bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.mark.slow
def test_a_wrong_authority_and_an_etcd_that_is_not_there(tmp_path: Path) -> None:
    """The files of the certificate and its key are given: their paths may be named, not what is in them."""
    files = Files(tmp_path)
    (port,) = free_ports(1)
    with EtcdProcess(tmp_path / "etcd") as etcd:
        for endpoint in (etcd.endpoint, f"127.0.0.1:{port}"):
            command = [*serve_command(tmp_path / "broker", *PATIENCE, metadata=f"etcd://{endpoint}"), *files.options]
            refused = run_to_end(command)
            assert refused.returncode == 2
            check(refused.stdout + refused.stderr, *files.lines)


@pytest.mark.parametrize(
    "address",
    [
        "etcd://ann:{}@127.0.0.1:1",
        pytest.param("etcd://127.0.0.1:1,ann:{}@localhost:2/east", marks=pytest.mark.slow),
        pytest.param("http://ann:{}@127.0.0.1:1", marks=pytest.mark.slow),
    ],
)
def test_a_password_in_the_address(tmp_path: Path, address: str) -> None:
    refused = run_to_end(serve_command(tmp_path, metadata=address.format(MARKER)))
    assert refused.returncode == 2
    check(refused.stdout + refused.stderr)
    shown = run_to_end(
        [sys.executable, "-m", "lowtide.cli.main", "metadata", "status", "--metadata", address.format(MARKER)]
    )
    assert shown.returncode != 0
    check(shown.stdout + shown.stderr)
