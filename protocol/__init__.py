"""The wire protocol: bytes to values and back, nothing else."""
