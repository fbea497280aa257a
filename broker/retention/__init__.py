"""What goes by itself: records past their time or size, consumed ones, and those that compaction replaces.

Guards: only a leader deletes, by the rules of its topic, and every deletion explains itself in a counter and a line of
the log. Sees
`coordinator` (what groups have consumed), `partitions` and `config`. Begin with `log_retention`, then `cleaner`. `deletion_ledger` is what
went and why.
"""
