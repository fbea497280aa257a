"""What a log does when its folder gets another name, because it takes the place of one in another log directory (KIP-113)."""

from __future__ import annotations

from lowtide.storage.log.log_cut import CuttableLog


class MovableLog(CuttableLog):
    """A log whose folder may be renamed while it is open."""

    __slots__ = ()

    def relocate(self, directory: str) -> None:
        """The folder was renamed. No barrier, hole, swap or removal of this log is under way."""
        for segment in self._segments:
            segment.directory, segment.path = directory, f"{directory}{segment.path.removeprefix(segment.directory)}"
        for part in (self._snapshots, self._aborted, self.swaps, self._sync):
            part.relocate(directory)
        self.directory = directory

    def succeed(self, source: CuttableLog) -> None:
        """Takes over what a copy doesn't have from its source, which ends where it does: all producers, and what is committed.

        Of producers without records the source knows more than the batches tell (KAFKA-7190). Errors: OSError, where only memory has it.
        """
        assert self.log_end_offset == source.log_end_offset, (self.describe(), source.describe())
        self.producer_state, self.transactions = source.producer_state, source.transactions
        self.advance_high_watermark(source.high_watermark)
        if source.producer_state.producers:
            self._sync.note_written([self._snapshots.take(self.log_end_offset, source.producer_state)])

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is under way that has its folder's name, but for barriers."""
        return not (
            self.swaps.is_taken or self._still_removing() or any(segment.hole is not None for segment in self._segments)
        )
