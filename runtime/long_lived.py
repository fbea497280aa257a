"""Keeps what lives long out of the way of Python's collector of reference cycles.

A full collection goes through every container that there is, in one go, while all threads stand still: ten thousand
partitions have some thirty containers each, thirty thousand consumer groups nine, and a row of a large request has
some, too. None of these holds cycles: they are freed without the collector when they go, and so are connections and
what is kept of clients. So whenever a full collection has gone through many objects, all that are left are passed over
from then on. What it would have found of them is collected just before, so only what becomes part of a cycle later
stays in memory for good.

Full collections are made to come often, by the count of younger ones, so that each has little to go through. CPython
makes none while less than a quarter of what the last one has left is new.

It works on the whole process, so it is for a process that is a broker and nothing else.
"""

from __future__ import annotations

import gc
from typing import Any, Final

KEPT_MIN: Final = 10_000
"""Objects that a full collection leaves and that are passed over then. It goes through so many in a millisecond or two."""

YOUNGER_COLLECTIONS: Final = 3
"""Between two full ones, each of some 7,000 new objects. CPython's default is 10."""


def pause_for_imports() -> None:
    """Stop the collector until `resume_after_imports`: modules stay, and going through them again and again is a tenth of a start."""
    gc.disable()


def resume_after_imports() -> None:
    """Start the collector again; it passes over what there is now."""
    gc.freeze()
    gc.enable()


class LongLived:
    """Has full collections stay short. `watch` once."""

    def watch(self) -> None:
        """Pass over what full collections leave, from now on, whenever that is much."""
        youngest, younger, _ = gc.get_threshold()
        gc.set_threshold(youngest, younger, YOUNGER_COLLECTIONS)
        gc.callbacks.append(self._on_collected)

    def freeze(self) -> None:
        """Collect what is garbage, and have later collections pass over all else that there is now."""
        gc.collect()
        gc.freeze()

    def _on_collected(self, phase: str, collection: dict[str, Any]) -> None:
        if phase == "stop" and collection["generation"] == _OLDEST and len(gc.get_objects(_OLDEST)) >= KEPT_MIN:
            gc.freeze()


_OLDEST: Final = 2
