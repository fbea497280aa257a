"""Who a client is: its principal, and how it is known.

Guards: a request is never handled for a principal that its connection has not shown itself to be; without a login that
is `ANONYMOUS`. Sees nothing else of the broker; what a principal may do is the business of `authorizer`. Begin with
`principal`.
"""
