"""A target of several brokers, each started by the same command with its own id, port and directory; with an etcd if
the command uses one.

The placeholders are: `{id}`, `{port}`, `{dir}`; `{peer_port}` and `{peers}` (`1@127.0.0.1:7001,2@…`), a second port of
each broker and of all, for brokers that elect among themselves; `{etcd}`, the address of an etcd that is started first.
CPU and memory are those of the brokers together, without the etcd.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.messages.metadata import MetadataRequest
from tests.etcd import EtcdProcess
from tests.free_ports import free_ports

from .client import Address, Client
from .errors import BenchError
from .targets import LOOPBACK, START_LIMIT_S, STOP_LIMIT_S, Target
from .usage import processes

_POLL_S = 0.002
_REFORM_LIMIT_S = 120.0
FILLED_IN_OF_SEVERAL = ("id", "peer_port", "peers", "etcd")
FILLED_IN = ("port", "dir", *FILLED_IN_OF_SEVERAL)


@dataclass(slots=True)
class Member:
    """One broker of a cluster."""

    broker_id: int
    port: int
    peer_port: int
    directory: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        """The address for clients."""
        return LOOPBACK, self.port


@dataclass(slots=True)
class ClusterTarget(Target):
    """Several brokers, measured as one target."""

    members: list[Member] = field(default_factory=list)
    _etcd: EtcdProcess | None = None

    @property
    def bootstrap(self) -> str:
        """Addresses for clients."""
        return ",".join(f"{host}:{port}" for host, port in (member.address for member in self.members))

    @property
    def directory(self) -> Path:
        """The directory of their data."""
        return self._directory or self.scratch

    @property
    def etcd(self) -> EtcdProcess | None:
        """The etcd that was started for them."""
        return self._etcd

    def connect(self) -> Client:
        """A connection to the first broker that accepts one. Errors: OSError."""
        for member in self.members:
            with contextlib.suppress(OSError):
                return Client(member.address)
        raise ConnectionError(f"no broker of {self.name} accepts a connection")

    def member(self, address: Address) -> Member:
        """Returns the broker at this address."""
        return next(member for member in self.members if member.address == address)

    def ensure_up(self) -> None:
        """Starts brokers that do not run; all must be up."""
        if not self.members:
            self.start_fresh()
        for member in self.members:
            if member.process is None or member.process.poll() is not None:
                self.start_member(member)
        self._wait_until_whole()

    def start(self) -> float:
        """Starts all brokers, with their former directories and ports, if any.

        Returns the seconds until all are registered.
        """
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=self.scratch))
            numbers = range(1, self.spec.brokers + 1)
            ports = [free_ports(2) for _ in numbers]
        self.members = [
            Member(number, port, peer_port, self._directory / f"broker-{number}")
            for number, (port, peer_port) in zip(numbers, ports, strict=True)
        ]
        if self._etcd is None and any("{etcd}" in word for word in self.spec.command):
            self._etcd = EtcdProcess(self._directory / "etcd")
            self._etcd.__enter__()
        began = time.perf_counter()
        for member in self.members:
            self.start_member(member)
        self._wait_until_whole()
        return time.perf_counter() - began

    def start_member(self, member: Member) -> None:
        """Starts one broker without waiting for it."""
        member.directory.mkdir(exist_ok=True)
        peers = ",".join(f"{other.broker_id}@{LOOPBACK}:{other.peer_port}" for other in self.members)
        etcd = "" if self._etcd is None else self._etcd.endpoint
        filled = {"id": member.broker_id, "port": member.port, "dir": member.directory, "peer_port": member.peer_port}
        words = [word.format(**filled, peers=peers, etcd=etcd) for word in self.spec.command]
        with self._log_path().open("ab") as log:
            member.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._roots = [other.process.pid for other in self.members if other.process is not None]
        self.address = self.members[0].address

    def kill_member(self, member: Member) -> None:
        """SIGKILL one broker, and wait for its end."""
        self._signal(member, signal.SIGKILL)
        assert member.process is not None
        member.process.wait(STOP_LIMIT_S)

    def freeze_member(self, member: Member) -> None:
        """SIGSTOP."""
        self._signal(member, signal.SIGSTOP)

    def thaw_member(self, member: Member) -> None:
        """SIGCONT."""
        self._signal(member, signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Ends all brokers, together. Returns the seconds it took."""
        began = time.perf_counter()
        running = [member for member in self.members if member.process is not None]
        for member in running:
            self._signal(member, number)
        for member in running:
            assert member.process is not None
            try:
                member.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._signal(member, signal.SIGKILL)
                member.process.wait()
            member.process = None
        self._roots = ()
        return time.perf_counter() - began

    def close(self) -> None:
        """Ends all processes, and removes their files."""
        self.stop(signal.SIGKILL)
        self._remove_directory()

    def registered(self) -> int:
        """Returns the number of brokers according to the first one that answers."""
        with contextlib.suppress(OSError, ProtocolError), self.connect() as client:
            return len(client.ask(MetadataRequest(topics=[])).brokers)
        return 0

    def _wait_until_whole(self) -> None:
        limit = time.perf_counter() + max(START_LIMIT_S, _REFORM_LIMIT_S)
        while not all(self._answer(member) == len(self.members) for member in self.members):
            ended = [
                member.broker_id
                for member in self.members
                if member.process is None or member.process.poll() is not None
            ]
            if ended or time.perf_counter() > limit:
                self.stop(signal.SIGKILL)
                what = f"brokers {ended} ended" if ended else "not all brokers are registered"
                raise BenchError(f"{self.name}: {what}: {self._last_words()}")
            time.sleep(_POLL_S)

    def _answer(self, member: Member) -> int:
        with contextlib.suppress(OSError, ProtocolError), Client(member.address, limit_s=5.0) as client:
            return len(client.ask(MetadataRequest(topics=[])).brokers)
        return 0

    def _signal(self, member: Member, number: int) -> None:
        if member.process is not None and member.process.poll() is None:
            for process in processes([member.process.pid]) or [member.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)

    def _remove_directory(self) -> None:
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory, self.members = None, []
