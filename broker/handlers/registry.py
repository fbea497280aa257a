"""Which APIs this broker serves: the one list that ApiVersions, the version check and the documentation follow."""

from __future__ import annotations

from collections.abc import Mapping

from lowtide.broker.context import BrokerContext
from lowtide.broker.dispatcher import HandlerSpec, VersionRange
from lowtide.broker.handlers import (
    api_versions,
    create_topics,
    delete_records,
    delete_topics,
    describe_log_dirs,
    describe_producers,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from lowtide.broker.topics import TopicAdministrator
from lowtide.protocol.api_keys import ApiKey


def handlers(broker: BrokerContext, administrator: TopicAdministrator, advertised: Mapping[ApiKey, VersionRange]) -> list[HandlerSpec]:
    """The handlers over a broker's state; `advertised` is the dispatcher's own table."""
    return [
        api_versions.handler(advertised),
        create_topics.handler(administrator),
        delete_records.handler(broker),
        delete_topics.handler(administrator),
        describe_log_dirs.handler(broker),
        describe_producers.handler(broker),
        fetch.handler(broker),
        init_producer_id.handler(broker),
        list_offsets.handler(broker),
        metadata.handler(broker, administrator),
        offset_for_leader_epoch.handler(broker),
        produce.handler(broker),
    ]
