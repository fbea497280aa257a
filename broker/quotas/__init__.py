"""How much of a broker each client may use: bytes produced and fetched, and the time of its requests (KIP-13, KIP-124, KIP-546).

Guards: a client above its quota is slowed down, never refused; where no quota is set, a request costs nothing more.
Sees: the metadata image, and the routes of `network`. Does not see: handlers, partitions, the log.
Begin with `quota_limits`: which quota is whose; then `client_quotas`: what a client has used.
"""
