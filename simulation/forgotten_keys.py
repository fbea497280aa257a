"""The compacted partition whose records are erased, while its replicas compact at different times.

Records have few keys, so most have several versions. An erasure names keys, or the offset of one version. `keyed_load`
and `keyed_history` judge compaction; `erased_history` knows what erasures name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.cluster_world import TOPIC
from lowtide.simulation.keyed_load import KeyedLoad
from lowtide.simulation.loaded_partition import DeleteObserver

CLEANER_PAUSES_MS: Final = ("100", "500", "500", "4000")
"""How often a broker compacts. Some keep old versions for nearly a whole run."""


def main_load(
    number: int,
    make_client: Callable[[str], ClusterClient],
    random: Random,
    observer: DeleteObserver,
    configs: dict[str, str],
) -> PartitionLoad:
    """Returns the load of a partition of the main topic, which is compacted if `configs` say how."""
    if configs:
        return KeyedLoad(TOPIC, number, make_client, random, observer, configs)
    return PartitionLoad(TOPIC, number, make_client, random, observer)


def cleaner_settings(random: Random) -> dict[str, str]:
    """Returns the settings of one broker's compaction."""
    return {"log.cleaner.backoff.ms": random.choice(CLEANER_PAUSES_MS)}


def forgotten_configs(random: Random) -> dict[str, str]:
    """Returns the configuration of the topic."""
    return {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "1200",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": random.choice(("500", "2000", "60000")),
        "min.compaction.lag.ms": random.choice(("0", "0", "400")),
    }
