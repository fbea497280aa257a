"""Decides whether a broker may act under its registration: lead, answer fetches, acknowledge writes.

A broker with a shared metadata store can lose its registration while it runs, because it was cut off or its process was
suspended. From before that moment (`metadata/lease.py`, `FENCE_PART`), and while its image may be too old, it answers
NOT_LEADER_OR_FOLLOWER. Each response checks this, because a timer would fire too late after a suspension. A timer only
ends waiting requests.

Guards: no leadership of an earlier registration is resumed. After a new registration the broker acts again when the
metadata show that all its leaderships were elected under it. A broker with an embedded store needs no fence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from lowtide.metadata.image import MetadataImage
from lowtide.metadata.session import MetadataSession
from lowtide.protocol.types import BrokerEpoch, BrokerId
from lowtide.runtime.clock import Clock

UP_LOOK_MS: Final = 50
"""The interval at which a raised fence is checked."""


class RegistrationFence:
    """The fence of one broker. It is up while the broker must not act."""

    __slots__ = (
        "_clock",
        "_looked_at",
        "_loop",
        "_on_turned",
        "_timer",
        "_was_up",
        "down_until_ms",
        "epoch",
        "registration",
        "session",
    )

    def __init__(self, session: MetadataSession, clock: Clock) -> None:
        """Creates a raised fence. It goes down when the session is registered and the image has its leaderships."""
        self.session = session
        self.registration = session.registration
        self._clock = clock
        self.epoch: BrokerEpoch = 0
        self._looked_at: tuple[BrokerEpoch, MetadataImage] | None = None
        self.down_until_ms = 0
        self._was_up = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._on_turned: Callable[[bool], None] = lambda _up: None
        session.registration.on_change(self._on_registration)

    def is_up(self) -> bool:
        """Returns whether the broker must not act now."""
        if self.registration.broker_epoch == self.epoch and self._clock.monotonic_ms() < self.down_until_ms:
            return False
        return self._look()

    def _look(self) -> bool:
        """Asks the session. A lowered fence stays down until `down_until_ms` while the registration is the same."""
        session = self.session
        if session.is_fenced:
            return True
        epoch, image = session.broker_epoch, session.image
        if epoch != self.epoch and self._looked_at != (epoch, image):
            self._looked_at = (epoch, image)
            if image.revision >= epoch and _all_leaderships_are_new(image, session.broker_id, epoch):
                self.epoch = epoch
        if epoch != self.epoch:
            return True
        self.down_until_ms = session.fenced_from_ms
        return False

    # Notification

    def watch(self, loop: asyncio.AbstractEventLoop, on_turned: Callable[[bool], None]) -> None:
        """Calls `on_turned(up)` in the loop whenever the fence goes up or down; initially it counts as up."""
        self._loop = loop
        self._on_turned = on_turned
        self.tell()

    def close(self) -> None:
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    def tell(self) -> None:
        if self._loop is None:
            return
        up = self.is_up()
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = UP_LOOK_MS if up else max(1, self.down_until_ms - self._clock.monotonic_ms())
        self._timer = self._loop.call_later(wait_ms / 1000, self.tell)
        if up != self._was_up:
            self._was_up = up
            self._on_turned(up)

    def _on_registration(self) -> None:
        self.down_until_ms = 0
        self.tell()


def _all_leaderships_are_new(image: MetadataImage, broker_id: BrokerId, epoch: BrokerEpoch) -> bool:
    """Returns whether all leaderships of the broker were elected under this epoch."""
    led = (
        partition for topic in image.topics.values() for partition in topic.partitions if partition.leader == broker_id
    )
    return all((broker_id, epoch) in zip(partition.isr, partition.isr_epochs, strict=True) for partition in led)
