"""Runs a real etcd for tests, on free loopback ports and with its own directory."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests import freezing
from tests.free_ports import HOST, free_ports

PROGRAM = "etcd"
CONTROL_PROGRAM = "etcdctl"
"""The program that saves and restores snapshots, in Debian's package etcd-client."""

START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
_LOOK_AGAIN_S = 0.01
_ANSWER_LIMIT_S = 1.0
_PORT_ATTEMPTS = 5
"""A free port may be taken by another process before etcd listens there."""

HEARTBEAT_MS, ELECTION_MS = 20, 200
"""A fifth of etcd's defaults: a member is ready sooner, and leases may be as short as a second."""


def missing() -> str | None:
    """Returns why no etcd can be started here, or None.

    In CI there must be one, and a test that starts it fails otherwise.
    """
    if shutil.which(PROGRAM) is not None or os.environ.get("CI"):
        return None
    return "etcd is not installed (Debian: apt-get install etcd-server)"


class EtcdProcess:
    """One member, which may be restarted. Used in `with`, which ends the process."""

    def __init__(self, directory: Path, *settings: str, host: str = HOST, tls: Sequence[str] = ()) -> None:
        """`settings` are further options of etcd's command line; `host` is an address of this machine.

        With `tls`, etcd's options about its certificates, it also listens at `secured_endpoint`.
        """
        self.directory = directory
        self._host = host
        self._settings = settings
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = free_ports(3)

    @property
    def endpoint(self) -> str:
        """`host:port` for clients."""
        return f"{self._host}:{self._ports[0]}"

    @property
    def secured_endpoint(self) -> str:
        """The same for clients with TLS."""
        return f"{self._host}:{self._ports[2]}"

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return f"member-{self._ports[1]}"

    @property
    def peer_url(self) -> str:
        """The address for other members."""
        return f"http://{self._host}:{self._ports[1]}"

    def __enter__(self) -> Self:
        for _ in range(_PORT_ATTEMPTS):
            try:
                self.start()
            except ChildProcessError:
                self._ports = free_ports(3)
            else:
                return self
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Starts it on the same ports and directory as before. Returns when it answers."""
        self.launch()
        self.wait_ready()

    def launch(self, *cluster: str) -> None:
        """Starts the process without waiting for it.

        `cluster`: what `--initial-cluster` says; by default it is alone.
        """
        client = f"http://{self.endpoint}{f',https://{self.secured_endpoint}' if self._tls else ''}"
        self._process = subprocess.Popen(
            [
                *(PROGRAM, "--name", self.name, "--data-dir", str(self.directory)),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
                *("--initial-cluster", ",".join(cluster or (f"{self.name}={self.peer_url}",))),
                *("--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS), "--pre-vote"),
                *self._settings,
                *self._tls,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait_ready(self) -> None:
        """Waits until it serves. Errors: ChildProcessError when it ended instead, TimeoutError."""
        assert self._process is not None
        until = time.monotonic() + START_LIMIT_S
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise ChildProcessError(f"etcd ended with {self._process.returncode}")
            if time.monotonic() > until:
                raise TimeoutError(f"etcd at {self.endpoint} does not answer")
            time.sleep(_LOOK_AGAIN_S)

    def terminate(self) -> None:
        """Stops it with SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL. May be called twice, and while it is frozen."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Sends SIGSTOP: it keeps its connections, and is silent."""
        assert self._process is not None
        freezing.freeze(self._process.pid)

    def thaw(self) -> None:
        """Sends SIGCONT."""
        assert self._process is not None
        freezing.thaw(self._process.pid)

    def compact(self, revision: int) -> None:
        """Removes the history before `revision`."""
        self._ask("kv/compaction", {"revision": str(revision), "physical": True})

    def defragment(self) -> None:
        """Rewrites the database file without its free pages."""
        self._ask("maintenance/defragment", {})

    def sizes(self) -> tuple[int, int, int]:
        """Returns the bytes of the database file, the bytes in use, and the revision."""
        status = self._ask("maintenance/status", {})
        return int(status["dbSize"]), int(status["dbSizeInUse"]), int(status["header"]["revision"])

    def save(self, path: Path) -> None:
        """Makes a backup, as in etcd's guide to disaster recovery."""
        self._control("snapshot", "save", str(path), "--endpoints", self.endpoint)

    def restore(self, path: Path) -> None:
        """Replaces its data by a backup, as in the guide. It must be stopped."""
        shutil.rmtree(self.directory)
        member = ("--name", self.name, "--initial-cluster", f"{self.name}={self.peer_url}")
        self._control(
            "snapshot",
            "restore",
            str(path),
            "--data-dir",
            str(self.directory),
            *member,
            "--initial-advertise-peer-urls",
            self.peer_url,
        )

    def _control(self, *words: str) -> None:
        environment = {**os.environ, "ETCDCTL_API": "3"}
        subprocess.run(
            [CONTROL_PROGRAM, *words], env=environment, check=True, capture_output=True, timeout=START_LIMIT_S
        )

    def count(self, prefix: bytes) -> int:
        """Returns the number of keys with this prefix."""
        ends = (prefix, prefix[:-1] + bytes([prefix[-1] + 1]))
        key, range_end = (base64.b64encode(end).decode() for end in ends)
        return int(self._ask("kv/range", {"key": key, "range_end": range_end, "count_only": True}).get("count", 0))

    def leader(self) -> bool:
        """Returns whether this member leads its cluster."""
        status = self._ask("maintenance/status", {})
        return bool(status["leader"] == status["header"]["member_id"])

    def _ask(self, method: str, body: dict[str, object]) -> Any:
        """Calls etcd's JSON gateway, which no broker uses."""
        request = urllib.request.Request(
            f"http://{self.endpoint}/v3/{method}", data=json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=START_LIMIT_S) as answer:
            return json.load(answer)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=_ANSWER_LIMIT_S) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(STOP_LIMIT_S)


class EtcdCluster:
    """Several members of one etcd. Used in `with`."""

    def __init__(self, directory: Path, *, members: int = 3) -> None:
        """Each member has its directory below `directory`."""
        self.members = [EtcdProcess(directory / str(number)) for number in range(members)]

    def __enter__(self) -> Self:
        try:
            for member in self.members:
                member.launch(*self.everyone)
            for member in self.members:
                member.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()

    @property
    def everyone(self) -> Sequence[str]:
        """The members, as `EtcdProcess.launch` wants them."""
        return [f"{member.name}={member.peer_url}" for member in self.members]

    @property
    def endpoints(self) -> Sequence[str]:
        """The client addresses of all members."""
        return [member.endpoint for member in self.members]
