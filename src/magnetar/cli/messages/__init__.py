"""Commands that publish and receive messages."""
