"""A log directory: the logs in it, from the lock to the checkpoints, and what becomes of it when its disk fails.

Guards: after an I/O error nothing more is acknowledged from the directory; files go only after the journal says that
their records have gone. Sees `log`, `log_start` and `compaction`. Begin with `log_manager` and `log_directories` (all
of them), then
`directory_logs` (one).
"""
