"""The long runs: kills by the hundred, chaos by the minute. `make soak [ONLY=part] [SEED=n]`; not part of CI.

A part is named after the folder it proves and is a function of a seed and an empty directory that returns a verdict.
"""
