"""What the cluster agrees on: the store, the image of it that a broker acts on, and the broker's session with it.

Guards: an image is a value that never changes, made from one revision of the store; a write says what it was decided
on, and is refused where that has changed. Sees `storage` for its files only. Begin with `store` (the port) and `image`;
`embedded` and `etcd` are the engines,
`session` keeps a broker registered.
"""
