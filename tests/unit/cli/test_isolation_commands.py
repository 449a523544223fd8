from __future__ import annotations

from typing import Any

import pytest

from magnetar.broker.cluster.isolation import IsolationPolicy
from magnetar.cli.admin import isolation
from magnetar.errors import ArgumentError

PATH = "clusters/c/namespaceIsolationPolicies"


class Server:
    def __init__(self) -> None:
        self.clusters = ["c"]
        self.policies: dict[str, Any] = {}
        self.deleted: list[str] = []

    def get(self, path: str) -> Any:
        return self.clusters if path == "clusters" else self.policies

    def exists(self, path: str) -> bool:
        assert path == PATH
        return bool(self.policies)

    def post(self, path: str, body: Any) -> None:
        self.policies[path.removeprefix(f"{PATH}/")] = body

    def delete(self, path: str) -> None:
        self.deleted.append(path)


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(isolation, "AdminClient", lambda _url: server)
    return server


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_policy_is_set_and_listed(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    isolation.list_()
    assert len(lines(capsys)) == 1
    isolation.set_("sales", ["sales/.*", "shop/eu"], ["a-.*"], ["b-.*"], 2)
    parsed = IsolationPolicy.from_json(server.policies["sales"])
    assert (parsed.primaries_min, parsed.is_for("shop/eu"), parsed.is_secondary("b-1:8080")) == (2, True, True)
    isolation.list_()
    assert lines(capsys)[1:] == ["sales sales/.*, shop/eu a-.* b-.* 2"]


def test_a_policy_is_deleted(server: Server) -> None:
    isolation.delete("a b", yes=True)
    assert server.deleted == [f"{PATH}/a+b"]


def test_the_cluster_must_be_named_if_several_are_known(server: Server) -> None:
    server.clusters = ["c", "d"]
    with pytest.raises(ArgumentError, match="choose one of the clusters c, d with --cluster"):
        isolation.delete("sales", yes=True)
    isolation.delete("sales", "c", yes=True)
    assert server.deleted == [f"{PATH}/sales"]
