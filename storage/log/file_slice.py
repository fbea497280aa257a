"""Bytes of a segment's file that are promised to a reader and read later, when its socket takes them."""

from __future__ import annotations

import msgspec

from lowtide.protocol.types import FilePosition
from lowtide.runtime.filesystem import File


class SliceToken:
    """Says whether a slice's bytes are still those that were promised. Shared by all slices of a segment since it was last cut."""

    __slots__ = ("valid",)

    def __init__(self) -> None:
        self.valid = True


class FileSlice(msgspec.Struct, gc=False):
    """Bytes of an open file, to be read later: `size` of them from `position` on, as long as `token` is valid.

    It keeps the file open, also when the segment is deleted meanwhile.
    """

    file: File
    position: FilePosition
    size: int
    token: SliceToken

    def __len__(self) -> int:
        return self.size
