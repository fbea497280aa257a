"""New tables."""

from __future__ import annotations

import pytest

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.table.evolving import open_dead_table, open_table
from lowtide.pipeline.table.options import TableOptions

METRICS = "write.metadata.metrics.column."


@pytest.mark.parametrize("kind", ["raw", "json", "dead letters"])
def test_properties_of_new_tables_name_columns_that_they_have(catalog, kind: str) -> None:
    """Iceberg's own code refuses others, and with it each REST catalog in Java."""
    settings = ClientSettings.of({"bootstrap.servers": "127.0.0.1:1"})
    options = TableOptions(client=settings, topic="numbers", table="db.numbers")
    table = open_dead_table(catalog, options) if kind == "dead letters" else open_table(catalog, options, kind)
    named = [key.removeprefix(METRICS) for key in table.properties if key.startswith(METRICS)]
    assert named
    assert all(table.schema().find_field(name) for name in named)
