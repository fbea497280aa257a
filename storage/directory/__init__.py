"""A log directory: its logs, from the lock to the checkpoints, and what happens when its disk fails.

Guards: after an I/O error nothing more is acknowledged from the directory; files are removed only after the journal
says that their records are deleted. Sees `log`, `log_start` and `compaction`. Begin with `log_manager` and
`log_directories` (all directories), then `directory_logs` (one).
"""
