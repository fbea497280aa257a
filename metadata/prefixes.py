"""Clusters that share an etcd: the keys of one must not lie among those of another.

A prefix is an address of folders, so one lies inside another where it begins with it. Where there is a cluster is shown
by its
`cluster_id`, a text; a topic, group or user of that name has a JSON object.

Guards: of two clusters that begin at the same time, one inside the other, one goes on. The inner one compares that
there is none around it in the transaction that makes its id; the outer one makes its id first, then looks for one
inside, and gives the id back if there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.metadata import keys
from lowtide.metadata.store import AccessDeniedError, Get

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.metadata.store import MetadataStore

_INSIDE: Final = b"/" + keys.CLUSTER_ID


def prefixes_around(prefix: bytes) -> list[bytes]:
    """Returns the prefixes that clusters around this one would have, the shortest first.

    >>> prefixes_around(b"/lowtide/west/1/")
    [b'/lowtide/', b'/lowtide/west/']
    """
    parts = prefix.strip(b"/").split(b"/")
    return [b"/%s/" % b"/".join(parts[:count]) for count in range(1, len(parts))]


def prefix_inside(prefix: bytes, values: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Returns the prefix of a cluster inside this one, or None.

    `values` are keys without this prefix, with their values.
    """
    for key, value in values:
        if key.endswith(_INSIDE) and not value.startswith(b"{"):
            return prefix + key.removesuffix(keys.CLUSTER_ID)
    return None


async def prefix_around(store: MetadataStore, prefix: bytes) -> bytes | None:
    """The prefix of a cluster that this one lies in, None if there is none, or where keys of others mustn't be read.

    Errors: UnavailableError.
    """
    candidates = prefixes_around(prefix)
    if not candidates:
        return None
    try:
        result = await store.transact([], [Get(each + keys.CLUSTER_ID) for each in candidates])
    except AccessDeniedError:
        return None  # A user of etcd that may see its own prefix only.
    return next((each for each, pair in zip(candidates, result.gets, strict=True) if pair is not None), None)


async def nesting(store: MetadataStore, prefix: bytes, values: Iterable[tuple[bytes, bytes]]) -> str | None:
    """How this cluster's prefix and another one's lie in each other, in a sentence; None where they don't.

    Errors: UnavailableError.
    """
    inner = prefix_inside(prefix, values)
    if inner is not None:
        return around(prefix, inner)
    outer = await prefix_around(store, prefix)
    return None if outer is None else inside(prefix, outer)


def inside(prefix: bytes, outer: bytes) -> str:
    """That a prefix lies inside another cluster's."""
    return f"the prefix {prefix.decode()} in etcd lies inside {outer.decode()}, which another cluster has; choose one beside it"


def around(prefix: bytes, inner: bytes) -> str:
    """That a prefix has another cluster's inside."""
    return f"the prefix {prefix.decode()} in etcd has another cluster inside, at {inner.decode()}; choose one beside it"
