"""Topics as Iceberg tables: Spark reads, writes Parquet, and the log is trimmed after the commit."""
