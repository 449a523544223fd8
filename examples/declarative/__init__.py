"""A declarative pipeline on topics: `make example-pipeline`."""
