"""Who commits an offset, and whether that may let records go: asked when the offset is committed, and kept with it (KIP-68).

A commit says that a group needs nothing below it, and where consumed records are deleted that deletes them. So it does only by a principal
with DELETE on the topic, unless the topic names its groups. The right is asked for when the principal uses it; the record of the offset has
the answer, so that every later coordinator knows it, and retention needs to ask no rules about a principal that is long gone.

Nothing is asked, or kept, of topics from which nothing goes for being consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from lowtide.broker.audit.audit_log import short
from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.authorizer.resources import topic as topic_resource
from lowtide.broker.config.consumed_retention import is_trimmed_by_commits
from lowtide.broker.context import BrokerContext
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import TopicImage


class OffsetCommitter(NamedTuple):
    """Who commits, as the record of an offset has it."""

    name: str | None = None
    """The principal; None where it is not kept."""
    may_delete: bool = False
    """Whether an authorizer has found that it may delete records of the topic. Without one it is not asked, and any commit may."""


NO_COMMITTER: Final = OffsetCommitter()


def keeps_committers(broker: BrokerContext, topic: TopicImage) -> bool:
    """Whether commits for a topic may let its records go."""
    config = broker.config
    return is_trimmed_by_commits(config.values, config.topic_defaults["retention.commitoffset.ms"], topic.configs)


def committers(broker: BrokerContext, context: RequestContext, topics: Iterable[Any]) -> Mapping[str, OffsetCommitter]:
    """Who commits, by the names of those of these topics for which that is kept."""
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
