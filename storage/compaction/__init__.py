"""Compaction: the last record of each key stays, and what else may go.

Guards: a record with the last value of its key is never lost, offsets don't change, and the old files serve until the
new ones are whole. Sees `log`. Begin with `compaction`, which decides what stays; `cleanable` decides when a log is
due, `log_cleaning` puts cleaned segments in place.
"""
