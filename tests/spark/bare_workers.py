"""A cluster whose workers have only pyspark, pyarrow and numpy.

    python bare_workers.py NAME_SERVER TOPIC ZIP DIRECTORY

``local-cluster`` starts an executor in a separate process. Spark takes one Python for the driver's helpers and the
executors; so it is given a script, which on the executor is a Python without its site-packages. What was seen is
printed as JSON, one line a step.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from spark_rocket.cli.main import main as rocket

_MASTER = "local-cluster[1,1,700]"
_HAS = ("pyarrow", "numpy", "pyarrow.libs", "numpy.libs")


def bare_python(directory: Path) -> Path:
    """The script."""
    only = directory / "only"
    only.mkdir()
    site = Path(pyspark.__file__).parents[1]
    for name in _HAS:
        if (site / name).exists():
            (only / name).symlink_to(site / name)
    script = directory / "python"
    script.write_text(
        f'#!/bin/sh\n[ -n "$BARE" ] || exec {sys.executable} "$@"\n'
        f'PYTHONPATH="$PYTHONPATH:{only}" exec {sys.executable} -S "$@"\n'
    )
    script.chmod(0o755)
    return script


def absent(batches: Iterator[object]) -> Iterator[object]:
    from importlib.util import find_spec

    import pyarrow as pa

    for _ in batches:
        names = ("spark_rocket", "pandas", "orjson", "uvloop")
        yield pa.record_batch({"name": [name for name in names if find_spec(name) is None]})


def main(name_server: str, topic: str, package: str, directory: str) -> None:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(bare_python(Path(directory)))
    spark = (
        SparkSession.builder.master(_MASTER)
        .config("spark.executorEnv.BARE", "1")
        .config("spark.executor.memory", "600m")
        .config("spark.task.maxFailures", "1")  # failures here are permanent
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    work = Path(pyspark.__file__).with_name("work") / spark.sparkContext.applicationId  # Spark does not remove it

    def write() -> None:
        rows = spark.createDataFrame(
            [(f"{n}", {"p": f"{n}"}) for n in range(20)], "body string, properties map<string,string>"
        )
        rows.write.format("rocket").options(nameServer=name_server, topic=topic).mode("append").save()

    def read() -> list[int]:
        frame = spark.read.format("rocket").options(nameServer=name_server, subscribe=topic).load()
        return [int(bytes(row.body)) for row in frame.where("properties.p = body").collect()]

    try:
        print(json.dumps([row.name for row in spark.range(1).mapInArrow(absent, "name string").collect()]), flush=True)
        for attempt in (read, write):
            try:
                attempt()
            except Exception as error:
                print(json.dumps(str(error)), flush=True)
        spark.addArtifact(package, pyfile=True)
        write()
        print(json.dumps(sorted(read())), flush=True)
        query = (
            spark.readStream.format("rocket")
            .options(nameServer=name_server, subscribe=topic, startingOffsets="earliest")
            .load()
            .select("body", "keys")
            .writeStream.format("rocket")
            .options(nameServer=name_server, topic=f"{topic}-copy", checkpointLocation=f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        print(json.dumps(query.awaitTermination(120)), flush=True)
        rocket(["doctor", "-n", name_server, "--master", _MASTER, "--json"])  # finds this session, and stops it
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
