"""The window of adds in flight: which bookies have stored which entry, and how far the confirmed prefix reaches.

Invariant: An entry leaves the window as confirmed only if an ack quorum of bookies that are in its write set now have
           stored it, and only after all entries before it: confirmations are in order, without a gap. The rule itself
           is `QuorumSizes.is_acknowledged` (quorum/sizes.py). `take_confirmed` has it inline, since it runs for every
           entry; the tests compare the two. While an ensemble change is being written nothing is confirmed: the new
           fragment begins right after the last confirmed entry, which must not move between the decision and the write.
Format:    One number per entry; bit p means that the bookie at position p of the ensemble has stored it. The bits of a
           replaced bookie are cleared: its copies are not where the metadata will name them. Buffers are header,
           payload, header, payload … as they are sent, kept until confirmed, so that they can be sent again. The lists
           are parallel, with one loop per received run and no object per entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from magnetar.quorum.sizes import QuorumSizes, write_sets
from magnetar.wire.bookkeeper.frames import Buffer

Token = TypeVar("Token")


class PendingAdds(Generic[Token]):
    """Does no I/O and reads no clock. Entry ids are consecutive; a token is returned to the caller with its entry."""

    __slots__ = (
        "_ack_quorum",
        "_buffers",
        "_everybody",
        "_masks",
        "_sizes",
        "_tokens",
        "_write_masks",
        "_write_sets",
        "confirmed_length",
        "first_entry_id",
        "is_held",
        "length",
        "next_entry_id",
    )

    def __init__(self, sizes: QuorumSizes, first_entry_id: int = 0, length: int = 0) -> None:
        """`length` is that of all payloads before the first entry."""
        self._sizes = sizes
        self._ack_quorum = sizes.ack
        self._write_sets = write_sets(sizes.ensemble, sizes.write)
        self._write_masks = [sum(1 << position for position in members) for members in self._write_sets]
        self._everybody = sizes.ensemble == sizes.write
        self.is_held = False
        self._masks: list[int] = []
        self._tokens: list[Token] = []
        self._buffers: list[Buffer] = []
        self.first_entry_id = first_entry_id
        """The oldest entry that is not confirmed."""
        self.next_entry_id = first_entry_id
        self.length = length
        """The bytes of all payloads, those in the window included."""
        self.confirmed_length = length

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, header: Buffer, payload: Buffer, token: Token) -> None:
        """The caller made the header for `next_entry_id` and the length that includes this payload."""
        self._buffers += (header, payload)
        self._tokens.append(token)
        self._masks.append(0)
        self.length += len(payload)
        self.next_entry_id += 1

    def frames(self, position: int, first: int, end: int) -> list[Buffer]:
        """Returns this position's share of the entries from `first` up to `end`, without what is confirmed."""
        base = self.first_entry_id
        first = max(first, base)
        buffers = self._buffers
        if self._everybody:
            return buffers[2 * (first - base) : 2 * (end - base)]
        ensemble_size = self._sizes.ensemble
        holders = self._write_masks
        share: list[Buffer] = []
        for entry_id in range(first, end):
            if holders[entry_id % ensemble_size] >> position & 1:
                at = 2 * (entry_id - base)
                share += buffers[at : at + 2]
        return share

    def mark(self, position: int, entry_ids: Sequence[int]) -> None:
        """Records that the bookie at this position has stored these. Late, repeated and foreign ids change nothing."""
        base = self.first_entry_id
        masks = self._masks
        bit = 1 << position
        count = len(masks)
        if self._everybody:
            for entry_id in entry_ids:
                index = entry_id - base
                if 0 <= index < count:  # Otherwise other bookies have confirmed it.
                    masks[index] |= bit
            return
        ensemble_size = self._sizes.ensemble
        holders = self._write_masks
        for entry_id in entry_ids:
            index = entry_id - base
            if 0 <= index < count:
                # The late answer of a bookie that has come back at another position may be for an entry not its own.
                masks[index] |= bit & holders[entry_id % ensemble_size]

    def take_confirmed(self) -> list[Token]:
        """Removes the confirmed prefix and returns its tokens: those of `first_entry_id` on, as it was before."""
        if self.is_held:
            return []
        enough = self._ack_quorum
        count = 0
        for mask in self._masks:
            if mask.bit_count() < enough:  # `QuorumSizes.is_acknowledged`, inline.
                break
            count += 1
        if not count:
            return []
        tokens = self._tokens[:count]
        self.confirmed_length += sum(map(len, self._buffers[1 : 2 * count : 2]))
        del self._tokens[:count], self._masks[:count], self._buffers[: 2 * count]
        self.first_entry_id += count
        return tokens

    def hold(self) -> None:
        """Confirms nothing until `release`."""
        self.is_held = True

    def release(self, replaced: Sequence[int] = ()) -> None:
        """Ends `hold`. These positions have other bookies now, which have stored nothing yet."""
        self.forget(replaced)
        self.is_held = False

    def forget(self, positions: Sequence[int]) -> None:
        """Forgets what was stored at these positions: it will be sent again."""
        if positions:
            kept = ~sum(1 << position for position in positions)
            self._masks = [mask & kept for mask in self._masks]

    def can_continue_without(self, failed: Sequence[int]) -> bool:
        """Whether every entry can reach the ack quorum although these positions store nothing more."""
        others = ~sum(1 << position for position in failed)
        return all(self._sizes.is_acknowledged(holders & others) for holders in self._write_masks)

    def drain(self) -> list[Token]:
        """Gives the window up: nothing more of it will be confirmed. Entry ids and length go back to the prefix."""
        tokens = self._tokens
        self._tokens, self._masks, self._buffers = [], [], []
        self.length = self.confirmed_length
        self.next_entry_id = self.first_entry_id
        self.is_held = False
        return tokens
