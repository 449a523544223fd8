"""The AUTH message of both directions and both versions: the plugin's name, and its data."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from magnetar.errors import RemoteProtocolError
from magnetar.wire.bookkeeper.proto import bookkeeper_protocol_pb2 as pb


def encode_auth_message(plugin: str, payload: bytes) -> bytes:
    return pb.AuthMessage(authPluginName=plugin, payload=payload).SerializeToString()


def decode_auth_message(data: memoryview) -> tuple[str, bytes]:
    message = pb.AuthMessage()
    try:
        message.ParseFromString(bytes(data))
    except (DecodeError, UnicodeDecodeError):
        raise RemoteProtocolError("an invalid auth message") from None
    if not message.IsInitialized():
        raise RemoteProtocolError("an auth message without plugin name or payload")
    return fields_of(message)


def fields_of(message: pb.AuthMessage) -> tuple[str, bytes]:
    plugin: object = message.authPluginName  # Some protobuf libraries give bytes for a string that is not UTF-8.
    if not isinstance(plugin, str):
        raise RemoteProtocolError("an auth message whose plugin name is not text")
    return plugin, message.payload
