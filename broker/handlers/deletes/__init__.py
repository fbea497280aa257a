"""DeleteRecords beyond its handler: the request that waits, and the quick path of a request for one partition.

Begin at `delayed_delete.py`. The handler is `broker/handlers/delete_records.py`.
"""
