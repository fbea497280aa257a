"""The journal of log starts: how a delete survives a crash.

Guards: a log start that was acknowledged never falls. One file for all logs of a directory, appended to, synced, and
read at the start. Sees errors, checkpoints and the layout of a directory; no log. Begin with `journal`.
`journal_format` describes the bytes, `journal_repair` repairs a damaged file for an operator.
"""
