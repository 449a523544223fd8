"""Topics of one broker: loaded once, persistent or not, and the events of their namespaces."""
