"""Every snippet of the pages is run by a test, or gives the reason why not."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from spark_rocket.cli import main
from spark_rocket.cli.main import rocket
from spark_rocket.testing import LocalCluster
from tests.cli.test_rocket import found, started
from tests.kit.pages import PAGES, ROOT, RUN, Prompt, commands, examples

pytestmark = pytest.mark.live

#: Pages whose snippets a test of their own runs, from the first to the last.
ELSEWHERE = {
    **{
        f"docs/guides/{name}.md": "tests/spark/test_datasource_docs.py"
        for name in (
            *("connect", "read", "write", "typed-rows", "exactly-once", "sql", "lag"),
            *("from-kafka", "from-rocketmq-spark"),
        )
    },
    **dict.fromkeys(
        ("docs/guides/python-client.md", "docs/reference/client.md"), "tests/repository/test_client_docs.py"
    ),
    "docs/guides/getting-started.md": "tests/spark/test_recipes.py",
    **dict.fromkeys(("docs/guides/accounts.md", "docs/guides/permissions.md"), "tests/cli/test_accounts_guide.py"),
    "docs/guides/arrow.md": "tests/datasource/test_arrow_guide.py",
    **{
        page: "tests/repository/test_translations.py" for page in PAGES if page.endswith(".zh.md")
    },  # the code is the same
    "docs/guides/testing.md": "tests/testing/test_guide.py",
    "docs/recipes/change-data.md": "tests/spark/test_change_data.py",
    **{
        f"docs/recipes/{name}.md": "tests/spark/test_recipes.py"
        for name in (
            *(
                "dead-letters",
                "enrich",
                "exactly-once",
                "lakes",
                "parquet-delta",
                "replay",
                "scheduled",
                "state",
                "stream-join",
            ),
        )
    },
}
HERE = {
    "README.md",
    "docs/guides/apache-cluster.md",
    "docs/guides/console.md",
    "docs/guides/deployment.md",
    "docs/guides/grpc-clients.md",
    "docs/guides/monitoring.md",
    "docs/guides/operations.md",
    "docs/guides/pipelines.md",
    "docs/guides/spark-clusters.md",
    "docs/guides/tools.md",
}
#: Pages whose blocks without a file's name are for Python's prompt.
PASTED = [
    "README.md",
    "docs/guides/getting-started.md",
    "docs/guides/tools.md",
    *sorted(page for page in PAGES if "/recipes/" in page),
]
#: Blocks to read: settings, output, the languages of other clients (tests/proxy runs these), calls of openssl
#: (tests/broker/test_tls.py runs these), and of programs that the tests do not have (docker, kubectl).
SHOWN = {"", "dockerfile", "text", "json", "yaml", "properties", "java", "js", "go", "bash", "nginx"}


@pytest.mark.parametrize("page", PASTED)
def test_what_is_for_the_prompt_can_be_pasted_into_it(page: str) -> None:
    blocks = [example for example in examples(page) if example.language == "python" and example.title is None]
    for block in blocks:
        Prompt(f"{page}:{block.line}", only_read=True).paste(block.code)


def test_every_snippet_has_a_language_and_a_test_or_a_reason() -> None:
    reasons = []
    for page in PAGES:
        fences = len(re.findall(r"^```", (ROOT / page).read_text(encoding="utf-8"), re.M))
        assert fences == 2 * len(examples(page)), page
        for example in examples(page):
            where = f"{page}:{example.line}"
            assert example.language in RUN | SHOWN, where
            if example.language in SHOWN:
                assert not re.search(r"^(\$ |rocket |python |from \w+ import )", example.code, re.M), where
            if example.not_run and not page.endswith(".zh.md"):
                reasons.append(where)
            elif example.language in RUN:
                assert page in HERE or ELSEWHERE.get(page), f"{where} is run by no test"
    assert len(reasons) <= 4, reasons
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running:
        for topic in ("orders", "paid"):
            running.create_topic(topic, 2)
        yield running


@pytest.fixture
def here(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.name_server)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _listed() -> list[tuple[str, str]]:
    found = []
    for page in sorted(HERE):
        for example in examples(page):
            if example.language == "shell" and not example.not_run:
                found += [(page, shlex.join(words)) for words, _ in commands(example.code)]
    return found


@pytest.mark.parametrize(("page", "line"), _listed(), ids=[f"{page}-{line}" for page, line in _listed()])
def test_a_command_is_one(page: str, line: str) -> None:
    """The program has the verb and the options, with values that it takes."""
    words = [word for word in shlex.split(line) if not re.fullmatch(r"\w+=\S*", word)]
    assert words.pop(0) == "rocket"
    command: click.Command = rocket
    context = click.Context(rocket, info_name="rocket")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        assert inner is not None, line
        words.pop(0)
        context = click.Context(inner, parent=context, info_name=inner.name)
        command = inner
    command.make_parser(context).parse_args(words)


#: Verbs of the list of commands that change nothing. These are run.
LOOK = {"cluster", "topic", "offsets", "completion"}


def test_commands_that_change_nothing(cluster: LocalCluster, here: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["offsets", "reset", "-g", "group", "-t", "orders", "--earliest", "--yes"]) == 0
        ran = [line for page, line in _listed() if page == "docs/guides/tools.md" and shlex.split(line)[1] in LOOK]
        for line in ran:
            assert main(shlex.split(line)[1:]) in (0, None), line
    assert len(ran) == 4
    assert "DefaultCluster" in said.getvalue()


def test_what_grpc_clients_need_first(cluster: LocalCluster, here: Path) -> None:
    listing, _ = (example for example in examples("docs/guides/grpc-clients.md") if example.language == "shell")
    for (_, *words), _ in commands(listing.code)[1:]:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(words) == 0
    (python,) = (example for example in examples("docs/guides/grpc-clients.md") if example.language == "python")
    code = python.code.replace("127.0.0.1:8081", cluster.grpc_endpoint)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "b'one tea'" in done.stdout


def test_metrics_and_traces_in_python(cluster: LocalCluster, here: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    exec("from spark_rocket.client import Producer; from spark_rocket.model import Message", names)
    ran = 0
    for example in examples("docs/guides/monitoring.md"):
        if example.language == "python":
            code = example.code.replace("9400)", "0)")
            exec(compile("\n" * example.line + code, "docs/guides/monitoring.md", "exec"), names)
            ran += 1
    names["endpoint"].close()  # type: ignore[attr-defined]
    assert ran == 3


def test_metrics_of_a_server(here: Path) -> None:
    (transcript,) = (example for example in examples("docs/guides/monitoring.md") if example.language == "console")
    (up, shown), (curl, answer) = commands(transcript.code)
    assert (up[0], curl[0], curl[-1]) == ("rocket", "curl", "http://127.0.0.1:5557/ready")
    ports = ["--nameserver-port", 0, "--broker-port", 0, "--grpc-port", 0, "--metrics-port", 0, "--no-console"]
    with started(*up[1:], *ports, last="metrics") as (_, said):
        for word in shown[0].split():
            assert word.replace(":5557/metrics,", "") in said
        with urllib.request.urlopen(found(r"(http://\S+)/metrics", said) + "/ready", timeout=30) as ready:
            told = ready.read().decode()
    for name in re.findall(r'"(\w+)"', answer[0]):
        assert f'"{name}"' in told
