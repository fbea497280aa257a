"""The client side of the protocol without sockets: what all clients share, with asyncio or threads.

Guards: a response belongs to the oldest waiting request, nothing that a peer sends is unbounded, and each step is a
function of earlier steps and the time passed in. Imports `lowtide.protocol` only: no clock, socket or randomness.

Begin with `connection`: requests in, bytes out; bytes in, responses out. `opening` negotiates versions and SASL
(`sasl`), `versions` has the versions of a broker, `retries` decides when to retry. The shells are `admin.connection`
(asyncio), `admin.blocking_connection` and `broker.network.peer_client`.
"""
