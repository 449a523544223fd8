"""What a client reads from a bookie: runs of answers, single ones, and whole connections of the ledger client.

Runs:      a scan and the decoder that knows every case must agree on every frame of a run.
Channel:   a real `Channel` that has asked for a few things is fed the bytes, once whole and once in pieces.
           Whatever comes, everybody who asked is told exactly once, and how the bytes were cut makes no difference.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import zlib
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from fuzz.engine import Target
from magnetar.config.ledger import LedgerConfig
from magnetar.errors import BookieUnavailableError, MagnetarError, RemoteProtocolError
from magnetar.ids import BookieId
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.channels.connection import Connection
from magnetar.wire.bookkeeper import messages as m
from magnetar.wire.bookkeeper.codes import Code, code_of_number
from magnetar.wire.bookkeeper.ends import decode_response, decode_responses, encode_request, encode_response
from magnetar.wire.bookkeeper.frames import PREFIX, VERSION_MAX, Buffer, frame_end
from magnetar.wire.bookkeeper.hot_path import (
    encode_add_responses,
    encode_reads,
    read_response_header,
    scan_add_responses,
    scan_read_responses,
    scan_reads,
)

_PROTOCOL = (RemoteProtocolError,)
_LEDGER = 7
_READS = range(10, 16)
_ADDS = (1, 2, 3)
_TIMEOUT_S = 60.0  # Never waited for: the channel is closed long before.
_BOOKIE = BookieId("fuzz:3181")
_CONFIG = LedgerConfig()


def targets(
    v2: Sequence[bytes], v3: Sequence[bytes], is_compact: Callable[[bytes], bool], is_protobuf: Callable[[bytes], bool]
) -> list[Target]:
    """`v2`, `v3`: responses that Apache's own classes made."""
    bodies_v2, bodies_v3 = ([frame[PREFIX.size :] for frame in frames] for frames in (v2, v3))
    streams = [b"".join(v2[at : at + 3]) for at in range(len(v2))] + [frame * 3 for frame in v2]
    return [
        Target("bookkeeper-response-stream", [*streams, *_v2_answers()], _stream, _PROTOCOL, first_frame_is_whole),
        Target("bookkeeper-response-v2", bodies_v2, lambda data: _one(data, 2), _PROTOCOL, is_compact),
        Target("bookkeeper-response-v3", bodies_v3, lambda data: _one(data, 3), _PROTOCOL, is_protobuf),
        Target("bookkeeper-read-run", _runs_of_reads(), _read_run, _PROTOCOL, first_frame_is_whole),
        Target(
            "bookkeeper-channel-v2",
            _v2_answers(),
            lambda data: _same_in_pieces(data, 2),
            (BookieUnavailableError,),
            first_frame_is_whole,
        ),
        Target(
            "bookkeeper-channel-v3",
            _v3_answers(),
            lambda data: _same_in_pieces(data, 3),
            (BookieUnavailableError,),
            first_frame_is_whole,
        ),
    ]


def first_frame_is_whole(data: bytes) -> bool:
    try:
        end = frame_end(data, 0, len(data))
    except RemoteProtocolError:
        return False
    return end is not None and end <= len(data)


# --- runs and single answers ------------------------------------------------------------------------------------------


def _stream(data: bytes) -> object:
    position, count, end = 0, 0, len(data)
    while True:
        adds = scan_add_responses(data, position, end)
        found = zip(adds.codes, adds.ledger_ids, adds.entry_ids, strict=True)
        _check_run(
            data, position, adds.end, [m.AddResponse(code_of_number(c), *ids, version=VERSION_MAX) for c, *ids in found]
        )
        reads = scan_read_responses(data, adds.end, end, is_ours=False)
        assert scan_read_responses(data, adds.end, end, is_ours=True) == reads, "views and copies differ"
        bodies = zip(reads.codes, reads.keys, reads.bodies, strict=True)
        _check_run(
            data,
            adds.end,
            reads.end,
            [m.ReadResponse(code_of_number(c), *key, bytes(body), version=VERSION_MAX) for c, key, body in bodies],
        )
        decoded = decode_response(data, reads.end, end, 2)
        count += len(adds.codes) + len(reads.codes)
        if decoded is None:
            return count
        assert decoded.end > reads.end, "a decoder went backwards"
        count, position = count + 1, decoded.end


def _check_run(data: bytes, start: int, end: int, found: Sequence[m.AnyResponse]) -> None:
    assert start <= end <= len(data), "a scan went backwards or beyond the end"
    assert decode_responses(data, start, end, 2) == (found, end), "the scan and the decoder disagree"


def _one(body: bytes, version: int) -> object:
    frame = PREFIX.pack(len(body)) + body
    decoded = decode_response(frame, 0, len(frame), version)
    assert decoded is not None, "a whole frame was not decoded"
    encoded = encode_response(decoded.response)
    again = decode_response(encoded, 0, len(encoded), version)
    assert again is not None, "an encoded response is not whole"
    assert again.response == decoded.response, "another response after a round"
    return decoded.response


def _runs_of_reads() -> list[bytes]:
    return [encode_reads(_LEDGER, range(count)) for count in (1, 3, 20)] + [encode_reads(2**63 - 1, [0, 2**63 - 1])]


def _read_run(data: bytes) -> object:
    """Encoded again, a run is what it was, byte for byte, and what the plain encoder makes one by one."""
    run = scan_reads(data, 0, len(data))
    ids = list(zip(run.ledger_ids, run.entry_ids, strict=True))
    assert b"".join(encode_reads(ledger, [entry]) for ledger, entry in ids) == data[: run.end], "not what was read"
    plain = [encode_request(m.ReadEntry(*one, version=VERSION_MAX)) for one in ids[:3]]
    assert b"".join(plain) == data[: sum(map(len, plain))], "the two encoders disagree"
    if not ids:
        raise RemoteProtocolError("not one read")
    return ids


# --- a channel --------------------------------------------------------------------------------------------------------


def _v2_answers() -> list[bytes]:
    """Answers to what `_ask_v2` asks for."""
    reads = [read_response_header(_LEDGER, entry, 5) + b"entry" for entry in _READS]
    reads[-1] = read_response_header(_LEDGER, _READS[-1], 0, Code.ENOENTRY)
    batch = encode_response(m.BatchReadResponse(Code.EOK, _LEDGER, 20, 1, [b"one", b"two"], version=2))
    adds = [encode_add_responses([_LEDGER], [entry], [0]) for entry in _ADDS]
    return [
        b"".join([*adds, *reads, batch]),
        b"".join([*reversed(reads), *reversed(adds)]),
        b"".join([batch, reads[0], adds[0], reads[1], adds[1]]),
    ]


_V3_ASKED: tuple[m.AnyRequest, ...] = (
    m.ReadLac(_LEDGER),
    m.ForceLedger(_LEDGER),
    m.ListEntries(_LEDGER),
    m.ReadEntry(_LEDGER, 5),
)


def _v3_answers() -> list[bytes]:
    answers = [
        encode_response(m.ReadLacResponse(Code.EOK, _LEDGER, b"a lac", b"an entry", txn_id=1)),
        encode_response(m.ForceLedgerResponse(Code.EOK, _LEDGER, txn_id=2)),
        encode_response(m.ListEntriesResponse(Code.EOK, _LEDGER, b"\0" * 64, txn_id=3)),
        encode_response(m.ReadResponse(Code.ENOENTRY, _LEDGER, 5, txn_id=4)),
    ]
    return [b"".join(answers), b"".join(reversed(answers)), answers[0], answers[3] + answers[1]]


class _Wire(asyncio.Transport):
    """What is written to it goes nowhere."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def write(self, data: object) -> None: ...
    def writelines(self, list_of_data: object) -> None: ...
    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


class _Listener:
    def __init__(self) -> None:
        self.told: dict[int, tuple[int, bytes] | None] = {}

    def on_read_answers(
        self, _channel: Channel, entry_ids: Sequence[int], codes: Sequence[int], bodies: Sequence[Buffer]
    ) -> None:
        for entry_id, code, body in zip(entry_ids, codes, bodies, strict=True):
            assert entry_id not in self.told, "told twice"
            self.told[entry_id] = code, bytes(body)

    def on_reads_failed(self, _channel: Channel, entry_ids: Sequence[int], _error: MagnetarError) -> None:
        for entry_id in entry_ids:
            assert entry_id not in self.told, "told twice"
            self.told[entry_id] = None

    def on_add_answers(self, _channel: Channel, entry_ids: Sequence[int], codes: Sequence[int]) -> None:
        assert len(entry_ids) == len(codes), "an answer without a code"

    def on_channel_lost(self, _channel: Channel, _error: MagnetarError) -> None: ...
    def on_writable(self, _channel: Channel) -> None: ...


def _same_in_pieces(data: bytes, version: int) -> object:
    run = _loop().run_until_complete
    whole = run(_fed([data], version))
    assert run(_fed(_cut(data), version)) == whole, "how the bytes were cut makes a difference"
    return whole


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all inputs: making one takes longer than everything that is done with it."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def _cut(data: bytes) -> list[bytes]:
    random = Random(zlib.crc32(data))
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def _fed(pieces: Sequence[bytes], version: int) -> object:
    """What those who asked were told; BookieUnavailableError if the channel was lost over it."""
    connections: list[Connection] = []

    async def dial(make: Callable[[], Connection]) -> None:
        connections.append(make())
        connections[-1].connection_made(_Wire(connections[-1]))

    channel = await Channel.connect(_BOOKIE, _CONFIG, dial)
    listener = _Listener()
    asked = [asyncio.ensure_future(one) for one in (_ask_v2 if version == 2 else _ask_v3)(channel, listener)]
    for _ in range(3):  # Until a v3 connection is there, too.
        await asyncio.sleep(0)
    for piece in pieces:
        _receive(connections[-1], piece)
    await asyncio.sleep(0)  # A connection that breaks is told of in the next turn.
    error = channel.error
    await channel.aclose()
    outcomes: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
    if version == 2:
        assert sorted(listener.told) == list(_READS), "somebody was not told"
    if error is not None:
        assert isinstance(error, BookieUnavailableError), f"lost for another reason: {error!r}"
        raise error
    unexpected = [one for one in outcomes if isinstance(one, Exception) and not isinstance(one, BookieUnavailableError)]
    assert not unexpected, f"an answer that is none: {unexpected}"
    return listener.told, [None if isinstance(one, Exception) else one for one in outcomes]


def _ask_v2(channel: Channel, listener: _Listener) -> list[Awaitable[m.AnyResponse]]:
    channel.attach(_LEDGER, listener)
    channel.send_reads(_LEDGER, _READS, listener, timeout_s=_TIMEOUT_S)
    return [channel.request(m.BatchRead(_LEDGER, 20, 0, entries_max=2, bytes_max=100, version=2), timeout_s=_TIMEOUT_S)]


def _ask_v3(channel: Channel, _listener: _Listener) -> list[Awaitable[m.AnyResponse]]:
    return [channel.request(request, timeout_s=_TIMEOUT_S) for request in _V3_ASKED]


def _receive(connection: Connection, piece: bytes) -> None:
    """As a transport does it."""
    while piece and connection.error is None:
        room = connection.get_buffer(-1)
        taken = min(len(room), len(piece))
        room[:taken] = piece[:taken]
        connection.buffer_updated(taken)
        piece = piece[taken:]
