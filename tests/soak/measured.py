"""Measures a cluster of processes during a soak: memory, descriptors, threads, disk, etcd."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path

from tests.chaos.cluster_processes import ClusterProcesses

MIB = 1 << 20
ETCD_ANSWER_S = 30.0


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
        broker = cluster.brokers[broker_id]
        process = Path(f"/proc/{broker.pid}")
        sample[f"broker {broker_id} resident MiB"] = broker.resident_bytes() / MIB
        sample[f"broker {broker_id} descriptors"] = len(list((process / "fd").iterdir()))
        sample[f"broker {broker_id} threads"] = len(list((process / "task").iterdir()))
    for broker_id, folder in cluster.directories.items():
        sample[f"broker {broker_id} disk MiB"] = blocks_bytes(folder) / MIB
    file_bytes, used_bytes = etcd_bytes(cluster.etcd.endpoint)
    sample |= {"etcd file MiB": file_bytes / MIB, "etcd in use MiB": used_bytes / MIB}
    return sample
