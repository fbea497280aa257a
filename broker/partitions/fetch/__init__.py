"""Fetch: reading, waiting for more, and sessions.

Guards: within one answer the offsets of a partition are from one moment, a fetch that waits is answered once, and a
session leaves out only what its reader is known to have. Sees the replica manager and `replication`; no handler. Begin
with `fetch_reader`, then `fetch_handler`. `usual_fetch` is the short form of what consumers ask most.
"""
