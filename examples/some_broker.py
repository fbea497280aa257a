"""Which broker an example uses: the one of its first argument, else brokers that it starts on free ports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lowtide import LowtideCluster


@contextmanager
def some_broker(brokers: int = 1, config: dict[str, str] | None = None) -> Iterator[str]:
    """The addresses for `bootstrap.servers`. `config` is for brokers that are started here."""
    if len(sys.argv) > 1:
        yield sys.argv[1]
        return
    with LowtideCluster(brokers=brokers, config=config) as cluster:
        yield cluster.bootstrap
