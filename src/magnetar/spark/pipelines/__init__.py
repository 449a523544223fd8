"""Pipelines that ship with magnetar: archive, audit, scrub, replay, compact.

Each is a module with frozen options and `run(spark, options) -> result`; `magnetar pipeline` is the command line.
Read next: docs/pipelines.md
"""
