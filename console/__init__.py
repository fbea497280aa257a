"""The web console: a site that shows a cluster, using only the client `lowtide.admin`.

Guards: a GET, a page of another site, or a console without `write` changes nothing. Visitors see and do what the
cluster allows the user as whom they logged in. Data from a cluster are never markup. All waits, lists and reads are
limited. Sees `admin`, `protocol` and `runtime`. Begin with `site`, then `views` and `sessions`.
"""
