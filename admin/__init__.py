"""The client that administers clusters which speak Kafka's protocol.

    from lowtide.admin import AdminClient, Committed, TopicPartition

    async with AdminClient("localhost:9092") as admin:
        results = await admin.delete_records({TopicPartition("flights", 0): Committed(["etl"])})

`BlockingAdminClient` has the same methods without `await`. A call about several things returns a result for each: a
value or an `AdminError`. `public` has all public names, and `client` lists the calls.
`blocking_connection` has connections for code without an event loop.

The client reaches clusters over TCP only, and knows nothing of a broker's internals.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.admin.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Imports the public names on first use: Spark's workers need only some modules of the package."""
    if not name.islower():  # Names of modules are lower case.
        public = import_module("lowtide.admin.public")
        if name in public.__all__:
            return getattr(public, name)
    raise AttributeError(f"module 'lowtide.admin' has no attribute {name!r}")
