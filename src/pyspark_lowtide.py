"""Registers `format("lowtide")` in Spark, which imports every module named `pyspark_*`.

A missing package, such as PyArrow, must not disable Spark's other formats.
"""

try:
    from lowtide.pipeline.data_source import LowtideDataSource as DefaultSource  # noqa: F401
except ImportError:
    pass
