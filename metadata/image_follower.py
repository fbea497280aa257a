"""Keeps a broker's image up to date with the store, and tracks its age.

A live lease doesn't prove that the image is recent: the watch may lag or be silent. So the follower asks the store for
its revision from time to time; once the image shows the answer, it is at least as recent as the question. If the image
stays behind, everything is read again and the watch restarts.

Guards: the image never goes back; every listener sees every image, in order.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final, Protocol

from lowtide.metadata import keys
from lowtide.metadata.errors import InconsistentClusterError, SessionError, StoreWentBackError
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.metadata.image_change import apply_batch, difference, load_image
from lowtide.metadata.metadata_copy import Change, MetadataCopy, change_of, contradiction, rows_of
from lowtide.metadata.records import HistoryRecord, decode
from lowtide.metadata.store import CompactedError, MetadataStore, Revision, UnavailableError
from lowtide.metadata.writer import StoreBackoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.metadata.store import KeyValue
    from lowtide.runtime.clock import Clock

    ImageListener = Callable[[MetadataImage, MetadataImage, ImageDelta], None]

QUESTIONS_PER_AGE: Final = 12
"""How often the store is asked for its revision within the permitted age of an image."""

WATCH_PATIENCE_S: Final = 0.2
"""How long the watch may take to show a revision before it is read instead."""

BEHIND_PART: Final = 0.25
"""The part of the permitted age for which an image may stay behind before everything is read again."""


class CopyKeeper(Protocol):
    """Writes down what is followed."""

    def on_loaded(self, copy: MetadataCopy) -> None:
        """Records a complete read."""

    def on_change(self, change: Change) -> None:
        """Records a change before it is acted upon."""


class ImageFollower:
    """One broker's image. Used from one event loop."""

    def __init__(self, *, store: MetadataStore, clock: Clock, prefix: bytes, age_ms: int, pause_ms: int) -> None:
        """`age_ms`: the permitted age of the image, 0 for none; `pause_ms`: the least time between two questions."""
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._age_ms = age_ms
        self._pause_ms = max(pause_ms, age_ms // QUESTIONS_PER_AGE)
        self._listeners: list[ImageListener] = []
        self._waiting: dict[asyncio.Future[None], Revision] = {}
        self._behind: tuple[Revision, int] | None = None
        self._watching: asyncio.Timeout | None = None
        self._ended = ""
        self.image = MetadataImage()
        self.copy = MetadataCopy((), 0)
        """The keys and values that the image was made from."""
        self.keeper: CopyKeeper | None = None
        self.shown_ms = 0
        """When the image was requested (monotonic): it includes everything that the store had answered to any client
        before."""

    def on_image(self, listener: ImageListener) -> None:
        """Calls `listener(old, new, delta)` in the loop whenever the image changes, in the order of registration."""
        self._listeners.append(listener)

    async def read(self) -> None:
        """Reads the whole image. Errors: UnavailableError, InconsistentClusterError, MetadataCorruptError.

        StoreWentBackError if the result can't be a later state of what was followed.
        """
        seen, sent_ms = self.image.revision, self._clock.monotonic_ms()
        pairs, revision = await self._store.range(self._prefix)
        check_progress(seen, revision)
        if revision >= self.image.revision:  # Otherwise the watch has delivered more meanwhile.
            copy = self._copied(pairs, revision)
            if seen and (reason := contradiction(self.copy, copy.rows, revision)) is not None:
                raise StoreWentBackError(f"the metadata store went back: {reason}")
        if revision > self.image.revision:
            image = load_image(pairs, revision, prefix=self._prefix, known=self.image)
            self.copy = copy
            if self.keeper is not None:
                self.keeper.on_loaded(copy)
            self._show(image, difference(self.image, image))
        self.note_revision(revision, sent_ms)

    def _copied(self, pairs: list[KeyValue], revision: Revision) -> MetadataCopy:
        copy = MetadataCopy(rows_of(pairs, self._prefix), revision)
        history, cluster_id = copy.rows.get(keys.HISTORY), copy.rows.get(keys.CLUSTER_ID)
        try:
            copy.history_id = "" if history is None else decode(keys.HISTORY, history[1], HistoryRecord).history_id
            copy.cluster_id = "" if cluster_id is None else cluster_id[1].decode()
        except ValueError:  # They never change, so the followed ones apply; `load_image` reports what can't be read.
            copy.history_id, copy.cluster_id = self.copy.history_id, self.copy.cluster_id
        return copy

    async def image_from(self, revision: Revision) -> MetadataImage:
        """Returns an image at `revision` or later, also if no watch reports that revision.

        Errors: as `read`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCH_PATIENCE_S):
                await self.wait_for(revision)
        if self.image.revision < revision:
            await self.read()
        return self.image

    async def follow(self) -> None:
        """Applies every batch; after a gap, reads everything again and reports the difference. Never returns."""
        backoff, seen = StoreBackoff(), -1
        while True:
            if self.image.revision != seen:
                backoff, seen = StoreBackoff(), self.image.revision
            try:
                await self._watch()
            except CompactedError:
                await self._read_or_rest(backoff)
            except UnavailableError:
                await backoff.wait()
            except TimeoutError:  # Raised through `prove_age`.
                continue

    async def _watch(self) -> None:
        async with asyncio.timeout(None) as watching:
            self._watching = watching
            try:
                await self._apply_batches()
            finally:
                self._watching = None  # Before any back-off: a finished watch can't be ended.

    async def _apply_batches(self) -> None:
        async with aclosing(self._store.watch(self._prefix, self.image.revision + 1)) as batches:
            async for batch in batches:
                if batch.revision > self.image.revision:  # Otherwise everything was read meanwhile.
                    change = change_of(batch, self._prefix)
                    self.copy.apply(change)
                    if self.keeper is not None:
                        self.keeper.on_change(change)
                    self._show(*apply_batch(self.image, batch, prefix=self._prefix))

    async def _read_or_rest(self, backoff: StoreBackoff) -> None:
        try:
            await self.read()
        except UnavailableError:
            await backoff.wait()

    def _show(self, image: MetadataImage, delta: ImageDelta) -> None:
        old, self.image = self.image, image
        if old.cluster_id not in {"", image.cluster_id}:
            message = f"the metadata store changed from cluster {old.cluster_id} to {image.cluster_id!r}"
            raise InconsistentClusterError(message)
        if self._behind is not None and image.revision >= self._behind[0]:
            (_, self.shown_ms), self._behind = self._behind, None
        for listener in self._listeners:
            listener(old, image, delta)
        due = [waiter for waiter, revision in self._waiting.items() if revision <= image.revision]
        for waiter in due:
            del self._waiting[waiter]
            if not waiter.done():
                waiter.set_result(None)

    def note_revision(self, revision: Revision, sent_ms: int) -> None:
        """Records that the store answered a question of `sent_ms` (monotonic) with this revision."""
        if self.image.revision >= revision:
            self.shown_ms = max(self.shown_ms, sent_ms)
            self._behind = None
        elif self._behind is None:
            self._behind = (revision, sent_ms)

    async def prove_age(self) -> None:
        """Asks the store for its revision repeatedly; reads everything again if the image stays behind."""
        while True:
            await asyncio.sleep(self._pause_ms / 1000)
            sent_ms = self._clock.monotonic_ms()
            if self._behind is not None and sent_ms - self._behind[1] > self._age_ms * BEHIND_PART:
                with suppress(UnavailableError):
                    await self.read()
                    if self._watching is not None:
                        self._watching.reschedule(0)
                continue
            with suppress(UnavailableError):
                self.note_revision(await self._store.revision(), sent_ms)

    async def wait_for(self, revision: Revision) -> None:
        """Waits until the image shows `revision`, which must have changed a key under the prefix.

        Errors: SessionError if it won't.
        """
        if self.image.revision < revision:
            if self._ended:
                raise SessionError(self._ended)
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[waiter] = revision
            try:
                await waiter
            finally:
                self._waiting.pop(waiter, None)  # The waiting task may have been cancelled.

    def end(self, reason: str) -> None:
        """Ends all waits, because nothing will be followed any more."""
        self._ended = self._ended or reason
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(SessionError(self._ended))
                waiter.exception()  # The waiting task may be gone.
        self._waiting.clear()


def check_progress(seen: Revision, revision: Revision) -> None:
    """Checks that a store's revision didn't fall. Errors: StoreWentBackError."""
    if revision < seen:
        raise StoreWentBackError(f"the metadata store went back from revision {seen} to {revision}")
