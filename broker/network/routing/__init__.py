"""From an API key and version to the code that reads, answers and writes it.

Guards: what is advertised is what is served; a request of many rows is cut before it is executed. Sees nothing of
connections. Begin with `routes`, which has all that a handler declares, then `dispatcher`. `large_requests` executes
requests of very many rows, as `request_parts` cuts them.
"""
