"""SystemEntropy: the operating system's randomness and wall clock."""

from __future__ import annotations

import random
import time
import uuid

from magnetar.runtime.entropy import Entropy


class SystemEntropy(Entropy):
    def __init__(self) -> None:
        self.random = random.SystemRandom()

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
