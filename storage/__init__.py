"""Logs on disk: `log` (one of them), `log_start` (what was deleted), `compaction`, `directory` (all of a disk).

Guards: what was appended is read back as it was, what was deleted stays deleted, and an I/O error takes its directory
offline. Plain functions, never `async`: files are touched through the FileSystem port, and what must be synced is
handed out as barriers. Sees `protocol` and `runtime`. Begin with `log`, then `log_start`.
"""
