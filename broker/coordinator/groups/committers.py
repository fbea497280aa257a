"""Records with an offset who committed it, and whether that commit may delete records (KIP-68).

A commit means that the group needs nothing below it, and where consumed records are deleted, the commit deletes them.
So it needs a principal with DELETE on the topic, unless the topic names its groups. The right is checked when the
commit is made, and the offset's record has the result, so every later coordinator knows it, even if the principal is
long gone.

Nothing is checked or recorded for topics without retention by consumption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from lowtide.broker.audit.audit_log import short
from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.authorizer.resources import topic as topic_resource
from lowtide.broker.config.consumed_retention import ENABLED, is_trimmed_by_commits
from lowtide.broker.context import BrokerContext
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import TopicImage


class OffsetCommitter(NamedTuple):
    """The committer in the record of an offset."""

    name: str | None = None
    """The principal; None if it is not recorded."""
    may_delete: bool = False
    """Whether the authorizer lets it delete records of the topic. Without an authorizer any commit may."""


NO_COMMITTER: Final = OffsetCommitter()

NOBODY: Final[Mapping[str, OffsetCommitter]] = MappingProxyType({})
"""The committers of topics without retention by consumption."""


def keeps_committers(broker: BrokerContext, topic: TopicImage) -> bool:
    """Returns whether commits for a topic may delete its records."""
    config = broker.config
    return is_trimmed_by_commits(config.values, config.topic_defaults["retention.commitoffset.ms"], topic.configs)


def committers(broker: BrokerContext, context: RequestContext, topics: Iterable[Any]) -> Mapping[str, OffsetCommitter]:
    """Returns the committer for each of these topics that records it, by name."""
    if broker.config.values[ENABLED] is not True:
        return NOBODY
    known, authorizer = broker.metadata.image.topics, broker.authorizer
    found = {}
    for topic in topics:
        there = known.get(topic.name)
        if there is not None and keeps_committers(broker, there):
            asks = not authorizer.allows_all
            may_delete = asks and authorizer.authorize(
                context, Operation.DELETE, topic_resource(topic.name), Audit.NOTHING
            )
            found[topic.name] = OffsetCommitter(short(str(context.principal)), may_delete)
    return found
