"""The cluster metadata: the store, a broker's image of it, and the broker's session.

Guards: an image is an immutable value made from one revision of the store; a write compares what it was decided on and
is refused if that has changed. Sees `storage` for its files only. Begin with `store` (the port) and `image`; `embedded`
and `etcd` are the engines, `session` keeps a broker registered.
"""
