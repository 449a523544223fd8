"""Runs the example from nothing to its result: a server, some orders, the pipeline, more orders, the pipeline again.

python -m examples.declarative [--keep DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from magnetar.client import EARLIEST, PulsarClient
from magnetar.errors import MagnetarError, MissingDependencyError
from magnetar.runtime.java import find_java
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.child import Child, free_port
from magnetar.testing.processes.servers import HOST, StandaloneProcess

HERE = Path(__file__).parent
CUSTOMERS = ("Ada", "Barbara", "Edsger", "Grace", "Leslie")
ORDERS = 500
SECONDS_MAX = 600  # Of one run of the pipeline.
START_SECONDS_MAX = 180  # Of Spark, which takes ten on a quiet machine.
NEEDED = {"grpc": "grpcio", "grpc_status": "grpcio-status", "yaml": "pyyaml", "zstandard": "zstandard"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.declarative", description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave everything there, to look at")
    chosen = parser.parse_args()
    try:
        require_connect()
        if chosen.keep is not None:
            return run(chosen.keep.resolve())
        with tempfile.TemporaryDirectory(prefix="magnetar-orders-") as directory:
            return run(Path(directory))
    except MagnetarError as error:
        print(f"example: {error}", file=sys.stderr)
        return 1


def require_connect() -> None:
    """Declarative pipelines run over Spark Connect, which needs a few packages more."""
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        raise MissingDependencyError(
            f"declarative pipelines also need {', '.join(missing)}: run: pip install 'magnetar[spark-pipelines]'"
        )


def run(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    spec = write_spec(directory)
    with StandaloneProcess(directory / "server", "broker.inactive_topics_delete=false") as server:
        for topic in ("orders", "large-orders"):
            asyncio.run(publish(server.url, topic, []))
        large = 0
        for round_number in (1, 2):
            orders = made_up_orders(seed=round_number)
            asyncio.run(publish(server.url, "orders", orders))
            print(f"round {round_number}: {len(orders)} orders published; running the pipeline", flush=True)
            run_pipeline(spec, directory, server)
            large += sum(order["amount"] >= 900 for order in orders)
        found = asyncio.run(read(server.url, "large-orders"))
    show_customers(directory)
    print(f"topic large-orders has {len(found)} messages; {large} orders were large")
    return 0 if len(found) == large else 1


def write_spec(directory: Path) -> Path:
    """The same pipeline, with its storage in this directory."""
    target = directory / "pipeline"
    shutil.copytree(HERE / "transformations", target / "transformations", dirs_exist_ok=True)
    spec = target / "spark-pipeline.yml"
    text = (HERE / "spark-pipeline.yml").read_text()
    spec.write_text(text.replace("file:///tmp/magnetar-orders/storage", (directory / "storage").as_uri()))
    return spec


def made_up_orders(seed: int) -> list[dict[str, object]]:
    chance = random.Random(seed)
    return [{"customer": chance.choice(CUSTOMERS), "amount": round(chance.uniform(1, 1000), 2)} for _ in range(ORDERS)]


async def publish(url: str, topic: str, orders: list[dict[str, object]]) -> None:
    """Makes the topic if it is not there."""
    async with PulsarClient(url, SystemRuntime().entropy) as client:
        producer = await client.producer(topic)
        for order in orders:
            await producer.send(json.dumps(order).encode(), key=str(order["customer"]))


async def read(url: str, topic: str) -> list[bytes]:
    async with PulsarClient(url, SystemRuntime().entropy) as client:
        reader = await client.reader(topic, EARLIEST)
        found = []
        while await reader.has_next():
            found.append((await reader.read(30.0)).payload)
        return found


def run_pipeline(spec: Path, directory: Path, server: StandaloneProcess) -> None:
    """`spark-pipelines run`, as one would type it; what it prints is shown only if it fails."""
    home, environment = spark_home(), environment_of(server)
    with spark_connect(home, environment, directory) as remote:
        done = subprocess.run(
            [home / "bin" / "spark-pipelines", "--remote", remote, "run", "--spec", str(spec)],
            env=environment,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    if done.returncode:
        raise MagnetarError(f"spark-pipelines failed:\n{done.stdout[-4_000:]}")


@contextmanager
def spark_connect(home: Path, environment: Mapping[str, str], directory: Path) -> Iterator[str]:
    """A Spark Connect server for one run, and where it is. `spark-pipelines` would start one by itself, but always at
    the same port, which another one may have."""
    port = free_port(HOST)
    command = [home / "bin" / "spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--conf", f"spark.connect.grpc.binding.port={port}", "spark-internal"]
    log = directory / "connect.log"
    child = Child(command, log=log, env=environment, cwd=directory)  # Tables are in ./spark-warehouse.
    try:
        child.wait_until(lambda: is_answering(port), what="Spark Connect", timeout=START_SECONDS_MAX)
        yield f"sc://{HOST}:{port}"
    finally:
        child.stop(timeout=60)


def is_answering(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def spark_home() -> Path:
    package = find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent


def environment_of(server: StandaloneProcess) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(find_java().home_for_spark()),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(HERE / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "MAGNETAR_URL": server.url,
        "MAGNETAR_ADMIN_URL": server.admin_url,
    }


def show_customers(directory: Path) -> None:
    import pyarrow.dataset as ds

    table = ds.dataset(directory / "spark-warehouse" / "customers", format="parquet").to_table().sort_by("customer")
    print(f"{'customer':<10} {'orders':>7} {'amount':>12}")
    for row in table.to_pylist():
        print(f"{row['customer']:<10} {row['orders']:>7,} {row['amount']:>12,.2f}")


if __name__ == "__main__":
    sys.exit(main())
