"""Reports for operators beyond Kafka's protocol: segments, history, disks, and the event loop.

Guards: it costs requests a few integers, and has bounded memory. Rows are built in slices on request. It makes no
decisions or changes. Begin with `described_deletes`, then `history`. The handlers of Lowtide's own requests use it.
"""
