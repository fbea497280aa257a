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


class AlertMeaning(NamedTuple):
    """An alert that can fire: what it means, and what to do then."""

    severity: str
    name: str
    meaning: str
    remedy: str


OFFLINE: Final = "Offline partitions"
REFUSING: Final = "Under min.insync.replicas"
BEHIND: Final = "Under-replicated partitions"
NO_CONTROLLER: Final = "No controller"
FENCED: Final = "Fenced brokers"
OFFLINE_DIRECTORY: Final = "Offline log directory"
FULL_DIRECTORY: Final = "Full log directory"
FILLING: Final = "Log directory fills"

MEANINGS: Final = (
    AlertMeaning(
        CRITICAL,
        OFFLINE,
        "A partition has no leader. Nobody reads or writes it.",
        "Start a broker that has a replica of it.",
    ),
    AlertMeaning(
        CRITICAL,
        REFUSING,
        "A partition has fewer in-sync replicas than min.insync.replicas. Producers with acks=all are refused.",
        "Start the brokers whose replicas are not in sync, or wait until they have caught up.",
    ),
    AlertMeaning(
        WARNING,
        BEHIND,
        "A replica is not in sync. If the other replicas are lost, records are lost.",
        "Start its broker. If the broker runs, its disk or its network is too slow.",
    ),
    AlertMeaning(
        CRITICAL,
        NO_CONTROLLER,
        "No broker is the controller. Topics, leaders and settings do not change.",
        "Start the controllers, and check the store of the metadata.",
    ),
    AlertMeaning(
        CRITICAL,
        FENCED,
        "A broker is registered, and the controller does not hear from it. It leads nothing.",
        "Start the broker, or remove it from the cluster if it will not return.",
    ),
    AlertMeaning(
        CRITICAL,
        OFFLINE_DIRECTORY,
        "A broker can't use a log directory. The replicas in it are offline.",
        "Repair the disk and restart the broker.",
    ),
    AlertMeaning(
        CRITICAL,
        FULL_DIRECTORY,
        "A log directory has no room. The broker refuses records for the partitions in it.",
        "Delete records, shorten the retention of large topics, or move replicas to other directories.",
    ),
    AlertMeaning(
        WARNING,
        FILLING,
        "The volume of a log directory is more than 90 % in use.",
        "Shorten the retention of large topics, or enlarge the volume.",
    ),
)
"""All alerts of this page."""


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
        fired.append(Alert(CRITICAL, OFFLINE, f"No leader, so no reads and writes: {_named(offline)}."))
    refusing = [
        f"{name}-{number}"
        for name, least in sorted(found.minima.items())
        for number, row in sorted(found.topics[name].partitions.items())
        if row.leader is not None and len(row.isr) < least
    ]
    if refusing:
        reason = "Fewer in-sync replicas than min.insync.replicas, so producers with acks=all are refused"
        fired.append(Alert(CRITICAL, REFUSING, f"{reason}: {_named(refusing)}."))
    behind = [name for name, row in rows if row.leader is not None and _lacks_replicas(row)]
    if behind:
        fired.append(Alert(WARNING, BEHIND, f"Fewer in-sync replicas than assigned: {_named(behind)}."))
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
            Alert(CRITICAL, NO_CONTROLLER, "No broker is the controller: no changes of the cluster are possible.")
        )
    fenced = [str(broker.broker_id) for broker in found.cluster.brokers if broker.is_fenced]
    if fenced:
        fired.append(Alert(CRITICAL, FENCED, f"Registered but not live: {', '.join(fenced)}."))
    return fired


def _directories(found: AlertFacts) -> list[Alert]:
    fired = []
    for broker_id, directories in sorted(found.directories.items()):
        if isinstance(directories, AdminError):
            continue
        for path, each in sorted(directories.items()):
            where = f"{path} of broker {broker_id}"
            if each.error is not None:
                fired.append(Alert(CRITICAL, OFFLINE_DIRECTORY, f"{where} can't be used: {each.error}."))
            elif each.is_full:
                fired.append(Alert(CRITICAL, FULL_DIRECTORY, f"{where} is full: appends are refused."))
            elif each.total_bytes > 0 and 0 <= each.usable_bytes < (1 - FULL_SHARE) * each.total_bytes:
                share = 100 - 100 * each.usable_bytes // each.total_bytes
                fired.append(Alert(WARNING, FILLING, f"The volume of {where} is {share} % in use."))
    return fired


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
