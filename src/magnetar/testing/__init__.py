"""What tests need: fixtures with real processes, and the contract suites.

A contract suite (`contracts/`) is a base class of tests with a fixture to fill in. Production's implementation and the
simulator's both run it, and that is what makes results from the simulator mean something.
"""
