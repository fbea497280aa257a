"""Erases single records of a log: finds them by key, header or offset, and makes them unreadable on this replica.

Guards: a search misses no record that is in a file, and an erased record is never served. Sees `log` and `compaction`.
Begin with `log_search`, which finds records, and `record_search`, which decides what matches.
"""
