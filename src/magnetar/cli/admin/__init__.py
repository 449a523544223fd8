"""Commands that ask a broker's admin interface."""
