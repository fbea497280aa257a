"""A PySpark stream that deletes what it has read: a topic as a stage between programs.

    python examples/spark_trim.py [HOST:PORT]

It needs `pip install '.[pipeline]'` in Lowtide's folder, and Java 17 or newer.

The stream reads orders, adds them up by customer, writes the sums as Parquet, and with `trim=commit` deletes a
micro-batch once Spark's checkpoint has it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from some_broker import some_broker

ORDERS = 100


def sums(spark: SparkSession, address: str, topic: str, folder: str) -> None:
    """One run over the current records."""
    orders = (
        spark.readStream.format("lowtide")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("trim", "commit")
        .load()
        .select(f.from_json(f.col("value").cast("string"), "customer string, amount int").alias("order"))
        .select("order.*")
    )

    def write(rows, batch: int) -> None:
        # A repeated micro-batch overwrites its own folder.
        rows.groupBy("customer").agg(f.sum("amount").alias("amount")).write.mode("overwrite").parquet(
            f"{folder}/sums/batch={batch}"
        )

    query = (
        orders.writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def fill(address: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(ORDERS):
        producer.produce(topic, value=json.dumps({"customer": f"customer {number % 3}", "amount": number}))
    assert producer.flush(30) == 0


def main() -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with some_broker() as address, tempfile.TemporaryDirectory() as folder:
        fill(address, topic)
        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        sums(spark, address, topic, folder)
        for row in (
            spark.read.parquet(f"{folder}/sums")
            .groupBy("customer")
            .agg(f.sum("amount").alias("amount"))
            .orderBy("customer")
            .collect()
        ):
            print(row.customer, row.amount)
        spark.stop()

        consumer = Consumer({"bootstrap.servers": address, "group.id": "looks"})
        start, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30, cached=False)
        print(f"{end - start} of {ORDERS} orders are left in the topic")
        consumer.close()


if __name__ == "__main__":
    main()
