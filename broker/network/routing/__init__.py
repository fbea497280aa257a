"""Maps an API key and version to the code that reads, handles and answers a request.

Guards: the advertised versions are the served ones; a request with many rows is cut before it is executed. Knows
nothing of connections. Begin with `routes`, which has everything that a handler declares, then `dispatcher`.
`large_requests` executes requests with many rows, cut by `request_parts`.
"""
