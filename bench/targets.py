"""The brokers that are measured: given by address and not touched, or started here, in their own directories, and ended
here.

Only processes that this module started are ever signalled, each by its id: the started one and its descendants.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.metadata import MetadataRequest
from tests.free_ports import free_ports

from .client import Address, Client, check
from .errors import BenchError
from .usage import UNKNOWN, cpu_seconds, processes, resident_bytes

LOOPBACK = "127.0.0.1"
START_LIMIT_S = 120.0
STOP_LIMIT_S = 120.0
"""A broker of ten thousand partitions syncs each of them when it stops."""
_POLL_S = 0.002

LOWTIDE = (
    *(sys.executable, "-m", "lowtide.cli.main", "serve"),
    *("--set", f"listeners=PLAINTEXT://{LOOPBACK}:{{port}}", "--set", "log.dirs={dir}"),
)
"""The command that starts Lowtide from this working tree."""

LOWTIDE_TLS = (
    "--set",
    f"listeners=PLAINTEXT://{LOOPBACK}:{{port}},SSL://{LOOPBACK}:{{tls_port}},SASL_SSL://{LOOPBACK}:{{login_port}}",
    *("--set", "sasl.enabled.mechanisms=SCRAM-SHA-256"),
    *("--set", "ssl.keystore.type=PEM", "--set", "ssl.keystore.location={certificate}"),
)
"""Options for two more listeners with TLS, one of them with logins."""

LOWTIDE_OF_SEVERAL = (*LOWTIDE, "--set", "node.id={id}", "--metadata", "etcd://{etcd}")
"""The same as one broker of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """A broker on the command line: an address, or a command with `{port}` and `{dir}` in it."""

    name: str
    address: Address | None = None
    processes: tuple[int, ...] = ()
    """The processes to measure, of a broker that is given by address."""

    command: tuple[str, ...] = ()
    tls: tuple[str, ...] = ()
    """Further options of the command for listeners with TLS, with `{tls_port}`, `{login_port}` and `{certificate}` in
    it; empty without such a command."""

    brokers: int = 1
    """The number of brokers; each is started by the same command."""


@dataclass(slots=True)
class Target:
    """A broker. `scratch` is where directories of started ones are created."""

    spec: TargetSpec
    scratch: Path
    address: Address = (LOOPBACK, 0)
    _roots: Sequence[int] = ()
    _process: subprocess.Popen[bytes] | None = None
    _directory: Path | None = None

    def __post_init__(self) -> None:
        if self.spec.address is not None:
            self.address, self._roots = self.spec.address, self.spec.processes

    @property
    def name(self) -> str:
        """Its name in the tables."""
        return self.spec.name

    @property
    def brokers(self) -> int:
        """The number of its brokers."""
        return self.spec.brokers

    @property
    def can_be_started(self) -> bool:
        """Whether it is started here, so that it may also be stopped."""
        return bool(self.spec.command)

    def secured(self, certificate: Path) -> SecureTarget:
        """Returns another target with TLS listeners and this certificate. It is not started yet."""
        tls_port, login_port = free_ports(2)
        values = {"{tls_port}": str(tls_port), "{login_port}": str(login_port), "{certificate}": str(certificate)}
        filled = [reduce(lambda text, name: text.replace(name, values[name]), values, word) for word in self.spec.tls]
        spec = replace(self.spec, name=f"{self.name}-tls", command=(*self.spec.command, *filled))
        return SecureTarget(Target(spec, self.scratch), (LOOPBACK, tls_port), (LOOPBACK, login_port))

    @property
    def bootstrap(self) -> str:
        """Its address for clients."""
        return f"{self.address[0]}:{self.address[1]}"

    def connect(self) -> Client:
        """Opens a connection. Errors: OSError."""
        return Client(self.address)

    def cpu_s(self) -> float:
        """Returns its CPU time so far, or `nan`."""
        return cpu_seconds(self._roots) if self._roots else UNKNOWN

    def resident_mb(self) -> float:
        """Returns its resident memory in megabytes, or `nan`."""
        return resident_bytes(self._roots) / 1e6 if self._roots else UNKNOWN

    def ensure_up(self) -> None:
        """Starts it if it was started here and does not run; checks that it answers."""
        if self.can_be_started and (self._process is None or self._process.poll() is not None):
            self.start_fresh()
        elif not self._answers():
            raise BenchError(f"{self.name} does not answer at {self.bootstrap}")

    def start_fresh(self) -> float:
        """Stops it, and starts it on an empty directory. Returns the seconds until it answered."""
        self.stop()
        self._remove_directory()
        return self.start()

    def start(self) -> float:
        """Starts it with its former directory and port, if any.

        Returns the seconds from the start until it answered.
        """
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=self.scratch))
            self.address = (LOOPBACK, free_ports(1)[0])
        words = [word.format(port=self.address[1], dir=self._directory) for word in self.spec.command]
        with self._log_path().open("ab") as log:
            began = time.perf_counter()
            # In its own session: an interrupt from the keyboard must reach it through `stop`, after the figures are
            # saved.
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._roots = [self._process.pid]
        while not self._answers():
            code = self._process.poll()
            if code is not None or time.perf_counter() - began > START_LIMIT_S:
                self.stop(signal.SIGKILL)
                what = (
                    f"did not answer within {START_LIMIT_S:.0f} s" if code is None else f"ended with exit code {code}"
                )
                raise BenchError(f"{self.name} {what}: {self._last_words()}")
            time.sleep(_POLL_S)
        return time.perf_counter() - began

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Ends it, if it was started here. Returns the seconds it took; waits until all of its processes have ended."""
        process = self._process
        if process is None:
            return 0.0
        began = time.perf_counter()
        members = processes(self._roots) or list(self._roots)
        for member in members:
            _signal(member, number)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process, self._roots = None, ()
        self._wait_gone([member for member in members if member != process.pid])
        return time.perf_counter() - began

    def signal(self, number: int) -> None:
        """Sends a signal to the process that was started here."""
        assert self._process is not None
        self._process.send_signal(number)

    def close(self) -> None:
        """Ends it at once and removes its directory, if it was started here."""
        self.stop(signal.SIGKILL)
        self._remove_directory()

    @property
    def directory(self) -> Path:
        """The directory of its data, or else the scratch directory: for measuring its disk."""
        return self._directory or self.scratch

    def _answers(self) -> bool:
        try:
            with Client(self.address, limit_s=5.0) as client:
                check(client.ask(ApiVersionsRequest()).error_code, "ApiVersions")
                return bool(client.ask(MetadataRequest(topics=[])).brokers)
        except (OSError, ProtocolError):
            return False

    def _log_path(self) -> Path:
        return self.scratch / f"{self.name}.log"

    def _last_words(self) -> str:
        lines = self._log_path().read_text(errors="replace").splitlines()
        return " / ".join(lines[-3:]) or "it said nothing"

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _wait_gone(self, members: Sequence[int]) -> None:
        limit = time.perf_counter() + STOP_LIMIT_S
        while any(Path(f"/proc/{member}").exists() for member in members):
            if time.perf_counter() > limit:
                for member in members:
                    _signal(member, signal.SIGKILL)
                return
            time.sleep(_POLL_S)


class SecureTarget(NamedTuple):
    """A broker that has listeners with TLS too, and their addresses."""

    target: Target
    tls: Address
    logins: Address


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
