"""`python -m lowtide.runtime.heavy_process`: a process that does heavy work for the broker that started it."""

from __future__ import annotations

from lowtide.runtime.processes import serve_heavy_work

if __name__ == "__main__":
    serve_heavy_work()
