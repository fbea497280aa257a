"""Which segments of a log may be deleted, and why the others stay.

Guards: nothing at or above the high watermark goes; whole segments only, oldest first. Decides from segments, offsets,
configuration and time; `broker/retention/` carries it out. Sees `segments`, for the age of one.
Begin with `retention_plan`; `retention_explain` says why a segment stays.
"""
