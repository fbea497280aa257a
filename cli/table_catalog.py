"""The options that name an Iceberg table, and the table. PyIceberg is imported on use: it is an extra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.outcome import CommandError, misused

if TYPE_CHECKING:
    from pyiceberg.table import Table

Catalog = Annotated[
    str,
    typer.Option(
        "--catalog",
        metavar="URI|NAME",
        help="sqlite:///FILE, http://…, thrift://…, or a name in PyIceberg's configuration",
    ),
]
CatalogProperties = Annotated[
    list[str] | None,
    typer.Option("--catalog-property", metavar="KEY=VALUE", help="as PyIceberg names them; may be repeated"),
]
ExistingTable = Annotated[str, typer.Option("--table", metavar="NAMESPACE.NAME", help="an Iceberg table")]


@contextmanager
def table_errors() -> Iterator[None]:
    """Turns the errors of options and of missing packages into those of a command."""
    from lowtide.pipeline.options import OptionError  # noqa: PLC0415 - slow

    try:
        yield
    except OptionError as error:
        raise misused(f"{error}.") from error
    except ImportError as error:
        raise CommandError(f"{error}.") from error


def opened_tables(catalog: str, properties: Sequence[str], name: str) -> list[Table]:
    """Opens a table, and its table of dead letters if there is one. Errors: CommandError."""
    with table_errors():
        from lowtide.pipeline.table import options  # noqa: PLC0415 - an extra

        opened = options.load_catalog(options.catalog_settings(catalog, properties))
        options.check_table_name(name)
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra

        try:
            tables = [opened.load_table(name)]
        except NoSuchTableError:
            raise misused(f"the catalog has no table {name}.") from None
        except Exception as error:
            raise CommandError(f"table {name} can't be read: {error}.") from error
        try:
            return [*tables, opened.load_table(name + options.DEAD_SUFFIX)]
        except NoSuchTableError:
            return tables
