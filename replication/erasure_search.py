"""The search for one erasure of a compacted log, as the leader sees it: who has taken part, and who must.

Replicas of such a log differ, because each one compacts for itself. So each searches its own log, and the erasure names
what any of them has found. A replica that wasn't searched starts over when it meets the erasure.

Guards: a follower searches only when its log has reached the end of the leader's search, in this leader epoch: before,
an answer under way could bring an old version later. Its result counts for its present registration. All members of the
maximal ISR take part, because one that starts over in the ISR could be elected without its log. From the beginning of
the search no other replica joins the ISR.

Source: docs/adr/0024-model-of-erasures.md; `tests/model/erasures_compacted.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerEpoch, BrokerId, LeaderEpoch, Offset


class FoundRecord(NamedTuple):
    """What the ledger of erasures needs of a record beside its offset."""

    timestamp: int
    leader_epoch: LeaderEpoch


class ErasureSearch(msgspec.Struct, eq=False):
    """One attempt. It ends with the leadership."""

    search_id: UUID
    """Random. Of each attempt another one: who took part in one that failed isn't a participant of the next."""
    end_offset: Offset
    """The exclusive end of the search: the leader's log end when it began."""
    found: dict[Offset, FoundRecord] = msgspec.field(default_factory=dict)
    """What the followers have found."""
    took_part: dict[BrokerId, BrokerEpoch] = msgspec.field(default_factory=dict)
    """The followers that have searched and noted it, each with its registration then."""

    def note(self, broker_id: BrokerId, broker_epoch: BrokerEpoch, found: Mapping[Offset, FoundRecord]) -> None:
        """Adds the result of a follower, which has durably noted that it took part, under this registration."""
        self.took_part[broker_id] = broker_epoch
        self.found |= found

    def has_part(self, broker_id: BrokerId, image: MetadataImage) -> bool:
        """Returns whether a follower has taken part under its present registration."""
        broker_epoch = self.took_part.get(broker_id)
        return broker_epoch is not None and image.broker_epoch(broker_id) == broker_epoch

    def missing(self, members: Iterable[BrokerId], leader_id: BrokerId, image: MetadataImage) -> tuple[BrokerId, ...]:
        """Returns the members of the maximal ISR that must still take part."""
        return tuple(
            broker_id for broker_id in sorted(members) if broker_id != leader_id and not self.has_part(broker_id, image)
        )

    def participants(
        self, leader_id: BrokerId, followers: Iterable[BrokerId], image: MetadataImage
    ) -> tuple[BrokerId, ...]:
        """Returns the brokers that the erasure names, in ascending order."""
        return tuple(sorted([leader_id, *(each for each in followers if self.has_part(each, image))]))
