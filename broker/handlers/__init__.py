"""One module for each API: from its request to its response. `handler` returns what the dispatcher registers.

Guards: the docstring of each module lists what it returns, with versions and error codes, and every row is answered.
Sees every room but `lifecycle`. A handler uses no other handler's state, and keeps nothing of a request on itself.
Begin with `registry`, which finds them all.
"""
