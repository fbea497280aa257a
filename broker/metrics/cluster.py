"""The cluster: the controller's series, which every broker has so that they can be summed, and those that only the controller has.

kafka_exporter's series of brokers and topics come from the active controller alone: each once, whichever broker it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from lowtide.broker.metrics.exposition import Page, escaped
from lowtide.broker.metrics.metric import counter, gauge
from lowtide.broker.metrics.sources import Scrape

_TOPICS_A_STEP: Final = 500
_PARTITIONS_A_STEP: Final = 1_000
"""Looked at between two looks at the clock: under a millisecond."""

_ACTIVE: Final = gauge("kafka_controller_kafkacontroller_activecontrollercount", "1 if this broker is the controller.")
_OFFLINE: Final = gauge(
    "kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions without a leader; 0 but on the controller."
)
_TOPICS: Final = gauge(
    "kafka_controller_kafkacontroller_globaltopiccount", "Topics of the cluster; 0 but on the controller."
)
_PARTITIONS: Final = gauge(
    "kafka_controller_kafkacontroller_globalpartitioncount", "Their partitions; 0 but on the controller."
)
_ACTIVE_BROKERS: Final = gauge(
    "kafka_controller_kafkacontroller_activebrokercount", "Brokers that are registered; 0 but on the controller."
)
_FENCED_BROKERS: Final = gauge(
    "kafka_controller_kafkacontroller_fencedbrokercount",
    "Brokers that were registered and are away; 0 but on the controller.",
)
_PREFERRED: Final = gauge(
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "Partitions that another replica leads than the first; 0 but on the controller.",
)
_UNCLEAN: Final = counter(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "Elections of a replica that wasn't in sync; those that were decided while this broker was the controller.",
)
_GIVEN: Final = counter(
    "lowtide_leaders_given_total",
    "Partitions that this process, which was full, had another process of the machine lead.",
)
_UNREADABLE: Final = gauge(
    "lowtide_metadata_unreadable_keys",
    "Keys of the metadata that can't be read, as this broker sees them; the log names them.",
)
_BROKERS: Final = gauge("kafka_brokers", "Brokers of the cluster. From the controller.")
_BROKER_INFO: Final = gauge(
    "kafka_broker_info", "1 for each broker of the cluster. From the controller.", "id", "address"
)
_TOPIC_PARTITIONS: Final = gauge("kafka_topic_partitions", "Partitions of a topic. From the controller.", "topic")

METRICS: Final = (
    _ACTIVE,
    _OFFLINE,
    _TOPICS,
    _PARTITIONS,
    _ACTIVE_BROKERS,
    _FENCED_BROKERS,
    _PREFERRED,
    _UNCLEAN,
    _GIVEN,
    _UNREADABLE,
    _BROKERS,
    _BROKER_INFO,
    _TOPIC_PARTITIONS,
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Write them, some topics at a time."""
    metadata = scrape.sources.broker.metadata
    image, is_controller = metadata.image, metadata.is_controller
    topics = list(image.topics.values()) if is_controller else []
    partitions = offline = preferred = 0
    for state in chain.from_iterable(topic.partitions for topic in topics):
        partitions += 1
        if not state.has_leader:
            offline += 1
        elif state.leader not in state.replicas[:1]:
            preferred += 1
        if partitions % _PARTITIONS_A_STEP == 0:
            yield
    page.one(_ACTIVE, int(is_controller))
    page.one(_OFFLINE, offline)
    page.one(_TOPICS, len(topics))
    page.one(_PARTITIONS, partitions)
    page.one(_PREFERRED, preferred)
    page.one(_UNCLEAN, scrape.sources.unclean_elections())
    page.one(_GIVEN, scrape.sources.leaders_given())
    page.one(_UNREADABLE, len(image.unreadable))
    brokers = image.brokers if is_controller else {}
    page.one(_ACTIVE_BROKERS, len(brokers))
    page.one(_FENCED_BROKERS, len(image.known_brokers.keys() - brokers.keys()) if is_controller else 0)
    yield
    page.rows(_BROKERS, [((), len(brokers))] if is_controller else [])
    addresses = {broker_id: broker.listeners[0] for broker_id, broker in sorted(brokers.items())}
    page.rows(_BROKER_INFO, [((broker_id, f"{each.host}:{each.port}"), 1) for broker_id, each in addresses.items()])
    name = page.begin(_TOPIC_PARTITIONS)
    for start in range(0, len(topics), _TOPICS_A_STEP):
        some = topics[start : start + _TOPICS_A_STEP]
        page.write([f'{name}{{topic="{escaped(topic.name)}"}} {len(topic.partitions)}\n' for topic in some])
        yield
