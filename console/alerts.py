"""The alerts that fire now, as operators of Kafka commonly have them. Pure, from descriptions of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.admin.errors import AdminError

if TYPE_CHECKING:
    from lowtide.admin.cluster_description import ClusterDescription
    from lowtide.admin.cluster_view import PartitionDescription, TopicDescription
    from lowtide.admin.log_dirs import LogDir

CRITICAL: Final = "critical"
WARNING: Final = "warning"
NAMED: Final = 5
"""How many partitions an alert names; the others are counted."""

FULL_SHARE: Final = 0.9
"""The share of a volume above which its use is a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFacts:
    """The descriptions of the cluster."""

    cluster: ClusterDescription
    topics: Mapping[str, TopicDescription]
    directories: Mapping[int, Mapping[str, LogDir] | AdminError]
    minima: Mapping[str, int]
    """`min.insync.replicas` of topics with replicas out of sync, as far as it is known."""


class Alert(NamedTuple):
    """An alert."""

    severity: str
    name: str
    sentence: str


def alerts(found: AlertFacts) -> list[Alert]:
    """Returns all alerts, the critical ones first."""
    fired = [*_partitions(found), *_brokers(found), *_directories(found)]
    return sorted(fired, key=lambda alert: alert.severity != CRITICAL)


def _partitions(found: AlertFacts) -> list[Alert]:
    rows = [
        (f"{name}-{number}", row)
        for name, topic in sorted(found.topics.items())
        for number, row in sorted(topic.partitions.items())
    ]
    fired = []
    offline = [name for name, row in rows if row.leader is None]
    if offline:
        fired.append(Alert(CRITICAL, "Offline partitions", f"No leader, so no reads and writes: {_named(offline)}."))
    refusing = [
        f"{name}-{number}"
        for name, least in sorted(found.minima.items())
        for number, row in sorted(found.topics[name].partitions.items())
        if row.leader is not None and len(row.isr) < least
    ]
    if refusing:
        reason = "Fewer in-sync replicas than min.insync.replicas, so producers with acks=all are refused"
        fired.append(Alert(CRITICAL, "Under min.insync.replicas", f"{reason}: {_named(refusing)}."))
    behind = [name for name, row in rows if row.leader is not None and _lacks_replicas(row)]
    if behind:
        fired.append(
            Alert(WARNING, "Under-replicated partitions", f"Fewer in-sync replicas than assigned: {_named(behind)}.")
        )
    return fired


def lacks_replicas(topic: TopicDescription) -> bool:
    """Returns whether any partition has a replica out of sync."""
    return any(map(_lacks_replicas, topic.partitions.values()))


def _lacks_replicas(row: PartitionDescription) -> bool:
    return len(row.isr) < len(row.replicas)


def _brokers(found: AlertFacts) -> list[Alert]:
    fired = []
    if found.cluster.controller_id is None:
        fired.append(
            Alert(CRITICAL, "No controller", "No broker is the controller: no changes of the cluster are possible.")
        )
    fenced = [str(broker.broker_id) for broker in found.cluster.brokers if broker.is_fenced]
    if fenced:
        fired.append(Alert(CRITICAL, "Fenced brokers", f"Registered but not live: {', '.join(fenced)}."))
    return fired


def _directories(found: AlertFacts) -> list[Alert]:
    fired = []
    for broker_id, directories in sorted(found.directories.items()):
        if isinstance(directories, AdminError):
            continue
        for path, each in sorted(directories.items()):
            where = f"{path} of broker {broker_id}"
            if each.error is not None:
                fired.append(Alert(CRITICAL, "Offline log directory", f"{where} can't be used: {each.error}."))
            elif each.is_full:
                fired.append(Alert(CRITICAL, "Full log directory", f"{where} is full: appends are refused."))
            elif each.total_bytes > 0 and 0 <= each.usable_bytes < (1 - FULL_SHARE) * each.total_bytes:
                share = 100 - 100 * each.usable_bytes // each.total_bytes
                fired.append(Alert(WARNING, "Log directory fills", f"The volume of {where} is {share} % in use."))
    return fired


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
