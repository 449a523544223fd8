from __future__ import annotations

import pytest

from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import NoNodeError
from magnetar.metadata.open import open_store
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.system import SystemRuntime


async def test_operations_are_counted_by_kind_and_outcome_and_sessions_by_state() -> None:
    metrics = Metrics()
    config = Config(metadata=MetadataConfig(url="memory:"))
    async with await open_store(config, SystemRuntime(), metrics) as store:
        await store.create("/a")
        await store.put("/a", b"1")
        with pytest.raises(NoNodeError):
            await store.put("/missing", b"1")
        open_text = metrics.render().decode()
    closed_text = metrics.render().decode()
    assert 'magnetar_metadata_operations_total{operation="put",outcome="ok"} 1.0' in open_text
    assert 'magnetar_metadata_operations_total{operation="put",outcome="NoNodeError"} 1.0' in open_text
    assert 'magnetar_metadata_operation_seconds_count{operation="create"} 1.0' in open_text
    assert "magnetar_metadata_sessions_usable 1.0" in open_text
    assert "magnetar_metadata_sessions_usable 1.0" not in closed_text
    assert 'magnetar_metadata_session_changes_total{state="closed"} 1.0' in closed_text
