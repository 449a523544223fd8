"""Loads that tests, demonstrations, benchmarks and long runs share: they write numbered messages, and check what came
back. They are not part of the installed package.
"""
