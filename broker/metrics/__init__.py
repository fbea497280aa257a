"""The metrics of a broker for Prometheus: each is declared once, and read at a scrape.

Guards: a request only updates integers and one histogram bucket; a scrape takes turns with other work, and its series
are bounded. Begin with `registry`, then `collector`. Each module reads one part of the broker; `exposition` writes the
text.
"""
