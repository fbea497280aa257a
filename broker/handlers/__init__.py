"""One module for each API: from its request to its answer. `handler(broker)` gives what the dispatcher registers.

Guards: what a handler answers, with its versions and error codes, is at the top of its file, and every row is answered.
Sees every room but
`lifecycle`; no handler sees another one's state. A handler keeps nothing of a request on itself. Begin with `registry`,
which lists them
all.
"""
