"""Merges the metrics pages of several brokers: each sample gets the label `node_id`, and families stay together.

Pure. A sample with the label keeps it: it is the broker's own id. Reads only what `exposition` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lowtide.broker.metrics.exposition import PIECE_LINES, Format

NODE_ID: Final = "node_id"

_HELP: Final = b"# HELP "
_TYPE: Final = b"# TYPE "
_END: Final = b"# EOF"


class MergedPage:
    """A page that is being merged. Call `add` for each broker, then `finish`."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._families: dict[bytes, list[bytes]] = {}
        """The lines of each family, without line ends."""

    def add(self, node_id: int, pieces: Sequence[bytes]) -> Iterator[None]:
        """Adds a broker's page, in steps; each piece ends with a line."""
        label = b'%s="%d"' % (NODE_ID.encode(), node_id)
        family: list[bytes] = []
        is_new = True
        for piece in pieces:
            lines = piece.split(b"\n")
            for begin in range(0, len(lines), PIECE_LINES):
                for line in lines[begin : begin + PIECE_LINES]:
                    if line.startswith(_HELP):
                        name = line.split(b" ", 3)[2]
                        is_new = name not in self._families
                        family = self._families.setdefault(name, [])
                    if not line.startswith(b"#"):
                        if line:
                            family.append(_labelled(line, label))
                    elif is_new and line.startswith((_HELP, _TYPE)):
                        family.append(line)
                yield

    def finish(self) -> list[bytes]:
        pieces = [b"\n".join(lines) + b"\n" for lines in self._families.values()]
        return pieces if self._form is Format.TEXT else [*pieces, _END + b"\n"]


def _labelled(line: bytes, label: bytes) -> bytes:
    """Adds a label to a sample, whose name has neither braces nor spaces."""
    name, brace, rest = line.partition(b"{")
    if not brace or b" " in name:
        name, _, rest = line.partition(b" ")
        return b"%s{%s} %s" % (name, label, rest)
    if rest.startswith(b'node_id="') or b',node_id="' in rest:
        return line
    return b"%s{%s%s%s" % (name, label, b"" if rest.startswith(b"}") else b",", rest)
