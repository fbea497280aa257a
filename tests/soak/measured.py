"""Measures a cluster of processes during a soak: memory, descriptors, threads, disk, etcd, CPU."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.cluster_processes import ClusterProcesses
from tests.chaos.serving import ServeProcess

MIB = 1 << 20
ETCD_ANSWER_S = 30.0
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def blocks_bytes(folder: Path) -> int:
    """Returns the allocated bytes of a folder's files. A file that is removed meanwhile counts as nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def etcd_bytes(endpoint: str) -> tuple[int, int]:
    """Returns the size of etcd's file, and the bytes in use."""
    request = urllib.request.Request(f"http://{endpoint}/v3/maintenance/status", data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=ETCD_ANSWER_S) as answer:
        status = json.load(answer)
    return int(status["dbSize"]), int(status["dbSizeInUse"])


def measure(cluster: ClusterProcesses) -> dict[str, float]:
    """One sample by name; of brokers that run."""
    sample: dict[str, float] = {}
    for broker_id in cluster.awake:
        with contextlib.suppress(OSError, StopIteration):  # It has just ended.
            sample |= of_broker(broker_id, cluster.brokers[broker_id])
    for broker_id, folder in cluster.directories.items():
        sample[f"broker {broker_id} disk MiB"] = blocks_bytes(folder) / MIB
    file_bytes, used_bytes = etcd_bytes(cluster.etcd.endpoint)
    sample |= {"etcd file MiB": file_bytes / MIB, "etcd in use MiB": used_bytes / MIB}
    return sample


def of_broker(broker_id: int, broker: ServeProcess) -> dict[str, float]:
    """Errors: OSError or StopIteration if it has ended."""
    process = Path(f"/proc/{broker.pid}")
    return {
        f"broker {broker_id} resident MiB": broker.resident_bytes() / MIB,
        f"broker {broker_id} descriptors": len(list((process / "fd").iterdir())),
        f"broker {broker_id} threads": len(list((process / "task").iterdir())),
    }


class CpuShare:
    """The CPU time that processes used since the last look, as a share of one core."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}
        self._looked_s = time.monotonic()

    def percent(self, process_ids: Iterable[int]) -> float:
        """Returns the share in percent. Of a process that ended meanwhile nothing counts since the last look."""
        found = {}
        for process_id in process_ids:
            try:
                stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            user, system = stat.rpartition(")")[2].split()[11:13]
            found[process_id] = int(user) + int(system)
        used = sum(ticks - self._ticks.get(process_id, 0) for process_id, ticks in found.items())
        now_s = time.monotonic()
        seconds, self._looked_s, self._ticks = now_s - self._looked_s, now_s, found
        return 100 * used / TICKS_A_SECOND / max(seconds, 1e-9)
