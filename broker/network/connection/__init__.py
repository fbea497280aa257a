"""One client's connection: its frames, when it executes them, and its answers in order.

Guards: answers leave in the order of their requests; a view of received bytes ends with the callback that brought them;
a client that isn't logged in reaches no handler. Sees `admission` and `routing`. Begin with `connection`; then its
parts `partial_frame`, `execution` and `answers`. `connection_host` has what all connections share.
"""
