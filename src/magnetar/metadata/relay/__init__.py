"""The metadata store through a broker's HTTP port."""
