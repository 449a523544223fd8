"""A small HTTP/1.1 client on the event loop, for the HTTP ports of brokers."""
