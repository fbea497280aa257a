"""Clusters that share an etcd: no cluster's prefix may be inside another's.

A prefix is a path of folders. A cluster exists where there is a `cluster_id`, which is a text; a topic, group or user
of that name has a JSON object.

Guards: if two nested clusters start at the same time, one of them succeeds. The inner one compares that none is around
it in the transaction that creates its id. The outer one creates its id, then looks for one inside, and gives the id
back if there is one.
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
    """Returns the prefixes of possible clusters around this one, shortest first.

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
    """Returns the prefix of another cluster whose keys would include this one's; None if there is no such cluster.

    Without permission to read other prefixes it returns None too. Errors: UnavailableError.
    """
    candidates = prefixes_around(prefix)
    if not candidates:
        return None
    try:
        result = await store.transact([], [Get(each + keys.CLUSTER_ID) for each in candidates])
    except AccessDeniedError:
        return None  # The etcd user may see its own prefix only.
    return next((each for each, pair in zip(candidates, result.gets, strict=True) if pair is not None), None)


async def nesting(store: MetadataStore, prefix: bytes, values: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Returns a sentence about another cluster inside or around this one's prefix, or None.

    Errors: UnavailableError.
    """
    inner = prefix_inside(prefix, values)
    if inner is not None:
        return around(prefix, inner)
    outer = await prefix_around(store, prefix)
    return None if outer is None else inside(prefix, outer)


def inside(prefix: bytes, outer: bytes) -> str:
    """Returns the sentence for a prefix inside another cluster's."""
    return (
        f"the prefix {prefix.decode()} in etcd lies inside {outer.decode()}, which another cluster has; "
        "choose one beside it"
    )


def around(prefix: bytes, inner: bytes) -> str:
    """Returns the sentence for a prefix with another cluster inside."""
    return f"the prefix {prefix.decode()} in etcd has another cluster inside, at {inner.decode()}; choose one beside it"
