"""The client's side of the protocol without sockets: what every client of ours shares, whatever loop or thread carries its bytes.

Guards: an answer belongs to the oldest request that waits, nothing a peer sends is unbounded, and each step is a function of what came
before and of the time passed in. It sees `lowtide.protocol` only, so it can't touch a clock, a socket or randomness.
Begin with `connection`: requests in, bytes out; bytes in, answers out. `opening` is the first conversation (versions, SASL by `sasl`),
`versions` what a broker speaks, `retries` when to try again. The shells are `admin.connection` (asyncio), `admin.blocking_connection`
and `broker.network.peer_client`.
"""
