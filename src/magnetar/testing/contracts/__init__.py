"""Contract suites: the behaviour that every implementation of an interface must show.

To use one, subclass the suite, name the subclass `Test…`, and override the `harness` fixture. The suite holds the
promises made in the interface's docstrings; what only one implementation does is tested beside it.
"""
