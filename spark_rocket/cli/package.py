"""``rocket package``: the connector as one zip, for Spark clusters whose machines do not have it installed.

What goes in is what runs inside Spark (the data source, the client beneath it, and the store's reader for
``storePath``) and the two modules by which Spark finds its formats; no servers, no command line. It is all Python, and
needs pyspark, pyarrow and numpy where it runs. The same sources make the same bytes.
Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import click

import spark_rocket
from spark_rocket.cli.arguments import PATH
from spark_rocket.errors import ConfigError

_PARTS = ("client", "datasource", "protocol", "remoting", "store")
_FINDERS = ("pyspark_rocket.py", "pyspark_rocketmq.py")


@click.command()
@click.option(
    "-o",
    "--output",
    type=PATH,
    default=Path("spark_rocket.zip"),
    metavar="FILE",
    help="./spark_rocket.zip; workers look for spark_rocket*.zip",
)
def package(output: Path) -> None:
    """Write one zip of the connector, for spark-submit --py-files or addArtifact(…, pyfile=True).

    The machines it goes to need pyspark, pyarrow and numpy.
    """
    if not output.parent.is_dir():
        raise ConfigError(f"-o {output}: there is no directory {output.parent}.", remedy="Make it first.")
    count = write_package(output)
    print(f"{output} has {count} files, {output.stat().st_size:,} bytes. Take it along with")
    print(f"  spark-submit --py-files {output} job.py")
    print(f'  spark.addArtifact("{output}", pyfile=True)        in a session, Spark Connect too')
    print("and, where the driver (or the Spark Connect server) does not have the package either:")
    print("  from spark_rocket.datasource import RocketDataSource; spark.dataSource.register(RocketDataSource)")


def write_package(output: Path) -> int:
    """Write the zip; how many files are in it. It is there whole or not at all."""
    root = Path(spark_rocket.__file__).parent
    files = [path for path in root.glob("*.py") if path.is_file()]
    for part in _PARTS:
        files += (root / part).rglob("*.py")
    unfinished = output.with_name(output.name + ".new")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as package:
        for path in sorted(files) + [root.parent / name for name in _FINDERS]:
            entry = zipfile.ZipInfo(path.relative_to(root.parent).as_posix())  # of 1980: the same bytes every time
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            package.writestr(entry, path.read_bytes())
        count = len(package.namelist())
    unfinished.replace(output)
    return count
