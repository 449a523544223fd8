"""Real processes for tests: started, killed, started again, and ended with their owner."""
