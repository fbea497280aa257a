"""Automatic deletion: by retention time or size, of consumed records, and by compaction.

Guards: only a leader deletes, by the rules of its topic, and every deletion is counted and logged with its reason.
Imports `coordinator` (what groups have consumed), `partitions` and `config`. Begin with `log_retention`, then
`cleaner`. `deletion_ledger` records what was deleted and why.
"""
