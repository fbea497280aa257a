"""One module per API, each with its request and response declared once for all versions (`lowtide.protocol.schema`)."""
