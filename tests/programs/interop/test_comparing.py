"""What differs is named, down to the field."""

from __future__ import annotations

import pytest

from interop.comparing import same


def test_equal_values_pass() -> None:
    same("number", {"a": [1]}, {"a": [1]})


def test_a_field_that_differs_or_is_missing_is_named() -> None:
    with pytest.raises(AssertionError, match=r"number\.a: ours 1, Apache's 2"):
        same("number", {"a": 1}, {"a": 2})
    with pytest.raises(AssertionError, match=r"number\.b: ours '\(absent\)', Apache's 2"):
        same("number", {"a": 1}, {"a": 1, "b": 2})
