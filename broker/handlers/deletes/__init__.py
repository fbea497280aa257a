"""DeleteRecords beyond its handler: the request that waits, and the quick path of a request for one partition.

Guards: a delete is answered once, under the leadership that accepted it. Begin with `delayed_delete`.
"""
