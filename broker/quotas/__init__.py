"""Limits what each client uses of a broker: bytes produced and fetched, and request time (KIP-13, KIP-124, KIP-546).

Guards: a client above its quota is slowed down, never refused. Without quotas, requests cost nothing more. Sees the
metadata image and the routes of `network`, but not handlers, partitions or the log. Begin with `quota_limits`, which
finds a client's quotas, then `client_quotas`, which counts what it used.
"""
