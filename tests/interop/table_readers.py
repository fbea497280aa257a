"""Other readers of Iceberg tables: DuckDB with its own reader, and Spark with Iceberg's runtime.

Both are programs of their own, which know nothing of Lowtide. They return the rows as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CACHE = Path(__file__).resolve().parents[2] / "build"
SPARK_VERSION = "4.1.4"
"""The newest Spark that Iceberg's runtime supports; the pipeline runs on a newer one."""

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
LIMIT_S = 900

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""

PROGRAM = """
import base64, datetime, json, sys
from pyspark.sql import SparkSession

jars, database, warehouse, catalog, name = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
settings = {
    "": "org.apache.iceberg.spark.SparkCatalog", ".type": "jdbc", ".uri": "jdbc:sqlite:" + database,
    ".warehouse": warehouse, ".jdbc.schema-version": "V1",
}
for key, value in settings.items():
    builder = builder.config(f"spark.sql.catalog.{catalog}{key}", value)
builder = builder.config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()

def plain(value):
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, datetime.datetime):
        return round(value.replace(tzinfo=datetime.timezone.utc).timestamp() * 1000)
    return str(value)

rows = [row.asDict(recursive=True) for row in spark.table(f"{catalog}.{name}").collect()]
print("ROWS " + json.dumps(rows, default=plain))
"""


def jars(name: str, *artifacts: str, with_others: bool = False) -> list[Path]:
    """Returns jars, `group:artifact:version` with a classifier behind it; Maven downloads missing ones.

    With `with_others`, also those that they need.
    """
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            building = Path(scratch) / "jars"
            building.mkdir()
            if with_others:
                _bring_with_others(building, artifacts)
            else:
                for each in artifacts:
                    _maven("dependency:copy", f"-Dartifact={each}", f"-DoutputDirectory={building / 'libs'}")
            building.rename(folder)
    return sorted((folder / "libs").glob("*.jar"))


def _bring_with_others(building: Path, artifacts: tuple[str, ...]) -> None:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{''.join(f'<classifier>{one}</classifier>' for one in classifier)}</dependency>"
        for group, artifact, version, *classifier in (each.split(":") for each in artifacts)
    )
    (building / "pom.xml").write_text(POM.format(dependencies=dependencies))
    _maven("-f", str(building / "pom.xml"), "dependency:copy-dependencies", "-DoutputDirectory=libs")


def _maven(*words: str) -> None:
    done = subprocess.run(["mvn", "-q", "-B", *words], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"Maven could not do {words}: {done.stdout[-1500:]}{done.stderr[-500:]}"


def jars_of_iceberg() -> list[Path]:
    """Returns the jars of Iceberg's runtime and of SQLite."""
    return jars("iceberg-readers", ICEBERG, SQLITE)


def older_spark() -> Path:
    """Returns a folder with the PySpark that Iceberg's runtime supports; pip installs it if it is missing."""
    folder = CACHE / f"pyspark-{SPARK_VERSION}"
    if not folder.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            building = Path(name) / "packages"
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(building)]
            subprocess.run([*command, f"pyspark=={SPARK_VERSION}"], check=True, timeout=LIMIT_S)
            building.rename(folder)
    return folder


def rows_of_spark(database: Path, warehouse: str, catalog: str, table: str) -> list[dict[str, Any]]:
    """Returns the rows that Spark reads with Iceberg's runtime: bytes in base64, times in milliseconds."""
    jars = ",".join(map(str, jars_of_iceberg()))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, jars, str(database), warehouse, catalog, table],
        env={**os.environ, "PYTHONPATH": str(older_spark()), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    line = next((each for each in done.stdout.splitlines() if each.startswith("ROWS ")), None)
    assert line is not None, done.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(line.removeprefix("ROWS "))
    return rows


def rows_of_duckdb(metadata_location: str) -> list[dict[str, Any]]:
    """Returns the rows that DuckDB's own reader of Iceberg finds."""
    import duckdb

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute("SET TimeZone = 'UTC'")
    for name in ("avro", "iceberg"):
        found = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert found is not None
        assert found.submodule_search_locations
        (path,) = Path(found.submodule_search_locations[0]).rglob("*.duckdb_extension")
        connection.load_extension(str(path))
    rows = connection.execute("SELECT * FROM iceberg_scan(?)", [metadata_location])
    names = [each[0] for each in rows.description]
    return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
