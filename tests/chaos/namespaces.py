"""Network namespaces, one for each broker, so that the path from one to another can be cut in one direction for all
packets.

Requirements: Linux, root, `ip`. Each namespace is created here, under a unique name, and removed at the end. A cut is a
rule of the receiver's routing that drops packets of the sender; the other direction continues, acknowledgements
included. (Nothing is added to the firewall, which may not be there.)
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

_CLONE_NEWNET = 0x40000000
_NETWORK = "10.93.7"
HUB = f"{_NETWORK}.250"


def missing_namespaces() -> str | None:
    """Returns why namespaces cannot be used here, or None."""
    if shutil.which("ip") is None:
        return "one-way partitions need the program ip (Debian: iproute2)"
    if os.geteuid() != 0:
        return "one-way partitions need root, for network namespaces"
    name = f"lt-try-{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"this machine does not allow network namespaces: {made.stderr.strip()}"
    ruled = subprocess.run(
        ["ip", "-n", name, "rule", "add", "from", f"{_NETWORK}.1", "blackhole"], capture_output=True, check=False
    )
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None if ruled.returncode == 0 else "this machine has no routing rules, by which one direction could be cut"


class Namespaces:
    """A switch in its own namespace, and a namespace on it for each id. Used as `with`."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self._prefix = f"lt{uuid.uuid4().hex[:6]}"
        self._made: list[str] = []

    def address(self, broker_id: int) -> str:
        """Returns the address of a broker, for the others and for us."""
        return f"{_NETWORK}.{broker_id}"

    @property
    def hub(self) -> str:
        """The namespace of the switch: from there every broker is reachable."""
        return f"{self._prefix}-hub"

    def name(self, broker_id: int) -> str:
        """Returns a broker's namespace."""
        return f"{self._prefix}-{broker_id}"

    def command(self, broker_id: int) -> list[str]:
        """Returns the prefix that runs a command in a broker's namespace. The process id stays the same."""
        return ["ip", "netns", "exec", self.name(broker_id)]

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def cut(self, origin: int, target: int) -> None:
        """Drops all packets from `origin` to `target` from now on."""
        _ip("-n", self.name(target), "rule", "add", "from", self.address(origin), "blackhole", "priority", "1")

    def mend(self, origin: int, target: int) -> None:
        """Removes the cut."""
        _ip("-n", self.name(target), "rule", "del", "from", self.address(origin), "blackhole", "priority", "1")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is in the hub, with the sockets, processes and threads that it creates meanwhile.

        Errors: OSError.
        """
        with (
            Path("/proc/thread-self/ns/net").open("rb") as before,
            Path(f"/var/run/netns/{self.hub}").open("rb") as hub,
        ):
            _enter(hub.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def _make(self) -> None:
        self._namespace(self.hub)
        _ip("-n", self.hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", self.hub, "addr", "add", f"{HUB}/24", "dev", "switch")
        _ip("-n", self.hub, "link", "set", "switch", "up")
        for broker_id in self._ids:
            name, port = self.name(broker_id), f"to-{broker_id}"
            self._namespace(name)
            _ip("-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", self.hub, "link", "set", port, "master", "switch", "up")
            _ip("-n", name, "addr", "add", f"{self.address(broker_id)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            # The first rule finds packets for this host itself: cuts must come before it.
            _ip("-n", name, "rule", "add", "priority", "10", "lookup", "local")
            _ip("-n", name, "rule", "del", "priority", "0")
            # Packets of a known connection would bypass the rules.
            self._set(name, "net/ipv4/ip_early_demux", "0")

    def _namespace(self, name: str) -> None:
        _ip("netns", "add", name)
        self._made.append(name)
        _ip("-n", name, "link", "set", "lo", "up")

    def _set(self, name: str, key: str, value: str) -> None:
        subprocess.run(
            ["ip", "netns", "exec", name, "sh", "-c", f"echo {value} > /proc/sys/{key}"],
            check=True,
            capture_output=True,
        )


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
