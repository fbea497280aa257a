"""Identifies clients: their principals, and the logins that prove them.

Guards: a request is never handled for a principal that its connection hasn't proved; without a login that is
`ANONYMOUS`. Sees nothing else of the broker. `authorizer` decides what a principal may do. Begin with `principal`.
"""
