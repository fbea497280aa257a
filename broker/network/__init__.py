"""Bytes in, bytes out: sockets, frames, the order of answers, and what connections may cost.

Guards: a view of received bytes ends with the callback that brought them; answers leave in the order of their requests;
memory, connections and rows of requests are bounded. Sees `config` and the modules at the top of `broker`; it has an
API as its route only, never a partition. Begin with `connection`, then `dispatcher`. `large_requests` is the way of
requests with very many rows, `peer_client` asks other brokers.
"""
