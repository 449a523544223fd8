"""The simulated network: hosts, links between them, and connections along the links."""
