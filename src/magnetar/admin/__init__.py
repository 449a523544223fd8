"""Admin: a broker's HTTP side. Pulsar's REST API in its paths and its JSON, lookups, metrics, health.

Loaded when the first request comes (server.py): a server that nobody administrates pays nothing for it.
Read next: routes.py (every route there is), call.py (what a handler is given); docs/admin-rest.md
"""
