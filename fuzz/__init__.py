"""Mutated input against every decoder: `make fuzz [ONLY=target] [SECONDS=20] [SEED=n]`.

A decoder may return a value or raise one of the errors it promises. Anything else, an input that takes too long, or
memory that is not given back, is a finding: the input is kept in build/fuzz, and a line says how to run it again.
Read next: targets.py (what is tried), engine.py (how), docs/metadata-layout.md
"""
