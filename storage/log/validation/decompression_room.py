"""Memory for decompressing the batches of one request, one after the other, and its remaining size."""

from __future__ import annotations

from mmap import mmap
from typing import TYPE_CHECKING, Final

from lowtide.protocol.compression import Compression, DecompressedTooLargeError, decompress_into
from lowtide.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from lowtide.protocol.compression import Buffer

RELEASE_BYTES: Final = 4 << 20
"""Pages released at a time: about a tenth of a millisecond, during which the interpreter's lock is held."""

_DONTNEED: Final = 4
"""Linux's MADV_DONTNEED: the pages of a private mapping are zero again when they are next used."""


class RoomUsedUpError(ProtocolError):
    """The request's batches have used up the room for decompression. This one may pass in a request of its own."""


class DecompressionRoom:
    """The room for the batches of one request. Its content is valid until the next batch is decompressed."""

    __slots__ = ("_memory", "left_bytes", "used_bytes")

    def __init__(self, memory: memoryview, left_bytes: int) -> None:
        """`memory` has as many bytes as the request may use; `left_bytes` of them are left."""
        self._memory = memory
        self.left_bytes = left_bytes
        self.used_bytes = 0

    def decompress(self, codec: Compression, data: Buffer, max_bytes: int) -> memoryview:
        """Decompresses a batch's records, at most `max_bytes` (inclusive).

        Errors: DecompressedTooLargeError for a batch that is too large by itself, RoomUsedUpError; CompressionError.
        """
        most = min(max_bytes, len(self._memory))
        self.used_bytes = min(most, self.left_bytes)
        try:
            content = decompress_into(codec, data, self._memory[: self.used_bytes])
        except DecompressedTooLargeError:
            self.left_bytes = 0
            if self.used_bytes == most:
                raise
            message = f"the batches of one request may have {len(self._memory)} bytes together when decompressed"
            raise RoomUsedUpError(message) from None
        self.used_bytes = len(content)
        self.left_bytes -= len(content)
        return content


def release_pages(memory: mmap, size: int) -> None:
    """Returns the pages of the first `size` bytes to the system, if possible. Their content is lost."""
    if hasattr(memory, "madvise"):
        for start in range(0, size, RELEASE_BYTES):
            memory.madvise(_DONTNEED, start, min(RELEASE_BYTES, len(memory) - start))
