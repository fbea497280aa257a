"""The data source for PySpark: topics as data frames, batch and stream, and the deletion of what a stream has consumed.

It reaches any Kafka cluster over TCP only, by `lowtide.admin` and the protocol; nothing of a broker is imported. Executors get settings
that can be pickled, and connect by themselves.
"""
