"""What a broker tells of itself to Prometheus: every metric, declared once, and read from the broker's own numbers at a scrape.

Guards: a request pays for whole numbers and one step of a histogram, nothing else; a scrape takes turns with other work, and its series are
bounded. Begin with `registry`, then `collector`. The files by subject read one part of the broker each; `exposition` writes the text.
"""
