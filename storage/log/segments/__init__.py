"""The segments of a log: `.log` files with whole record batches, and their indexes.

Guards: a batch is found where its offset says and read as it was written; a file stays open while a reader holds it.
Knows no log start, high watermark or producer: which offsets may be read is the log's business.
Sees errors of storage, `protocol` and `runtime`. Begin with `segment`, then `segment_list`.
"""
