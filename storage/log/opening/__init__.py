"""Opening a log: from what a stop, a crash or a power cut left in its folder to a log that may be served.

Guards: what was synced stays; the log ends before the first byte that isn't a whole, sound batch; a log start is never
lowered. Each step may be repeated after a crash. Sees all of `storage/log/`.
Begin with `loader`, whose steps are in `log_folder`.
"""
