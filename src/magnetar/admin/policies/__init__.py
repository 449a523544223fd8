"""Routes of policies, made from the rows of broker/policies/registry.py.

`parsers.py` makes the stored value from a request; `namespace_routes.py` and `topic_routes.py` make the routes.
"""
