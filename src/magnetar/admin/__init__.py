"""Admin: a broker's HTTP side. Pulsar's REST API in its paths and its JSON, lookups, metrics, health.

It is loaded when the first request comes (server.py): a server without admin requests does not pay for it.

Read next: routes.py (all routes), admin/http/call.py (what a handler is given); docs/admin-rest.md
"""
