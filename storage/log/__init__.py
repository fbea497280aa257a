"""One log: one replica of a partition on disk, in Apache Kafka's formats.

Guards: log start <= high watermark <= log end, and a batch is read as it was written. Plain functions on the FileSystem
port. Sees nothing else of `storage` but errors and checkpoints: where a log starts after a crash, the journal in
`log_start` says. Begin with `log`; its rooms are `segments`, `producers`, `validation`, `retention` and `opening`.
"""
