"""Two commits by turns: what is measured of each, and what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import against
from benchmarks.__main__ import as_comparison
from benchmarks.against import ROOT, Comparison, compare, product_of, summarise
from benchmarks.registry import Benchmark, Pair


def entry(*, lower_is_better: bool) -> Benchmark:
    return Benchmark("some.thing.7", "rows/s", "nothing", lower_is_better, lambda lab, variant: Pair(float, float))


def test_ratios_are_those_of_pairs_and_above_1_where_this_tree_is_better() -> None:
    rates = summarise(entry(lower_is_better=False), [10.0, 20.0, 40.0], [20.0, 20.0, 20.0])
    assert rates == Comparison("some.thing.7", 20.0, 20.0, "rows/s", 1.0, 0.5, 2.0, 3)
    times = summarise(entry(lower_is_better=True), [30.0], [20.0])
    assert (times.ratio, times.min, times.max) == (1.5, 1.5, 1.5)
    assert "0.50 – 2.00" in as_comparison([rates])


@pytest.mark.live
def test_the_other_side_has_the_product_of_the_commit_and_the_benchmarks_of_this_tree() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the history")
    with product_of("HEAD") as directory:
        assert (directory / "spark_rocket" / "__init__.py").is_file()
        assert not (directory / "spark_rocket").is_symlink()
        assert (directory / "benchmarks").resolve() == ROOT / "benchmarks"
    assert not directory.exists()


@pytest.mark.live
def test_both_sides_are_measured_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = tmp_path / "order"
    for side, rate in (("before", 10.0), ("now", 30.0)):
        (tmp_path / side / "benchmarks").mkdir(parents=True)
        (tmp_path / side / "benchmarks" / "__init__.py").touch()
        (tmp_path / side / "benchmarks" / "against.py").write_text(
            f"import sys\nfor _ in sys.stdin:\n    print('{side}', file=open({str(order)!r}, 'a'))\n"
            f"    print({rate}, flush=True)\n"
        )
    monkeypatch.setattr(against, "ROOT", tmp_path / "now")
    compared = compare(entry(lower_is_better=False), tmp_path / "before", 2)
    assert (compared.before, compared.now, compared.ratio, compared.runs) == (10.0, 30.0, 3.0, 2)
    assert order.read_text().split() == ["now", "before", "before", "now", "now", "before"]


@pytest.mark.live
def test_a_benchmark_that_ends_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    monkeypatch.setattr(against, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match="ended with status 1"):
        compare(entry(lower_is_better=False), tmp_path, 1)
