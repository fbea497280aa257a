"""Keeps long-lived objects out of Python's garbage collections.

A full collection visits every container at once while all threads stand still: ten thousand partitions have some thirty
containers each, thirty thousand consumer groups nine. None of these form cycles; reference counting frees them. So
after a full collection that has visited many objects, all remaining ones are frozen. Garbage among them was collected
just before; only an object that becomes part of a cycle later is never freed.

Full collections are made frequent, so that each visits few objects. CPython makes none while less than a quarter of the
objects is new. Works on the whole process, so it is for a process that is only a broker.
"""

from __future__ import annotations

import gc
from typing import Any, Final

KEPT_MIN: Final = 10_000
"""Objects left by a full collection above which they are frozen: one or two milliseconds of visiting."""

YOUNGER_COLLECTIONS: Final = 3
"""Younger collections between two full ones, each of some 7,000 new objects. CPython's default is 10."""


def pause_for_imports() -> None:
    """Stops the collector until `resume_after_imports`: visiting modules again and again is a tenth of a start."""
    gc.disable()


def resume_after_imports() -> None:
    """Restarts the collector, which skips all present objects."""
    gc.freeze()
    gc.enable()


class LongLived:
    """Keeps full collections short. `watch` once."""

    def watch(self) -> None:
        """Freezes the objects that survive full collections, from now on, if there are many."""
        youngest, younger, _ = gc.get_threshold()
        gc.set_threshold(youngest, younger, YOUNGER_COLLECTIONS)
        gc.callbacks.append(self._on_collected)

    def freeze(self) -> None:
        """Collects garbage and freezes everything else."""
        gc.collect()
        gc.freeze()

    def _on_collected(self, phase: str, collection: dict[str, Any]) -> None:
        if phase == "stop" and collection["generation"] == _OLDEST and len(gc.get_objects(_OLDEST)) >= KEPT_MIN:
            gc.freeze()


_OLDEST: Final = 2
