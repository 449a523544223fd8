"""What all parts share: how checks are reported, and which servers a check is for."""

from __future__ import annotations

import pytest

pytest_plugins = ["interop.reporting"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drops the tests that are not meant for the server that they would get (`only_on`)."""
    left_out = [item for item in items if not _is_meant_for_its_server(item)]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _is_meant_for_its_server(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("only_on")
    assert mark is None or isinstance(item, pytest.Function)
    return mark is None or any(name in item.callspec.params.values() for name in mark.args)
