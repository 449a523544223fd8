"""ByteRate: keeps the bytes that many tasks move below a number per second.

Order:     first come, first served. A caller reserves its bytes and waits until the reservation before it is over, so a
           chunk may be larger than what a second allows, and no caller starves.
"""

from __future__ import annotations

import asyncio


class ByteRate:
    def __init__(self, bytes_per_s: int) -> None:
        """0: no limit."""
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def take(self, count: int) -> None:
        if not self._bytes_per_s:
            return
        now = asyncio.get_running_loop().time()
        begins_at = max(now, self._free_at)
        self._free_at = begins_at + count / self._bytes_per_s
        if begins_at > now:
            await asyncio.sleep(begins_at - now)
