"""Who may ask what: a guard for each API that needs one.

It stands before the handler, and only where something is forbidden. Guards: what a client may not do is refused before
the handler sees it, with the error that Kafka answers, row by row. Sees `coordinator`,
`partitions` and `network`; no handler. Begin with `guard`; each handler names the
function that guards it.
"""
