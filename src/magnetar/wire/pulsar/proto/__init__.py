"""Generated from the .proto file in this folder by `make proto`; see tools/generate_proto.py."""
