"""The receive buffer by itself: how large it is, and that what it holds stays whole."""

from __future__ import annotations

from magnetar.bookie.receive_buffer import RECEIVE_BYTES, ReceiveBuffer

FRAME_BYTES = 5 * 2**20


def frame(size: int) -> bytes:
    return (size - 4).to_bytes(4, "big") + bytes(range(256)) * (size // 256 - 1) + bytes(252 + size % 256)


def receive(buffer: ReceiveBuffer, sent: bytes, largest_read: int = 65_536) -> int:
    """As a transport does; how many reads it took."""
    at = reads = 0
    while at < len(sent):
        room = buffer.room()
        size = min(len(room), len(sent) - at, largest_read)
        room[:size] = sent[at : at + size]
        buffer.end += size
        at += size
        reads += 1
    return reads


def test_a_length_that_was_announced_costs_no_more_than_what_was_sent() -> None:
    for sent in (RECEIVE_BYTES + 1, 270_000, 2**20, 3 * 2**20):
        buffer = ReceiveBuffer()
        receive(buffer, frame(FRAME_BYTES)[:sent])
        assert len(buffer.data) <= 2 * sent


def test_a_large_frame_is_whole_at_the_end_in_a_buffer_of_about_its_size() -> None:
    buffer = ReceiveBuffer()
    sent = frame(FRAME_BYTES)
    reads = receive(buffer, sent)
    assert bytes(buffer.data[buffer.start : buffer.end]) == sent
    assert len(buffer.data) <= FRAME_BYTES + RECEIVE_BYTES
    assert reads <= FRAME_BYTES // 65_536 + 10, "there is room for whole reads"


def test_frames_smaller_than_the_buffer_never_make_it_grow() -> None:
    buffer = ReceiveBuffer()
    one = frame(100_000)
    for _ in range(50):
        receive(buffer, one)
        assert bytes(buffer.data[buffer.start : buffer.end]).endswith(one)
        if buffer.end - buffer.start > 50_000:
            buffer.start += 100_000
    assert len(buffer.data) == RECEIVE_BYTES


def test_a_large_buffer_shrinks_when_it_is_empty_and_not_before() -> None:
    buffer = ReceiveBuffer()
    sent = frame(2**20)
    receive(buffer, sent + b"next")
    buffer.start += len(sent)
    buffer.shrink()
    assert buffer.is_large
    assert bytes(buffer.data[buffer.start : buffer.end]) == b"next"
    buffer.start += 4
    buffer.shrink()
    assert not buffer.is_large
    assert (buffer.start, buffer.end, len(buffer.room())) == (0, 0, RECEIVE_BYTES)
