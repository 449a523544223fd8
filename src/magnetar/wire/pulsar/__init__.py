"""The binary protocol between Pulsar's clients and brokers, in both roles, byte for byte as Apache's.

    proto/           the commands and metadata as protobuf; `proto/hot_path.proto` is CommandSend as the scan reads it
    frames.py        one frame: sizes and limits, its command, and what follows it
    hot_path.py      runs of SEND frames over one buffer, with no object per frame that outlives it
    varints.py       protobuf's integers, as the encoders of the hot path write them
    encode.py        frames that a broker sends often, made by hand; any command by `encode_command`
    entry.py         what is stored of a message: broker entry metadata, checksum, metadata, payload
    checksum.py      the checksum of headers and payload
    batch.py         the single messages inside a batch's payload
    compression.py   payloads in and out of the five compressions
    limits.py        protocol version and sizes

What a decoder returns owns its bytes, except `Frame.headers_and_payload` and the offsets of `hot_path`: they point into
the receive buffer and are copied by whoever keeps them.
Read next: docs/pulsar-protocol.md
"""
