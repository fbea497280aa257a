"""The job that `test_kills.py` kills: a topic into a Parquet table, micro-batch by micro-batch, with trimming."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from lowtide.pipeline import register


def writer_of(
    spark: SparkSession, address: str, topic: str, folder: str, trim: str, rows_per_batch: str
) -> DataStreamWriter:
    """Returns the query; it lacks its trigger."""
    reader = spark.readStream.format("lowtide").option("kafka.bootstrap.servers", address).option("subscribe", topic)
    reader = (
        reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows_per_batch).option("trim", trim)
    )
    rows = reader.load().selectExpr("cast(value as string) as value", "partition", "offset")
    return (
        rows.writeStream.format("parquet")
        .option("path", f"{folder}/table")
        .option("checkpointLocation", f"{folder}/checkpoint")
    )


def main(address: str, topic: str, folder: str, trim: str, rows_per_batch: str) -> None:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.log.level": "WARN",
        "spark.python.authenticate.socketTimeout": "600s",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executor.heartbeatInterval": "60s",
        "spark.network.timeout": "600s",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    writer = writer_of(spark, address, topic, folder, trim, rows_per_batch)
    writer.trigger(processingTime="0 seconds").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:6])
