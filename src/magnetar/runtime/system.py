"""SystemRuntime: the real machine behind the seam."""

from __future__ import annotations

from magnetar.runtime.disk import Disk
from magnetar.runtime.offload import Offload
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.system_disk import SystemDisk
from magnetar.runtime.system_entropy import SystemEntropy
from magnetar.runtime.system_offload import SystemOffload


class SystemRuntime(Runtime):
    def __init__(self) -> None:
        self.entropy = SystemEntropy()

    def disk(self, root: str, *, name: str) -> Disk:
        return SystemDisk(root, SystemOffload(name))

    def offload(self, *, name: str) -> Offload:
        return SystemOffload(name)
