"""An etcd with access control: users and passwords, tokens that expire, certificates; several clusters on it."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lowtide.metadata.etcd_address import EtcdAccess
from lowtide.metadata.store import ABSENT, AccessDeniedError, Compare, Get, LeaseGoneError, Put, UnavailableError
from tests.etcd import EtcdProcess, missing

from .serving import ServeProcess, run_to_end, serve_command

etcd_store = pytest.importorskip("lowtide.metadata.etcd", exc_type=ImportError)
etcd_renewer = pytest.importorskip("lowtide.metadata.etcd_renewer", exc_type=ImportError)

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

PREFIX = b"/lowtide/"
ANN = EtcdAccess(user="ann", password="secret-of-ann")
LIMIT_S = 120.0
LEASE_S = 6
TOKEN_ENDED_S = 2.5
"""An unused token has expired after this time; etcd checks from time to time."""


def ask(etcd: EtcdProcess, method: str, **body: object) -> None:
    data = json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{etcd.endpoint}/v3/{method}", data=data, method="POST"), timeout=60
    ):
        pass


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[EtcdProcess]:
    """An etcd where only ann has access, under the prefix. Tokens expire after a second without use."""
    with EtcdProcess(tmp_path / "etcd", "--auth-token-ttl", "1", "--bcrypt-cost", "4") as etcd:
        ask(etcd, "auth/role/add", name="root")
        ask(etcd, "auth/user/add", name="root", password="root")
        ask(etcd, "auth/user/grant", user="root", role="root")
        ask(etcd, "auth/role/add", name="lowtide")
        permission = {"permType": "READWRITE", "key": text(PREFIX), "range_end": text(b"/lowtide0")}
        ask(etcd, "auth/role/grant", name="lowtide", perm=permission)
        ask(etcd, "auth/user/add", name="ann", password=ANN.password)
        ask(etcd, "auth/user/grant", user="ann", role="lowtide")
        ask(etcd, "auth/enable")
        yield etcd


@pytest.mark.parametrize(
    "access", [EtcdAccess(), EtcdAccess(user="ann", password="guessed"), EtcdAccess(user="bob", password="x")]
)
async def test_an_unknown_user_is_refused_at_once(guarded: EtcdProcess, access: EtcdAccess) -> None:
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(AccessDeniedError, match="user name is empty|authentication failed") as refusal:
            await etcd_store.EtcdStore.open([guarded.endpoint], access=access, prefix=PREFIX)
    assert not access.password or access.password not in str(refusal.value).replace("user ID or password", "")


async def test_a_user_works_under_its_prefix_and_over_the_end_of_its_token(guarded: EtcdProcess) -> None:
    """Calls that an expired token interrupts are repeated with a new one, and a watch misses nothing."""
    store = await etcd_store.EtcdStore.open([guarded.endpoint], access=ANN, prefix=PREFIX)
    first = await store.transact([], [Put(PREFIX + b"0", b"")])
    batches = store.watch(PREFIX, first.revision)
    assert (await anext(batches)).revision == first.revision
    lease = await store.lease_grant(30_000)
    for number in range(1, 3):
        await asyncio.sleep(TOKEN_ENDED_S)
        written = await store.transact([], [Put(PREFIX + b"%d" % number, b"", lease)])
        assert (await anext(batches)).revision == written.revision
        await store.lease_keep_alive(lease)
    await batches.aclose()
    with pytest.raises(AccessDeniedError, match="permission denied"):
        await store.get(b"/other/key")
    with pytest.raises(AccessDeniedError, match="permission denied"):
        await store.transact([], [Put(b"/other/key", b"")])
    with pytest.raises(
        AccessDeniedError, match="permission denied"
    ):  # As where it is compared that no cluster lies around.
        await store.transact(
            [Compare(b"/other/cluster_id", "create", "==", ABSENT)],
            [Put(PREFIX + b"3", b"")],
            [Get(b"/other/cluster_id")],
        )
    again = store.watch(PREFIX, first.revision)
    assert [(await anext(again)).revision for _ in range(3)] == [first.revision + step for step in range(3)]
    await again.aclose()
    await store.close()


async def renews(renewer: Any, lease: int, *, tries: int = 3) -> bool:
    """Returns whether a keeper's connection renews the lease. Attempts with an expired token may fail before."""
    for _ in range(tries):
        with suppress(UnavailableError):
            await asyncio.to_thread(renewer.renew, lease)
            return True
    return False


@pytest.mark.slow
async def test_a_keeper_renews_leases_with_the_same_access(guarded: EtcdProcess) -> None:
    """Over another connection, with its own token, which expires; after endpoints without a listener."""
    store = await etcd_store.EtcdStore.open([guarded.endpoint], access=ANN, prefix=PREFIX)
    lease = await store.lease_grant(LEASE_S * 1000)
    granted_s = time.monotonic()
    await store.transact([], [Put(PREFIX + b"k", b"", lease)])
    renewer = etcd_renewer.EtcdRenewer(["127.0.0.1:1", guarded.endpoint], ANN)
    while time.monotonic() < granted_s + 2 * LEASE_S:
        assert await renews(renewer, lease)
        await asyncio.sleep(TOKEN_ENDED_S)
    assert await store.get(PREFIX + b"k") is not None, "it lasted for twice its time"
    await store.lease_revoke(lease)
    with pytest.raises(LeaseGoneError):
        await renews(renewer, lease)
    renewer.close()
    with pytest.raises(UnavailableError):
        renewer.renew(lease)
    await store.close()


async def test_a_restarted_etcd_has_forgotten_tokens(guarded: EtcdProcess) -> None:
    """A new token is requested, without an effect on callers."""
    store = await etcd_store.EtcdStore.open([guarded.endpoint], access=ANN, prefix=PREFIX)
    await store.transact([], [Put(PREFIX + b"k", b"1")])
    await asyncio.to_thread(guarded.kill)
    await asyncio.to_thread(guarded.start)
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                pair = await store.get(PREFIX + b"k")
                break
            except UnavailableError:
                await asyncio.sleep(0.05)
    assert pair is not None
    assert pair.value == b"1"
    await store.close()


async def test_authentication_can_be_enabled_while_brokers_run(tmp_path: Path) -> None:
    """A broker is configured with a user first, and etcd requires it later."""
    with EtcdProcess(tmp_path / "etcd", "--bcrypt-cost", "4") as etcd:
        store = await etcd_store.EtcdStore.open([etcd.endpoint], access=ANN, prefix=PREFIX)
        await store.transact([], [Put(PREFIX + b"k", b"1")])
        for name, password, role in (("root", "root", "root"), ("ann", ANN.password, "root")):
            if name == "root":
                ask(etcd, "auth/role/add", name=role)
            ask(etcd, "auth/user/add", name=name, password=password)
            ask(etcd, "auth/user/grant", user=name, role=role)
        ask(etcd, "auth/enable")
        pair = await store.get(PREFIX + b"k")
        assert pair is not None
        await store.transact([], [Put(PREFIX + b"k", b"2")])
        await store.close()


class Certificates:
    """A certificate authority, with certificates for a server on loopback and for a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.openssl(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
            "-subj",
            "/CN=authority",
        )
        (folder / "server.ext").write_text("subjectAltName=IP:127.0.0.1\n")
        (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
        for name in ("server", "client"):
            self.openssl(
                "req",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-keyout",
                f"{name}.key",
                "-out",
                f"{name}.csr",
                "-subj",
                f"/CN={name}",
            )
            signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext")
            self.openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def access(self, *, client: bool = True) -> EtcdAccess:
        certificate, key = (
            (self.folder / name).read_bytes() if client else b"" for name in ("client.pem", "client.key")
        )
        return EtcdAccess((self.folder / "ca.pem").read_bytes(), certificate, key)


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[tuple[str, Certificates]]:
    """An etcd with TLS that requires a client certificate; its endpoint."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificates = Certificates(tmp_path / "pki")
    files = ("--cert-file", certificates.path("server.pem"), "--key-file", certificates.path("server.key"))
    asks = ("--client-cert-auth", "--trusted-ca-file", certificates.path("ca.pem"))
    with EtcdProcess(tmp_path / "etcd", tls=(*files, *asks)) as etcd:
        yield etcd.secured_endpoint, certificates


async def test_certificates_on_both_sides(sealed: tuple[str, Certificates]) -> None:
    """A client with a certificate is accepted; one without, or one that does not trust etcd's, is not."""
    endpoint, certificates = sealed
    store = await etcd_store.EtcdStore.open([endpoint], access=certificates.access(), prefix=PREFIX)
    written = await store.transact([], [Put(PREFIX + b"k", b"1")])
    batches = store.watch(PREFIX, written.revision)
    assert (await anext(batches)).revision == written.revision
    await batches.aclose()
    renewer = etcd_renewer.EtcdRenewer([endpoint], certificates.access())
    assert await renews(renewer, await store.lease_grant(30_000))
    renewer.close()
    await store.close()
    for access in (certificates.access(client=False), EtcdAccess()):
        with pytest.raises(UnavailableError):
            await etcd_store.EtcdStore.open([endpoint], access=access, prefix=PREFIX, timeout_s=1.0)


@pytest.mark.slow
async def test_a_broker_speaks_tls_and_keeps_to_its_prefix(tmp_path: Path, sealed: tuple[str, Certificates]) -> None:
    """The command's options name the etcd. A second cluster has another prefix, and neither affects the other."""
    endpoint, certificates = sealed
    options = ["--metadata-ca", certificates.path("ca.pem"), "--metadata-cert", certificates.path("client.pem")]
    options += ["--metadata-key", certificates.path("client.key")]
    for cluster in ("east", "west"):
        address = f"etcd://{endpoint}/{cluster}"
        async with ServeProcess(tmp_path / cluster, metadata=address, options=options) as broker:
            assert await broker.terminate() == 0
    store = await etcd_store.EtcdStore.open([endpoint], access=certificates.access())
    pairs, _ = await store.range(b"")
    await store.close()
    assert {pair.key.split(b"/")[1] for pair in pairs} == {b"east", b"west"}
    ids = [pair.value for pair in pairs if pair.key.endswith(b"/cluster_id")]
    assert len(set(ids)) == 2
    refused = await asyncio.to_thread(
        run_to_end, [*serve_command(tmp_path / "x", metadata=f"etcd://{endpoint}"), *options[2:]]
    )
    assert refused.returncode == 2
    assert "--metadata-cert, --metadata-key and --metadata-ca must be given together" in refused.stderr
