"""Publishing what jobs have staged: a broker copies it into its topics, once, and cleans up after jobs."""
