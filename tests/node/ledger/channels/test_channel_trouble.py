"""The channel against servers that are no good bookies: silent, confused, gone."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from magnetar.errors import BookieUnavailableError, MagnetarError, RequestTimeoutError
from magnetar.ids import BookieId
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.channels.connection import RECEIVE_BYTES
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import response_parts
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX
from magnetar.wire.bookkeeper.hot_path import encode_add_responses, read_response_header
from magnetar.wire.bookkeeper.messages import (
    V2,
    AddResponse,
    BatchRead,
    BatchReadResponse,
    ForceLedgerResponse,
    GetBookieInfo,
    ReadEntry,
    ReadLac,
    ReadLacResponse,
    ReadResponse,
)
from tests.node.ledger.channels.channel_kit import (
    CONFIG,
    SECONDS,
    Reader,
    Writer,
    add_frames,
    bad_bookie,
    read_for_ever,
    tcp_dial,
)

LEDGER = 7


async def say_nothing(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await read_for_ever(reader)


async def never_read(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def answer_with(answer: bytes) -> object:
    """To whatever is asked first on each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await read_for_ever(reader)

    return serve


async def error_of(channel: Channel, request: object) -> MagnetarError:
    with pytest.raises(MagnetarError) as caught:
        await channel.request(request, timeout_s=SECONDS)  # type: ignore[arg-type]
    return caught.value


class TestSilence:
    @pytest.mark.parametrize("asked", [ReadEntry(LEDGER, 0, version=V2), GetBookieInfo()])
    async def test_a_bookie_that_never_answers_is_a_timeout(self, asked: ReadEntry | GetBookieInfo) -> None:
        async with bad_bookie(say_nothing) as channel:
            with pytest.raises(RequestTimeoutError, match="bad:1 did not answer within 50 ms"):
                await channel.request(asked, timeout_s=0.05)

    async def test_a_writer_that_leaves_a_silent_bookie_ends_the_channel_for_the_next_one(self) -> None:
        config = dataclasses.replace(CONFIG, add_timeout_ms=20)
        async with bad_bookie(say_nothing, config) as channel:
            first, second = Writer(), Writer()
            channel.attach(1, first)
            channel.attach(2, second)
            channel.send_adds(add_frames(1, [0]))
            await until(lambda: channel._v2.silent_s > 0.02, "it is silent for long enough")
            channel.detach(1, first, unanswered=1)
            assert not channel.is_lost  # The other writer decides for itself.
            channel.detach(2, second)
            channel.attach(3, first)
            channel.detach(3, first, unanswered=1)
            assert channel.is_lost

    async def test_a_bookie_that_was_asked_nothing_is_not_silent(self) -> None:
        config = dataclasses.replace(CONFIG, add_timeout_ms=1)
        async with bad_bookie(say_nothing, config) as channel:
            writer = Writer()
            channel.attach(1, writer)
            channel.detach(1, writer, unanswered=1)
            assert channel._v2.silent_s == 0.0
            assert not channel.is_lost

    async def test_requests_run_out_of_time_each_at_its_own(self) -> None:
        async with bad_bookie(say_nothing) as channel:
            channel.attach(1, Writer())  # Silence does not end the channel.
            ended: list[float] = []

            async def ask(timeout_s: float) -> None:
                with pytest.raises(RequestTimeoutError):
                    await channel.request(ReadEntry(LEDGER, 0, version=V2), timeout_s=timeout_s)
                ended.append(timeout_s)

            await asyncio.gather(*map(ask, (0.25, 0.05, 0.15)))
            assert ended == [0.05, 0.15, 0.25]

    async def test_no_timer_is_left_when_everything_is_answered_or_lost(self) -> None:
        async with bad_bookie(say_nothing) as channel:
            asked = asyncio.ensure_future(channel.request(GetBookieInfo(), timeout_s=1000))
            await asyncio.sleep(0)
            await channel.aclose()
            assert isinstance(await asyncio.gather(asked, return_exceptions=True), list)
            assert channel._requests._deadlines._timer is None

    async def test_a_bookie_may_owe_only_so_many_answers(self) -> None:
        config = dataclasses.replace(CONFIG, requests_in_flight_max=3)
        async with bad_bookie(say_nothing, config) as channel:
            channel.send_reads(LEDGER, range(3), Reader(), timeout_s=SECONDS)
            error = await error_of(channel, ReadEntry(LEDGER, 3, version=V2))
            assert "ledger.requests_in_flight_max" in str(error)

    async def test_too_many_answers_that_nobody_waits_for_end_the_channel(self) -> None:
        config = dataclasses.replace(CONFIG, requests_in_flight_max=3)
        async with bad_bookie(say_nothing, config) as channel:
            for first in (0, 3):
                channel.send_reads(LEDGER, range(first, first + 3), Reader(), timeout_s=SECONDS).cancel()
            assert channel.is_lost

    async def test_bytes_wait_only_up_to_the_limit_for_a_bookie_that_does_not_read(self) -> None:
        config = dataclasses.replace(CONFIG, channel_unsent_bytes_max=2**20)
        async with bad_bookie(never_read, config) as channel:
            writer = Writer()
            channel.attach(LEDGER, writer)
            sent = 0
            while channel.is_writable:
                channel.send_adds(add_frames(LEDGER, [sent], bytes(2**16)))
                sent += 1
                await asyncio.sleep(0)
            assert sent * 2**16 < 40 * 2**20  # The limit, and what the system's own buffers take.
            assert channel._v2._unsent_bytes <= 2**20 + 2**17

    async def test_nobody_who_listens_is_unavailable_and_said_so(self) -> None:
        server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(BookieUnavailableError, match=r"no connection to bookie gone:1: .*; does it run\?"):
            await Channel.connect(BookieId("gone:1"), CONFIG, tcp_dial(port))

    async def test_a_connection_that_does_not_come_about_is_given_up(self) -> None:
        async def dial(_make: object) -> None:
            await asyncio.Event().wait()

        config = dataclasses.replace(CONFIG, connect_timeout_ms=20)
        with pytest.raises(BookieUnavailableError, match="within 20 ms"):
            await Channel.connect(BookieId("far:1"), config, dial)

    async def test_a_v3_connection_that_cannot_be_made_fails_its_requests_and_is_tried_again(self) -> None:
        async with bad_bookie(say_nothing) as channel:
            good, attempts = channel._dial, 0

            async def dial(make: object) -> None:
                nonlocal attempts
                attempts += 1
                if attempts == 1:
                    raise ConnectionRefusedError(111, "refused")
                await good(make)  # type: ignore[arg-type]

            channel._dial = dial
            error = await error_of(channel, GetBookieInfo())
            assert isinstance(error, BookieUnavailableError)
            assert not channel.is_lost
            with pytest.raises(RequestTimeoutError):
                await channel.request(GetBookieInfo(), timeout_s=0.05)
            assert attempts == 2


def frame(*, code: int = 0, ledger_id: int = LEDGER, entry_id: int = 0, body: bytes = b"") -> bytes:
    return read_response_header(ledger_id, entry_id, len(body), code) + body


def v3(response: object, txn_id: int = 1) -> bytes:
    return b"".join(response_parts(dataclasses.replace(response, txn_id=txn_id)))  # type: ignore[type-var, arg-type]


GARBAGE_V2 = {
    "an HTTP server": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a length beyond the limit": (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
    "a length below any message": b"\0\0\0\1x",
    "an entry that was not asked for": frame(entry_id=5),
    "a ledger that was not asked for": frame(ledger_id=LEDGER + 1),
    "an unknown code of a read": frame(code=77),
    "an unknown code of an add": encode_add_responses([LEDGER], [0], [77]),
    "a batch that was not asked for": b"".join(response_parts(BatchReadResponse(Code.EOK, LEDGER, 0, 9, version=V2))),
    "an unknown operation": b"\0\0\0\x18" + bytes((2, 99, 0, 0)) + bytes(20),
}
GARBAGE_V3 = {
    "no protobuf": b"\0\0\0\x08\xff\xff\xff\xff\xff\xff\xff\xff",
    "another operation": v3(ForceLedgerResponse(Code.EOK, LEDGER)),
    "another ledger": v3(ReadLacResponse(Code.EOK, LEDGER + 1)),
    "a request that was not made": v3(ReadLacResponse(Code.EOK, LEDGER), txn_id=2),
    "an add that nobody made": v3(AddResponse(Code.EOK, LEDGER, 0)),
}


class TestGarbage:
    @pytest.mark.parametrize("garbage", GARBAGE_V2.values(), ids=GARBAGE_V2)
    async def test_in_v2_ends_the_channel_with_a_clear_error(self, garbage: bytes) -> None:
        async with bad_bookie(answer_with(garbage)) as channel:  # type: ignore[arg-type]
            writer = Writer()
            channel.attach(LEDGER, writer)
            error = await error_of(channel, ReadEntry(LEDGER, 0, version=V2))
            assert isinstance(error, BookieUnavailableError)
            assert str(error).startswith("bookie bad:1 sent what it must not: ")
            assert channel.is_lost
            assert [str(told) for told in writer.losses] == [str(error)]
            assert writer.runs == []

    @pytest.mark.parametrize("garbage", GARBAGE_V3.values(), ids=GARBAGE_V3)
    async def test_in_v3_ends_the_channel_with_a_clear_error(self, garbage: bytes) -> None:
        async with bad_bookie(answer_with(garbage)) as channel:  # type: ignore[arg-type]
            error = await error_of(channel, ReadLac(LEDGER))
            assert isinstance(error, BookieUnavailableError)
            assert str(error).startswith("bookie bad:1 sent what it must not: ")
            assert channel.is_lost

    async def test_a_connection_that_is_closed_is_said_so(self) -> None:
        async def hang_up(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await reader.read(1)

        async with bad_bookie(hang_up) as channel:
            error = await error_of(channel, ReadEntry(LEDGER, 0, version=V2))
            assert "the connection to bookie bad:1 was lost" in str(error)


class TestLateAnswers:
    async def test_only_what_was_not_answered_fails(self) -> None:
        async with bad_bookie(answer_with(frame(entry_id=1))) as channel:  # type: ignore[arg-type]
            reader = Reader()
            channel.send_reads(LEDGER, range(3), reader, timeout_s=SECONDS)
            await until(lambda: reader.answers, "one is answered")
            channel.lose(BookieUnavailableError("enough"))
            await until(lambda: reader.failures, "the others have failed")
            assert [ids for ids, _ in reader.failures] == [[0, 2]]

    async def test_the_late_answer_to_a_read_is_not_taken_for_that_to_a_later_one(self) -> None:
        """The first "no" comes only after the second read was sent; the second read must not take it."""
        asked: list[bytes] = []
        go_on = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(2**16):
                asked.append(data)
                if len(asked) == 1:
                    await go_on.wait()
                    writer.write(frame(code=Code.ENOENTRY))
                else:
                    writer.write(v3(ReadResponse(Code.EOK, LEDGER, 0, b"entry")))

        async with bad_bookie(serve) as channel:
            channel.attach(LEDGER, Writer())
            with pytest.raises(RequestTimeoutError):
                await channel.request(ReadEntry(LEDGER, 0, version=V2), timeout_s=0.03)
            second = asyncio.ensure_future(channel.request(ReadEntry(LEDGER, 0, version=V2), timeout_s=SECONDS))
            await asyncio.sleep(0)
            go_on.set()
            answer = await second
            assert isinstance(answer, ReadResponse)
            assert answer.code is Code.EOK
            await until(lambda: channel._v2.given_up == 0, "the late answer has come")

    async def test_late_answers_in_v3_and_to_batches_are_for_nobody(self) -> None:
        go_on = asyncio.Event()
        batch = BatchReadResponse(Code.EOK, LEDGER, 0, 1, version=V2)
        late = [v3(ReadLacResponse(Code.EOK, LEDGER)), b"".join(response_parts(batch))]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first = await reader.read(2**16)
            await go_on.wait()
            is_v2 = first[4] == V2
            writer.write(late[is_v2])
            await reader.read(2**16)
            writer.write(frame() if is_v2 else v3(ReadLacResponse(Code.EOK, LEDGER), txn_id=2))
            await read_for_ever(reader)

        async with bad_bookie(serve) as channel:
            channel.attach(LEDGER, Writer())
            for request in (ReadLac(LEDGER), BatchRead(LEDGER, 0, 0, 1, 100, version=V2)):
                with pytest.raises(RequestTimeoutError):
                    await channel.request(request, timeout_s=0.03)
            assert not channel._v2._batches
            go_on.set()
            for again in (ReadLac(LEDGER), ReadEntry(LEDGER, 0, version=V2)):
                assert (await channel.request(again, timeout_s=SECONDS)).code is Code.EOK


class TestFraming:
    @pytest.mark.parametrize("step", [1, 3, 1000])
    async def test_answers_that_come_in_pieces_are_put_together(self, step: int) -> None:
        bodies = [bytes([entry_id]) * size for entry_id, size in enumerate((0, 10, 3_000, 40_000 // step))]
        answers = encode_add_responses([LEDGER] * 3, range(3), [0] * 3)
        for entry_id, body in enumerate(bodies):
            answers += frame(entry_id=entry_id, body=body) + encode_add_responses([LEDGER], [3 + entry_id], [0])

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            for at in range(0, len(answers), step):
                writer.write(answers[at : at + step])
                await writer.drain()
                await asyncio.sleep(0)
            await read_for_ever(reader)

        async with bad_bookie(serve) as channel:
            reader, writer = Reader(), Writer()
            channel.attach(LEDGER, writer)
            channel.send_reads(LEDGER, range(4), reader, timeout_s=SECONDS)
            await until(lambda: len(reader.answers) == 4 and len(writer.answers) == 7, "everything is answered")
            assert [bytes(reader.answers[entry_id][1]) for entry_id in range(4)] == bodies

    async def test_frames_of_every_size_around_the_buffer_come_whole(self) -> None:
        sizes = [RECEIVE_BYTES + difference for difference in (-100, -25, -24, -23, -1, 0, 1, 100)] * 2
        bodies = [bytes([entry_id + 1]) * size for entry_id, size in enumerate(sizes)]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            for entry_id, body in enumerate(bodies):
                writer.write(frame(entry_id=entry_id, body=body))
            await read_for_ever(reader)

        async with bad_bookie(serve) as channel:
            reader = Reader()
            channel.send_reads(LEDGER, range(len(sizes)), reader, timeout_s=SECONDS)
            await until(lambda: len(reader.answers) == len(sizes), "everything is answered")
            assert [bytes(body) for _, body in reader.answers.values()] == bodies
            assert len(channel._v2._buffer.data) == RECEIVE_BYTES
