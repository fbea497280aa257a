"""Cluster metrics.

Most are on every broker, with 0 except on the controller, so that they can be summed. kafka_exporter's series of
brokers and topics come only from the active controller: once, whichever broker it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from lowtide.broker.metrics.exposition import Page, escaped
from lowtide.broker.metrics.metric import counter, gauge
from lowtide.broker.metrics.sources import Scrape

_PARTITIONS_A_STEP: Final = 1_000
"""The number of partitions between two checks of the clock: under a millisecond."""

_ACTIVE: Final = gauge(
    "kafka_controller_kafkacontroller_activecontrollercount", "1 on the active controller, otherwise 0."
)
_OFFLINE: Final = gauge(
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "The number of partitions without a leader; 0 except on the controller.",
)
_TOPICS: Final = gauge(
    "kafka_controller_kafkacontroller_globaltopiccount",
    "The number of topics in the cluster; 0 except on the controller.",
)
_PARTITIONS: Final = gauge(
    "kafka_controller_kafkacontroller_globalpartitioncount",
    "The number of partitions in the cluster; 0 except on the controller.",
)
_ACTIVE_BROKERS: Final = gauge(
    "kafka_controller_kafkacontroller_activebrokercount", "The number of active brokers; 0 except on the controller."
)
_FENCED_BROKERS: Final = gauge(
    "kafka_controller_kafkacontroller_fencedbrokercount",
    "The number of fenced brokers; 0 except on the controller.",
)
_PREFERRED: Final = gauge(
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "The number of partitions whose leader is not the preferred replica; 0 except on the controller.",
)
_UNCLEAN: Final = counter(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "The number of unclean leader elections while this broker was the controller.",
)
_GIVEN: Final = counter(
    "lowtide_leaders_given_total",
    "The number of leaderships that this overloaded process gave to other processes of the machine.",
)
_UNREADABLE: Final = gauge(
    "lowtide_metadata_unreadable_keys",
    "The number of metadata keys that this broker cannot read; the log names them.",
)
_BROKERS: Final = gauge("kafka_brokers", "The number of brokers in the cluster; only on the controller.")
_BROKER_INFO: Final = gauge(
    "kafka_broker_info", "1 for each broker in the cluster; only on the controller.", "id", "address"
)
_TOPIC_PARTITIONS: Final = gauge(
    "kafka_topic_partitions", "The number of partitions of a topic; only on the controller.", "topic"
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
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
    counts = (f'{{topic="{escaped(topic.name)}"}} {len(topic.partitions)}' for topic in topics)
    yield from page.series(_TOPIC_PARTITIONS, counts)
