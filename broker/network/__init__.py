"""Bytes in, bytes out: sockets, frames, the order of answers, and what connections may cost.

Guards: no connection blocks the event loop for long, and memory, connections and rows of requests are bounded. Sees
`config` and the modules at the top of `broker`, never a partition. Begin with `connection`, then `routing`.
`peer_client` asks other brokers.
"""
