"""A group of either kind, and where a coordinator has them."""

from __future__ import annotations

from typing import TypeAlias

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.consumer.consumer_group import ConsumerGroup

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup
"""Both have `group_id`, `state`, `members`, `protocol_type`, `is_subscribed_to`, `living_subscriptions`, `last_record_offset`."""

GroupsById: TypeAlias = dict[str, AnyGroup]
