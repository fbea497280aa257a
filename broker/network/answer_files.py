"""The files that answers hold open for clients that don't read them: given to others where a broker may open no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowtide.broker.network.answer_memory import AnswerMemory
    from lowtide.storage.log.segments.open_files import OpenFiles


class AnswerFiles:
    """Has connections closed whose answers keep others from reading. Used from the event loop only."""

    def __init__(self, files: OpenFiles, answers: AnswerMemory) -> None:
        self._files = files
        self._answers = answers

    def on_tick(self) -> None:
        """To be called about once a second.

        A read that failed meanwhile is repeated by its client, and finds room then.
        """
        if self._files.take_lacking():
            self._answers.free_files(self._files.held_max)
