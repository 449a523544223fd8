"""What tests need: fixtures with real processes, the contract suites, and models.

A contract suite (`contracts/`) is a base class of tests with a fixture to fill in. Production's implementation and the
simulator's both run it, and that is what makes results from the simulator mean something.

A model (`models/`) is the plain version of a rule that production computes in a faster way; tests compare the two.
"""
