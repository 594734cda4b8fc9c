"""What ``rocket doctor`` checks on this machine and on Spark's executors: Python, Java, Spark and its workers."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from spark_rocket.cli.commands.doctor_finding import Finding

_VERSION_TIMEOUT_S = 10.0  # for a program that prints its version
_MIN_VERSIONS = {"pyspark": (4, 0), "pyarrow": (18,), "numpy": (2,), "pandas": (2, 2)}


def check_python() -> Iterator[Finding]:
    version = platform.python_version()
    grade = "ok" if sys.version_info >= (3, 11) else "wrong"
    remedy = "" if grade == "ok" else "Use Python 3.11 or newer."
    yield Finding("Python", grade, f"{version} at {sys.executable}", remedy)
    for package, lowest in _MIN_VERSIONS.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, "wrong", "not installed here", f"pip install {package}")
            continue
        numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
        if numbers < lowest:
            remedy = f'Required: {_dotted(lowest)} or newer. Run pip install -U "{package}>={_dotted(lowest)}"'
            yield Finding(package, "wrong", found, remedy)
        elif package == "pyspark" and numbers < (4, 2):
            remedy = "Use PySpark 4.2 or newer, or set trigger with maxOffsetsPerTrigger or maxBytesPerTrigger."
            yield Finding(package, "warning", found, remedy)
        elif package == "pandas" and numbers >= (3,):
            yield Finding(package, "warning", found, 'PySpark does not fully support it. Run pip install "pandas<3"')
        else:
            yield Finding(package, "ok", found)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def check_java() -> Finding:
    """Check the Java that Spark's launcher uses: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = "Install Java 17 or newer (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME."
    if java is None:
        return Finding("Java", "wrong", "not found on PATH, and JAVA_HOME is not set", remedy)
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as problem:
        return Finding("Java", "wrong", f"{java} failed: {problem}", remedy)
    found = re.search(r'version "(?:1\.)?(\d++)[^"]*"', output)
    if found is None:
        return Finding("Java", "warning", f"unknown version of {java}", "Spark 4 needs Java 17 or newer.")
    if int(found[1]) < 17:
        return Finding("Java", "wrong", f"{found[0]} at {java}", remedy)
    return Finding("Java", "ok", f"{found[0]} at {java}")


def check_module() -> Finding:
    spec = importlib.util.find_spec("pyspark_rocket")
    remedy = "Install spark-rocket into this Python: pip install -e . in its checkout"
    if spec is None:
        return Finding('format("rocket")', "wrong", "this Python has no module pyspark_rocket", remedy)
    if not hasattr(importlib.import_module("pyspark_rocket"), "DefaultSource"):
        return Finding('format("rocket")', "wrong", f"{spec.origin} cannot be imported", "See the packages above.")
    return Finding('format("rocket")', "ok", f"found in {spec.origin}")


_ASK_WORKER = (
    "import sys; sys.path = [p for p in sys.path if p]; import importlib.util as u; "
    "print(sys.executable, *[n for n in ('pyspark_rocket', 'pyarrow', 'numpy') if u.find_spec(n) is None])"
)


def check_workers_python() -> Finding:
    name = os.environ.get("PYSPARK_PYTHON")
    setting = f"PYSPARK_PYTHON={name}" if name else "python3, since PYSPARK_PYTHON is not set"
    remedy = f"export PYSPARK_PYTHON={sys.executable}"
    try:
        done = subprocess.run(
            [name or "python3", "-c", _ASK_WORKER],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
        executable, *missing = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as problem:
        return Finding("workers' Python", "wrong", f"{setting}: failed: {problem}", remedy)
    if missing:
        return Finding("workers' Python", "wrong", f"{setting} ({executable}) lacks {', '.join(missing)}", remedy)
    return Finding("workers' Python", "ok", setting if executable == name else f"{setting}: {executable}")


def check_executors(ask: Callable[[], list[dict[str, object]]]) -> Iterator[Finding]:
    """Check the workers: one row for each machine and Python."""
    try:
        workers = ask()
    except Exception as error:  # Spark's errors have no common class
        first = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        remedy = "Check the address of --master or --remote, and Spark's log."
        yield Finding("executors", "wrong", f"the job failed: {first}", remedy)
        return
    for worker in workers:
        about = f"executor on {worker['host']}"
        yield Finding(about, "ok", f"Python {worker['python']} at {worker['executable']}")
        missing = worker["missing"]
        if isinstance(missing, list) and missing:
            remedy = (
                "Ship the connector: rocket package, then --py-files spark_rocket.zip."
                if missing == ["spark_rocket"]
                else "Install them there, or set PYSPARK_PYTHON to a Python with them."
            )
            yield Finding(about, "wrong", f"lacks {', '.join(missing)}", remedy)
        unreachable = worker["unreachable"]
        assert isinstance(unreachable, dict)
        for address, problem in unreachable.items():
            yield Finding(
                about,
                "wrong",
                f"cannot reach {address}: {problem}",
                "Open the port between them. Brokers must advertise (brokerIP1) an address that executors can reach. "
                "Otherwise name it in --address-map, and in the option addressMap.",
            )
        if not unreachable:
            yield Finding(about, "ok", "reaches the name servers and all brokers")
        if worker.get("read"):
            remedy = "The checks of the topic above show what is missing, and executors may need another address."
            yield Finding(about, "wrong", f"cannot read: {worker['read']}", remedy)
        elif "read" in worker:
            yield Finding(about, "ok", "reads the topic")
