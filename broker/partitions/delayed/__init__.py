"""Requests that wait: what each waits for, and how it is answered when that has come.

Guards: a request that waits is answered once, by an event or at its deadline, and is checked again before it is. Sees
the partitions; the order of events is decided by `replication/purgatory`. Begin with `waiting`, then `produce`. Fetch
and DeleteRecords wait in their handlers.
"""
