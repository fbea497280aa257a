"""Which log directories a broker has: a small file in each of them names all.

Without it an unmounted directory looks like one that never existed, and its partitions would be created again, empty,
in the others. With it the broker detects at its start that a directory is missing: a partition of the metadata that no
directory holds may be there.

The file, `lowtide-log-dirs`, is text: a line `version=0`, then for each directory its id (as in `meta.properties`) and
its absolute path, with the system's bytes. A file that can't be read is ignored and rewritten.

Source: KIP-858 has the same purpose; there the cluster's metadata record which directory a partition is in.
"""

from __future__ import annotations

from collections.abc import Mapping

from lowtide.protocol.types import TopicId, parse_topic_id, topic_id_text
from lowtide.runtime.filesystem import FileSystem

KNOWN_DIRECTORIES = "lowtide-log-dirs"

_HEAD = "version=0"


def encode_known(directories: Mapping[TopicId, str]) -> bytes:
    r"""Returns the content of the file: paths by directory id.

    >>> encode_known({bytes(15) + b"a": "/data"})
    b'version=0\nAAAAAAAAAAAAAAAAAAAAYQ /data\n'
    """
    lines = [f"{topic_id_text(directory_id)} {path}" for directory_id, path in sorted(directories.items())]
    return "\n".join([_HEAD, *lines, ""]).encode(errors="surrogateescape")


def decode_known(content: bytes) -> dict[TopicId, str]:
    """Parses the content of the file; the inverse of `encode_known`. Errors: ValueError."""
    head, *lines = content.decode(errors="surrogateescape").removesuffix("\n").split("\n")
    if head != _HEAD:
        raise ValueError(f"the first line is {head!r} instead of {_HEAD!r}")
    known = {}
    for line in lines:
        identity, _, path = line.partition(" ")
        known[parse_topic_id(identity)] = path
    return known


def read_known(filesystem: FileSystem, directory: str) -> dict[TopicId, str]:
    """Returns the directories that the file in a directory names; none if it is missing or can't be read."""
    try:
        return decode_known(filesystem.read_bytes(f"{directory}/{KNOWN_DIRECTORIES}"))
    except (OSError, ValueError):
        return {}
