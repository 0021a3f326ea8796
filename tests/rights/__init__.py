"""A generator of rules, names and requests over every way into the server, against a model of who may do what."""
