"""``rocket package``: the connector as one zip, for Spark clusters without it on their machines.

The zip contains the code that runs inside Spark (the data source, the client, and the store reader for ``storePath``)
and the two modules by which Spark finds the formats. It contains no servers and no command line. It is pure Python and
needs pyspark, pyarrow and numpy. The build is reproducible.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import click

import spark_rocket
from spark_rocket.cli.arguments import PATH
from spark_rocket.cli.output_file import output_file
from spark_rocket.errors import ConfigError

_LEFT_OUT = {"acl", "broker", "cli", "console", "namesrv", "proxy", "testing"}
_FINDERS = ("pyspark_rocket.py", "pyspark_rocketmq.py")


@click.command()
@click.option(
    "-o",
    "--output",
    type=PATH,
    default=Path("spark_rocket.zip"),
    metavar="FILE",
    help="the zip to write (./spark_rocket.zip); workers look for spark_rocket*.zip",
)
def package(output: Path) -> None:
    """Write the connector as one zip, for spark-submit --py-files or addArtifact(…, pyfile=True).

    The machines that use it need pyspark, pyarrow and numpy.
    """
    if not output.parent.is_dir():
        raise ConfigError(f"-o {output}: directory {output.parent} does not exist.", remedy="Create it first.")
    if output.is_dir():
        raise ConfigError(f"-o {output} is a directory.", remedy=f"Name a file: -o {output / 'spark_rocket.zip'}")
    count = write_package(output)
    print(f"Wrote {output}: {count} files, {output.stat().st_size:,} bytes. Ship it with")
    print(f"  spark-submit --py-files {output} job.py")
    print(f'  spark.addArtifact("{output}", pyfile=True)        in a session, Spark Connect too')
    print("If the driver (or the Spark Connect server) does not have the package either, add:")
    print("  from spark_rocket.datasource import RocketDataSource; spark.dataSource.register(RocketDataSource)")


def write_package(output: Path) -> int:
    """Write the zip and return its number of files."""
    root = Path(spark_rocket.__file__).parent
    files = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in _LEFT_OUT]
    with output_file(output) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as package:
        for path in sorted(files) + [root.parent / name for name in _FINDERS]:
            entry = zipfile.ZipInfo(path.relative_to(root.parent).as_posix())  # dated 1980, for reproducible builds
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            package.writestr(entry, path.read_bytes())
        return len(package.namelist())
