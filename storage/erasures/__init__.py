"""Finds single records of a log: by key, header or offset, so that they can be erased.

Guards: a search misses no record that is in a file, and names none that was cut meanwhile. Selectors are in no log
line, error or file. Sees `log` and `compaction`. Begin with `log_search`, then `record_search`, which decides what
matches.
"""
