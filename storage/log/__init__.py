"""One log: its segments, indexes, producers and transactions; appending, reading, cutting, loading.

Guards: log start <= high watermark <= log end, and a batch is read as it was written. Plain functions on the FileSystem
port. Sees nothing else of `storage` but errors and checkpoints: where a log starts after a crash, the journal in
`log_start` says. Begin with `log`, then
`segment`. `loader` brings a log back after a start, `offsets` says what the offsets mean.
"""
