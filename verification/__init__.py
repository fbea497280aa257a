"""A checker of deletes, for any cluster that speaks Kafka's protocol: `lowtide verify-deletes`.

Guards: an anomaly is reported only if the answers of the cluster contradict each other or what it acknowledged; an
unknown outcome is never counted as a promise. Sees `admin`, `protocol` and `runtime`. Begin with `judge`, which decides
over the `operations` of one partition; `workload` and `rounds` make them, `requests` sends them, `report` prints the
result.
"""
