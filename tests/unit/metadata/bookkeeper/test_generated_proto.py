"""The generated files are those of the committed .proto files."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.generate_proto import SOURCE, generate, proto_files, stale


def test_the_generated_files_match_their_proto_files() -> None:
    assert stale() == [], "run: make proto"


def test_a_changed_proto_file_is_noticed(tmp_path: Path) -> None:
    for proto in proto_files():
        (tmp_path / proto).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / proto, tmp_path / proto)
    generate(tmp_path, tmp_path)
    assert stale(tmp_path) == []
    changed = next(path for path in tmp_path.rglob("cookie.proto"))
    changed.write_text(changed.read_text().replace("indexDirs = 5", "indexDirs = 6"))
    assert [path.name for path in stale(tmp_path)] == ["cookie_pb2.py"]


def test_generated_files_do_not_depend_on_the_release_of_the_generator(tmp_path: Path) -> None:
    for path in generate(tmp_path):
        assert "runtime_version" not in (tmp_path / path).read_text()
