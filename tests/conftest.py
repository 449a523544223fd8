from __future__ import annotations

pytest_plugins = ["tests.contract_report"]
