"""The contract of `Disk` and `File`, for the real machine and for the simulator alike.

What a crash leaves behind is not here: no real machine can be made to lose power in a test. The simulator's own tests
hold that part; this suite holds all that a running process can see, failed syncs and full devices included.
Read next: disk_harness.py, then the parts
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magnetar.testing.contracts.disk_content import ContentContract
from magnetar.testing.contracts.disk_failures import FailuresContract
from magnetar.testing.contracts.disk_harness import DiskHarness
from magnetar.testing.contracts.disk_length import LengthContract
from magnetar.testing.contracts.disk_names import NamesContract

__all__ = ["DiskContract", "DiskHarness"]


class DiskContract(ContentContract, LengthContract, FailuresContract, NamesContract):
    """All parts; what the test of a kind of disk subclasses."""

    @pytest.fixture
    def harness(self) -> Iterator[DiskHarness]:
        raise NotImplementedError("a subclass brings the implementation; it closes the disks afterwards")
