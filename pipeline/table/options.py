"""The options of a job that writes a topic into a table, and the catalog that it uses. All can be pickled."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.options import OptionError
from lowtide.pipeline.table.schemas.decoding import SchemaSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

FILE_BYTES: Final = 128 << 20
"""The size of a data file, unless the data are fewer."""

ROWS_PER_ROUND: Final = 5_000_000
"""How many offsets one commit may span. A job that dies loses the work of one round."""

AUTO: Final = "auto"
KINDS: Final = (AUTO, "json", "avro", "protobuf", "raw")
PARTITIONINGS: Final = ("none", "hour", "day", "month")
STARTS: Final = ("earliest", "table")
ON_DATA_LOSS: Final = ("fail", "skip")

DEAD_SUFFIX: Final = "_dead_letters"
"""The table of dead letters has the name of the table with this suffix."""

CATALOG_NAME: Final = "default"
"""The name of a catalog that is given by its URI. A SQL catalog keeps its tables by this name."""

_SQLITE: Final = "sqlite:///"
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Says what one job writes where."""

    client: ClientSettings
    topic: str
    table: str
    """`namespace.name`"""

    schema: SchemaSettings = field(default_factory=lambda: SchemaSettings(kind=AUTO))
    partition_by: str = "none"
    """Of a new table; an existing one keeps its partitioning."""

    start_at: str = "earliest"
    """`table`: a table without progress is continued after its highest offsets."""

    on_data_loss: str = "fail"
    rows_per_round_max: int = ROWS_PER_ROUND
    file_bytes: int = FILE_BYTES

    @property
    def dead_table(self) -> str:
        """The name of the table of dead letters."""
        return self.table + DEAD_SUFFIX

    @property
    def skips_lost(self) -> bool:
        """Whether the job goes on after records that were deleted before it read them."""
        return self.on_data_loss == "skip"


def check_table_name(name: str) -> str:
    """Returns the name of a table. Errors: OptionError, if it has no namespace."""
    if not all(part.strip() == part and part for part in name.split(".")) or "." not in name:
        raise OptionError(f"the table {name!r} must be named with its namespace, such as db.flights")
    return name


# ---------------------------------------------------------------------- the catalog
@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """A catalog of PyIceberg."""

    name: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def catalog_settings(given: str, properties: Iterable[str] = ()) -> CatalogSettings:
    """Reads a catalog's URI, or its name in PyIceberg's configuration, and properties `KEY=VALUE`.

    A SQLite catalog without a warehouse has it in the folder of its file. Errors: OptionError.
    """
    found: dict[str, str] = {}
    for text in properties:
        key, is_there, value = text.partition("=")
        if not is_there or not key:
            raise OptionError(f"the property {text!r} of the catalog must be KEY=VALUE")
        found[key] = value
    if not given:
        raise OptionError("the catalog is empty: give its URI or its name")
    if _SCHEME.match(given) is None:
        return CatalogSettings(name=given, properties=tuple(sorted(found.items())))
    found["uri"] = given
    if given.startswith(_SQLITE) and "warehouse" not in found:
        folder = PurePosixPath(given[len(_SQLITE) :]).parent
        found["warehouse"] = f"{'file://' if folder.is_absolute() else ''}{folder}/warehouse"
    return CatalogSettings(name=CATALOG_NAME, properties=tuple(sorted(found.items())))


def load_catalog(settings: CatalogSettings) -> Catalog:
    """Opens a catalog. Errors: OptionError, which names the catalog."""
    from pyiceberg import catalog  # noqa: PLC0415 - an extra

    try:
        return catalog.load_catalog(settings.name, **dict(settings.properties))
    except Exception as error:
        raise OptionError(f"the catalog {_shown(settings)} can't be opened: {_sentence(error)}") from error


def _shown(settings: CatalogSettings) -> str:
    """Returns the catalog's URI without its password; its name if it has no URI."""
    uri = dict(settings.properties).get("uri", settings.name)
    return re.sub(r"(?<=//)[^/@]*@", "", uri)


def _sentence(error: Any) -> str:
    """Returns the first line of an error."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
