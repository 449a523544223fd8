"""What the parts of the metadata contract share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from magnetar.metadata.store import MetadataStore
from magnetar.testing.contracts.metadata_harness import StoreHarness


async def value_of(store: MetadataStore, path: str) -> bytes:
    node = await store.get(path)
    assert node is not None, f"{path} does not exist"
    return node.value


class StoreContract:
    """Two sessions with one tree; a test module brings the `harness` fixture."""

    @pytest_asyncio.fixture
    async def store(self, harness: StoreHarness) -> AsyncIterator[MetadataStore]:
        async with await harness.connect() as store:
            yield store

    @pytest_asyncio.fixture
    async def other(self, harness: StoreHarness) -> AsyncIterator[MetadataStore]:
        async with await harness.connect() as store:
            yield store
