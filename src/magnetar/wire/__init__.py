"""Codecs of the wire protocols: bytes in, values out, and back. They hold no sockets, clocks or tasks.

Each protocol is a folder that does not depend on the others; both roles are in it, so one test plays both ends.
"""
