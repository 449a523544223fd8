"""What connections receive into and keep: how much memory that is, and that every frame arrives whole."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from magnetar.runtime.receiving import SMALL_BYTES, Received, ReceiveMemory
from magnetar.wire.bookkeeper.frames import frame_end

pytestmark = pytest.mark.virtual_time

SHARED_BYTES = 2**16
FRAME_BYTES = 2**20
BYTES_MAX = 2**20
TIMEOUT_S = 10.0


def frame(size: int, fill: int = 7) -> bytes:
    return (size - 4).to_bytes(4, "big") + bytes([fill]) * (size - 4)


class Owner:
    """A connection that handles whole frames when it is not held."""

    def __init__(self, memory: ReceiveMemory) -> None:
        self.received = Received(memory, self)
        self.frames: list[bytes] = []
        self.holds: set[str] = set()
        self.given_up: list[str] = []

    @property
    def is_held(self) -> bool:
        return bool(self.holds)

    @property
    def is_excused(self) -> bool:
        return self.is_held

    def hold(self, reason: str) -> None:
        self.holds.add(reason)

    def release(self, reason: str) -> None:
        self.holds.discard(reason)
        if not self.holds:
            asyncio.get_running_loop().call_soon(self.handle)

    def give_up(self, why: str) -> None:
        self.given_up.append(why)

    def read(self, sent: bytes | memoryview) -> int:
        """One read, as a transport makes it; how much of it fitted."""
        room = self.received.room()
        size = min(len(room), len(sent))
        assert size
        room[:size] = sent[:size]
        self.received.add(size)
        self.handle()
        return size

    def read_all(self, sent: bytes) -> None:
        """As long as the connection is not held."""
        at = 0
        while at < len(sent) and not self.is_held:
            at += self.read(sent[at : at + 65_536])

    def handle(self) -> None:
        received = self.received
        while not self.is_held:
            end = frame_end(received.data, received.start, received.end)
            if end is None or end > received.end:
                break
            self.frames.append(bytes(received.data[received.start : end]))
            received.start = end
        received.settle()


def make_memory(bytes_max: int = BYTES_MAX) -> ReceiveMemory:
    return ReceiveMemory(SHARED_BYTES, bytes_max=bytes_max, frame_timeout_s=TIMEOUT_S, frame_end=frame_end)


# --- sizes ------------------------------------------------------------------------------------------------------------


async def test_connections_that_have_handled_everything_keep_no_memory() -> None:
    memory = make_memory()
    owners = [Owner(memory) for _ in range(100)]
    for owner in owners:
        owner.read_all(frame(1_000) * 100)
    assert memory.kept_bytes == memory.unfinished == 0
    assert all(len(owner.frames) == 100 for owner in owners)


@pytest.mark.parametrize("sent", [1, 100, SHARED_BYTES - 1, SHARED_BYTES + 1, 270_000, 600_000])
async def test_a_length_that_was_announced_costs_no_more_than_what_was_sent(sent: int) -> None:
    memory = make_memory(2**30)
    Owner(memory).read_all(frame(FRAME_BYTES)[:sent])
    assert sent <= memory.kept_bytes <= 2 * sent
    memory.close()


async def test_a_large_frame_is_received_into_a_buffer_of_about_its_size_which_is_kept_for_a_moment() -> None:
    memory = make_memory(2**30)
    owner = Owner(memory)
    owner.read_all(frame(FRAME_BYTES)[:-1])
    assert memory.kept_bytes <= FRAME_BYTES + SHARED_BYTES
    owner.read_all(frame(FRAME_BYTES)[-1:])
    assert owner.frames == [frame(FRAME_BYTES)]
    assert memory.unfinished == 0
    kept = memory.kept_bytes
    assert kept >= FRAME_BYTES
    owner.read_all(frame(FRAME_BYTES))
    assert memory.kept_bytes == kept, "the next one is received into the same buffer"
    await asyncio.sleep(5)
    assert memory.kept_bytes == 0
    owner.read_all(frame(100))
    assert owner.frames[-1] == frame(100)


@pytest.mark.parametrize("seed", range(8))
async def test_every_frame_arrives_whole_however_reads_cut_the_stream_and_whenever_the_connection_is_held(
    seed: int,
) -> None:
    random = Random(seed)

    memory = make_memory(random.choice((2**14, 2**18, 2**30)))
    owners = [Owner(memory) for _ in range(4)]
    sizes = (8, 100, 1_000, SHARED_BYTES // 2, SHARED_BYTES - 1, SHARED_BYTES, 3 * SHARED_BYTES)
    frames = [[frame(random.choice(sizes), random.randrange(256)) for _ in range(12)] for _ in owners]
    left = [memoryview(b"".join(own)) for own in frames]
    holding: list[tuple[Owner, str]] = []
    while any(left):
        number = random.randrange(len(owners))
        owner = owners[number]
        if holding and random.random() < 0.3:
            held, reason = holding.pop()
            held.release(reason)
            await asyncio.sleep(0)
        elif random.random() < 0.1:
            holding.append((owner, f"hold {len(holding)}"))
            owner.hold(holding[-1][1])
        elif (not owner.is_held or random.random() < 0.05) and left[number]:
            most = random.choice((3, 1_000, 50_000, 10**6))
            left[number] = left[number][owner.read(left[number][:most]) :]
        await asyncio.sleep(0)
    for owner, reason in holding:
        owner.release(reason)
    await asyncio.sleep(0)
    assert [owner.frames for owner in owners] == frames
    assert memory.unfinished == memory.waiting == 0
    await asyncio.sleep(5)
    assert memory.kept_bytes == 0


# --- the bound --------------------------------------------------------------------------------------------------------


async def test_unfinished_frames_of_many_connections_stay_below_the_bound_and_all_are_finished_in_the_end() -> None:
    memory = make_memory()
    owners = [Owner(memory) for _ in range(60)]
    left = {owner: memoryview(frame(400_000)) for owner in owners}
    peak = 0
    for turn in range(10_000):
        for owner, rest in left.items():
            if rest and not owner.is_held:
                left[owner] = rest[owner.read(rest[:50_000]) :]
            peak = max(peak, memory.kept_bytes)
        if turn == 20:
            assert memory.waiting > 40
        if not any(left.values()):
            break
        await asyncio.sleep(0.001)
    assert [owner.frames for owner in owners] == [[frame(400_000)]] * 60, "held, not refused"
    assert memory.held > 0
    assert BYTES_MAX // 2 < peak <= BYTES_MAX + 400_000 + SHARED_BYTES + 60 * SMALL_BYTES
    memory.close()


async def test_large_frames_that_take_turns_do_not_exceed_the_bound_by_more_than_one_of_them() -> None:
    """Each is the oldest for a while, and then a frame of another connection is finished."""

    memory = make_memory(2**18)
    large = [Owner(memory) for _ in range(10)]
    left = {owner: memoryview(frame(2**20)) for owner in large}
    small = Owner(memory)
    for turn in range(100):
        for owner, rest in left.items():
            if not owner.is_held and len(rest) > 10:
                left[owner] = rest[owner.read(rest[: min(30_000, len(rest) - 10)]) :]
        small.read_all(frame(1_000)[:500] if turn % 2 == 0 else frame(1_000)[500:])
        assert not small.is_held, "small frames never wait"
        assert memory.kept_bytes <= 2**18 + 2**20 + SHARED_BYTES * 2 + len(large) * SMALL_BYTES
        await asyncio.sleep(0)
    assert memory.waiting == 9
    memory.close()


async def test_a_connection_that_is_closed_makes_room_for_one_that_waits() -> None:
    memory = make_memory()
    greedy, patient = Owner(memory), Owner(memory)
    greedy.read_all(frame(2 * BYTES_MAX)[:-1])
    patient.read_all(frame(400_000))
    assert [owner.is_held for owner in (patient, greedy)] == [True, False], "one of them must be able to finish"
    greedy.received.forget()
    await asyncio.sleep(0)
    assert not patient.is_held
    patient.received.forget()
    assert memory.kept_bytes == memory.waiting == 0
    memory.close()


# --- time -------------------------------------------------------------------------------------------------------------


async def test_a_frame_that_does_not_continue_is_given_up_and_one_that_does_is_not() -> None:
    memory = make_memory()
    silent, slow, idle = Owner(memory), Owner(memory), Owner(memory)
    idle.read_all(frame(100))
    silent.read_all(frame(100)[:50])
    for at in range(40):
        slow.read_all(frame(100)[at : at + 1])
        await asyncio.sleep(1)
    assert len(silent.given_up) == memory.timed_out == 1
    assert slow.given_up == idle.given_up == []
    assert memory.unfinished == 1
    slow.read_all(frame(100)[40:])
    assert memory.unfinished == memory.kept_bytes == 0
    assert slow.frames == [frame(100)]


async def test_a_frame_that_comes_byte_by_byte_is_given_up_when_others_wait_for_its_memory() -> None:
    memory = make_memory()
    slow, honest = Owner(memory), Owner(memory)
    large = frame(BYTES_MAX)
    slow.read_all(large[:-100])
    sent, at = frame(300_000), 0
    for second in range(40):
        if not slow.given_up:
            slow.read_all(large[second - 100 : second - 99])
        while at < len(sent) and not honest.is_held:
            at += honest.read(sent[at : at + 65_536])
        await asyncio.sleep(1)
    assert len(slow.given_up) == 1
    assert honest.frames == [sent]
    memory.close()


async def test_time_does_not_count_while_the_process_itself_holds_the_connection() -> None:
    memory = make_memory()
    held = Owner(memory)
    held.hold("test")
    held.read(frame(100) + frame(200)[:4])
    await asyncio.sleep(100)
    assert held.given_up == []
    held.release("test")
    await asyncio.sleep(1)
    assert held.frames == [frame(100)]
    await asyncio.sleep(100)
    assert len(held.given_up) == 1
    assert memory.kept_bytes == 0
