"""Found by Spark itself: it asks every module named `pyspark_*` for a format.

So `format("lowtide")` is known wherever Lowtide is installed.
Only Spark has a reason to import this. What is missing (PyArrow, for one) must not keep Spark from its other formats.
"""

try:
    from lowtide.pipeline.data_source import LowtideDataSource as DefaultSource  # noqa: F401
except ImportError:
    pass
