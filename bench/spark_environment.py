"""The Python environment that both sides of the Spark rows run in: PySpark as old as the newest connector for Kafka.

Made once, below build/: PySpark alone is installed there. Everything else, magnetar included, comes from the
environment that runs the benchmark: its folder of packages stands behind the new one's own, so its PySpark is not seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from bench.bookie_contest import BUILD
from magnetar.errors import ProcessFailedError

PYSPARK = "4.2.0"
_INSTALL_TIMEOUT_S = 1_800  # A download of 430 MB, and the making of a package of it.


def spark_python() -> Path:
    """Its interpreter; made when it is asked for first."""
    home = (BUILD / f"pyspark-{PYSPARK}").resolve()
    python = home / "bin" / "python"
    if not (home / ".installed").exists():
        print(f"  installing PySpark {PYSPARK} below {home} (once, about 430 MB)", file=sys.stderr, flush=True)
        _make(home)
        (home / ".installed").touch()
    return python


def _make(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    BUILD.mkdir(exist_ok=True)
    _run(sys.executable, "-m", "venv", "--without-pip", str(home))
    python = str(home / "bin" / "python")
    uv = shutil.which("uv")
    install = (
        [uv, "pip", "install", "--python", python]
        if uv
        else [sys.executable, "-m", "pip", "--python", python, "install"]
    )
    with tempfile.TemporaryDirectory(dir=BUILD) as temporary:  # The package is half a gigabyte: not into memory.
        _run(*install, "--quiet", f"pyspark=={PYSPARK}", temporary=temporary)
    packages = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "behind.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")


def _run(*command: str, temporary: str | None = None) -> None:
    environment = {**os.environ, "TMPDIR": temporary} if temporary else None
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False, env=environment
    )
    if done.returncode:
        raise ProcessFailedError(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
