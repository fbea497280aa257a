r"""Computes delays by carrier and hour from the topic `flights`, and deletes the flights that it has consumed.

    spark-submit delays_by_carrier.py --bootstrap-server 127.0.0.1:9092 --output /data/delays \\
        --checkpoint /data/delays.checkpoint

A row is written when its hour is over: when the newest flight seen is a day ahead of it. Stop it at any moment, in any
way, and start it again with the same checkpoint: it continues where it was. The Parquet table has each row once; the
topic may have rows of the last micro-batch twice.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

FLIGHT = "carrier string, dep_delay double, time_hour timestamp"


def read_flights(spark: SparkSession, servers: str, trim: str) -> DataFrame:
    """The flights as a stream.

    With `trim=eager` a micro-batch is deleted from the broker as soon as it is committed.
    """
    records = (
        spark.readStream.format("lowtide")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("trim", trim)
        .load()
    )
    return records.select(f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")).select("flight.*")


def delays(flights: DataFrame) -> DataFrame:
    """One row for each carrier and hour."""
    return (
        flights.withWatermark("time_hour", "1 day")
        .groupBy("carrier", f.window("time_hour", "1 hour"))
        .agg(
            f.count("*").alias("flights"),
            f.sum(f.col("dep_delay").isNull().cast("int")).alias("cancelled"),
            f.avg("dep_delay").alias("mean_delay"),
        )
        .select("carrier", f.col("window.start").alias("hour"), "flights", "cancelled", "mean_delay")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT")
    parser.add_argument("--output", required=True, help="folder of the Parquet table")
    parser.add_argument("--checkpoint", required=True, help="folder of Spark's checkpoint")
    parser.add_argument("--trim", choices=("off", "commit", "eager"), default="eager")
    parser.add_argument("--once", action="store_true", help="end when all records that exist now are done")
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("delays by carrier").config("spark.sql.session.timeZone", "UTC").getOrCreate()

    def write(rows: DataFrame, batch: int) -> None:
        rows = rows.persist()
        # A repeated micro-batch overwrites its own folder: each row is in the table once.
        rows.write.mode("overwrite").parquet(f"{arguments.output}/batch={batch}")
        message = rows.select(f.col("carrier").alias("key"), f.to_json(f.struct("*")).alias("value"))
        to_topic = (
            message.write.format("lowtide").mode("append").option("kafka.bootstrap.servers", arguments.bootstrap_server)
        )
        to_topic.option("topic", "delays").save()
        rows.unpersist()

    query = (
        delays(read_flights(spark, arguments.bootstrap_server, arguments.trim))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(**({"availableNow": True} if arguments.once else {"processingTime": "0 seconds"}))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
