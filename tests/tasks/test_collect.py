"""Collect: every kind of source becomes Problems, every bad row a reject with its place."""

import gzip
import json
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from klear.configs.settings.base import Workers
from klear.configs.settings.sources import CollectSettings, Source
from klear.eval.records import Problem, Rejected, problem_id, row_files, tables
from klear.tasks.data import sources as module
from klear.tasks.data.collect import collect
from klear.tasks.engine.run import Run
from klear.tasks.store.store import Store, content_digest, scan
from klear.tests.bench.bench_streaming import write
from tests.tasks.manifests_by_hand import jsonl, kept_in, rejected_in

GOOD = b'{"problem": "1+1?", "answer": "2"}\n'
MIB = 1 << 20


def collected(out: Path, settings: CollectSettings, seed: int = 0) -> dict[str, float]:
    out.mkdir(parents=True, exist_ok=True)
    return dict(collect.body(out, settings=settings, seed=seed))


def run(root: Path, *sources: Source) -> tuple[list[Problem], list[Rejected], dict[str, float]]:
    metrics = collected(root / "out", CollectSettings(root=str(root), sources=sources))
    kept, rejected = kept_in(root / "out"), rejected_in(root / "out")
    assert (len(kept), len(rejected)) == (metrics["kept"], metrics["rejected"])
    return kept, rejected, metrics


def test_rows_of_several_files_and_formats_become_problems_in_order(tmp_path):
    jsonl(tmp_path / "d" / "a.jsonl", {"problem": "1+1?", "answer": "2"})
    more = {"problem": "2+2?", "answer": 4}
    (tmp_path / "d" / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps(more).encode()))
    last = pa.Table.from_pylist([{"problem": "3+3?", "answer": "6"}])
    pq.write_table(last, tmp_path / "c.parquet")
    source = Source(name="sums", files=("d/*", "c.parquet"))
    kept, rejected, metrics = run(tmp_path, source)
    assert [(p.prompt, p.answer) for p in kept] == [("1+1?", "2"), ("2+2?", "4"), ("3+3?", "6")]
    assert {p.source for p in kept} == {"sums"}
    assert rejected == []
    assert metrics["kept/sums"] == 3


def test_a_bad_row_is_rejected_with_file_row_field_and_reason_and_the_rest_goes_on(tmp_path):
    jsonl(
        tmp_path / "x" / "bad.jsonl",
        {"problem": "fine", "answer": "1"},
        "{no json",
        {"answer": "1"},
        {"problem": "no answer"},
        {"problem": "p", "answer": {"a": 1}},
        {"problem": "p", "answer": True},
        '{"problem": "p", "answer": NaN}',
        '{"problem": "lone \\ud800", "answer": "1"}',
        {"problem": "also fine", "answer": "2"},
    )
    source = Source(name="s", files=("x/bad.jsonl",), answer_field="answer")
    kept, rejected, metrics = run(tmp_path, source)
    assert [p.prompt for p in kept] == ["fine", "also fine"]
    reasons = [r.reason for r in rejected]
    assert reasons[0].startswith("x/bad.jsonl row 2: no JSON")
    assert reasons[1:6] == [
        "x/bad.jsonl row 3: field problem: missing",
        "x/bad.jsonl row 4: field answer: missing",
        "x/bad.jsonl row 5: field answer: must be text or a number, this is a dict",
        "x/bad.jsonl row 6: field answer: must be text or a number, this is a bool",
        "x/bad.jsonl row 7: field answer: nan is no answer",
    ]
    assert "row 8: field prompt: Input should be a valid string" in reasons[6]
    assert json.loads(rejected[2].row) == {"problem": "no answer"}
    assert rejected[2].id == Problem(domain="math", prompt="no answer", answer="x").id
    assert metrics["rejected/s"] == 7


def source(*files: str, **fields) -> Source:
    return Source.model_validate({"name": "s", "files": files, "answer_field": "answer", **fields})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "source 's' gives no problem: 0 rows"),
        (b'{"q": "1+1?"}\n' * 3, 'no problem: 3 rows .* row 1: field answer: missing; .*"q"'),
    ],
)
def test_a_file_that_gives_no_problem_is_an_error_that_names_it(tmp_path, content, message):
    (tmp_path / "r.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        run(tmp_path, source("r.jsonl"))


def test_a_row_beyond_the_limit_is_a_reject_and_the_rest_of_its_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "LARGEST_ROW", 2 * MIB)
    big = {"problem": "p", "answer": "1", "more": "x" * (3 * MIB)}
    small = {"problem": "1+1?", "answer": "2", "more": ""}
    (tmp_path / "r.jsonl").write_bytes(json.dumps(big).encode() + b"\n" + GOOD)
    (tmp_path / "end.jsonl").write_bytes(GOOD + json.dumps(big).encode())
    pq.write_table(pa.Table.from_pylist([small, big, small]), tmp_path / "r.parquet")
    files = source("r.jsonl", "end.jsonl", "r.parquet", where={"more": ""})
    kept, rejected, _ = run(tmp_path, files)
    assert [p.prompt for p in kept] == ["1+1?"] * 4
    assert [r.reason for r in rejected] == [
        f"{place}: {row_files.TOO_LONG}"
        for place in ("r.jsonl row 1", "end.jsonl row 2", "r.parquet row 2")
    ]


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (["math", ""], [0, 3, 4, 5, 6]),
        ("math*", [0, 1]),  # a star: any end
        ("", [3, 4, 5, 6]),  # nothing, however it is written
        (2024, [8]),
    ],
)
def test_where_compares_values_of_every_kind_and_what_it_leaves_out_is_counted(
    tmp_path, wanted, kept
):
    values = ("math", "math_1", "code", "", None, [], {}, ["a.py"], 2024.0, 3.5)
    rows = ({"problem": f"p{i}", "answer": "1", "of": v} for i, v in enumerate(values))
    jsonl(tmp_path / "r.jsonl", *rows)
    problems_kept, rejected, metrics = run(tmp_path, source("r.jsonl", where={"of": wanted}))
    assert ([p.prompt for p in problems_kept], rejected) == ([f"p{i}" for i in kept], [])
    assert metrics["left_out"] == metrics["left_out/s"] == len(values) - len(kept)


def test_a_row_that_numbers_itself_is_called_by_its_prompt(tmp_path):
    """Two files that both count from 1 hold different problems."""
    for name in ("algebra", "geometry"):
        row = {"id": "1", "domain": "math", "prompt": name, "answer": "1"}
        jsonl(tmp_path / f"{name}.jsonl", row)
    kept, _, _ = run(tmp_path, Source(name="s", files=("*.jsonl",), by_shape=True))
    assert [p.id for p in kept] == [problem_id(name) for name in ("algebra", "geometry")]


def test_a_date_that_nobody_named_is_read_where_it_is_one_and_rejects_no_row(tmp_path):
    dates = {"2024-08-01": "2024-08-01", 1722470400: "2024-08-01", 1722470400000: "2024-08-01",
             2023: None, 20240801: None, "May 2021": None}  # fmt: skip
    rows = ({"question": f"{i}?", "answer": "1", "date": d} for i, d in enumerate(dates))
    jsonl(tmp_path / "r.jsonl", *rows)
    kept, rejected, _ = run(tmp_path, Source(name="s", files=("r.jsonl",), by_shape=True))
    assert ([p.date for p in kept], rejected) == ([*dates.values()], [])
    (tmp_path / "named").mkdir()
    (tmp_path / "r.jsonl").rename(tmp_path / "named/r.jsonl")
    named = source("r.jsonl", prompt_field="question", date_field="date")
    _, rejected, _ = run(tmp_path / "named", named)
    assert [r.reason.rpartition(": ")[2] for r in rejected] == [
        f"{date!r} is no ISO date and no seconds since 1970"
        for date, day in dates.items() if not day
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["files", "dataset"])
def test_a_prompt_is_looked_up_by_a_field_where_the_table_has_it(tmp_path, monkeypatch, place):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    jsonl(tmp_path / "rows.jsonl", *({"key": k, "a": "1"} for k in ("x", "y", "z")))
    for file, rows in {"0": {"x": 1, "y": 2}, "1": {"z": 1}}.items():
        table = ({"k": k, "t": f"{k}?", "n": n} for k, n in rows.items())
        jsonl(tmp_path / "said" / f"train-{file}.jsonl", *table)
    where = {"files": ["said/*.jsonl"], "dataset": str(tmp_path / "said")}[place]
    lookup_fields = {place: where, "key_field": "k", "text_field": "t", "where": {"n": 1}}
    lookup = {"tables": {"said": lookup_fields}, "index_field": "key"}
    read = source("rows.jsonl", prompt_field="key", answer_field="a", lookup=lookup)
    kept, rejected, _ = run(tmp_path, read)
    assert ([p.prompt for p in kept], len(rejected)) == (["x?", "z?"], 1)


LOOKUP = {"tables": {"t/train": {"files": ["looked.jsonl"], "text_field": "text"}}}


@pytest.fixture
def settings(tmp_path: Path) -> CollectSettings:
    for name in "abcd":
        rows = [{"p": f"{name}{i}", "a": str(i) if i % 3 else ""} for i in range(4)]
        jsonl(tmp_path / f"{name}.jsonl", *rows)
    rows = [{"p": "-", "a": "1", "dataset": "t", "split": "train", "index": i} for i in range(3)]
    jsonl(tmp_path / "refer.jsonl", *rows)
    jsonl(tmp_path / "looked.jsonl", {"text": "found 0"}, {"text": "found 1"})
    fields: dict[str, Any] = {"prompt_field": "p", "answer_field": "a"}
    sources = (
        Source(name="letters", files=("[a-d].jsonl",), **fields),
        Source(name="two", files=("[a-d].jsonl",), limit=5, **fields),
        Source(name="made", kind="generated", family="countdown", size=5),
        source("refer.jsonl", name="refers", lookup=LOOKUP, **fields),
    )
    return CollectSettings(root=str(tmp_path), sources=sources)


def test_collect_is_keyed_by_the_bytes_of_its_files_and_not_by_their_times(settings, tmp_path):
    """Those of lookup tables and of the clones of datasets among them."""
    jsonl(tmp_path / "clone" / "train.jsonl", {"problem": "p", "answer": "1"})
    clone = Source(name="cloned", kind="hub", dataset=str(tmp_path / "clone"))
    settings = settings.model_copy(update={"sources": (*settings.sources, clone)})
    key = partial(collect.key, (), settings, Run(store=Store(tmp_path / "store")))
    before = key()
    for name in ("a.jsonl", "looked.jsonl", "clone/train.jsonl"):
        file = tmp_path / name
        content = file.read_bytes()
        file.touch()
        assert key() == before
        file.write_bytes(content + b"\n")
        assert key() != before
        file.write_bytes(content)


def digest(out: Path) -> str:
    return content_digest(scan(out))


def test_what_any_number_of_workers_reads_in_pieces_is_what_the_files_hold(tmp_path, settings):
    jsonl(tmp_path / "ds.jsonl", {"problem": "1+1?", "answer": "2"})
    sources = (*settings.sources, Source(use="deepscaler", files=("ds.jsonl",)))
    settings = settings.model_copy(update={"sources": sources})
    metrics = collected(tmp_path / "one", settings)
    # Of each letter rows 1 and 2 have an answer; rows 0 and 3 have none.
    assert [metrics[f"kept/{s.name}"] for s in sources] == [8, 5, 5, 2, 1]
    assert metrics["rejected/letters"] == 8
    assert metrics["rejected/two"] == 5  # rows 0 and 3 of a and b, row 0 of c
    assert metrics["rejected/refers"] == 1  # the table has no row 2
    facts = json.loads((tmp_path / "one" / "sources.json").read_text())
    assert [f["name"] for f in facts] == [s.name for s in sources]
    assert facts[0] == {"name": "letters", "dataset": "[a-d].jsonl", "revision": "", "licence": ""}
    assert facts[2]["dataset"] == "generated: countdown"
    assert facts[4]["dataset"] == "agentica-org/DeepScaleR-Preview-Dataset (local files)"
    assert facts[4]["licence"] == "mit"
    more = settings.model_copy(update={"runtime": Workers(workers=2)})
    assert collected(tmp_path / "two", more) == metrics
    assert digest(tmp_path / "two") == digest(tmp_path / "one")


def cut_in(number: int, monkeypatch: pytest.MonkeyPatch) -> list[module.Part]:
    """The parts as they are read from now on; the wire is cut after one row of this one."""
    read: list[module.Part] = []
    real = module.read_source

    def fails(part, *rest):
        read.append(part)
        rows = real(part, *rest)
        yield next(rows)
        if len(read) == number:
            raise ConnectionError("the wire is cut")
        yield from rows

    monkeypatch.setattr(module, "read_source", fails)
    return read


@pytest.mark.parametrize("fails_at", [1, 4, 7])
def test_a_run_that_failed_goes_on_to_the_same_digest(tmp_path, settings, monkeypatch, fails_at):
    read = cut_in(fails_at + 7, monkeypatch)
    undisturbed = collected(tmp_path / "whole", settings)
    with pytest.raises(ConnectionError):
        collected(tmp_path / "cut", settings)
    assert collected(tmp_path / "cut", settings) == undisturbed
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
    complete, first, again = read[:7], read[7 : fails_at + 7], read[fails_at + 7 :]
    assert (first, again) == (complete[:fails_at], complete[fails_at - 1 :])


def test_a_large_file_goes_on_from_the_share_at_which_it_was_cut_off(tmp_path, monkeypatch):
    """60 % of one file are there: the rest is read, and the result is that of the file read whole,
    with the numbers of its bad rows."""
    lines = [json.dumps({"problem": f"{i} + 1?", "answer": str(i + 1)}) for i in range(100)]
    lines[13] = lines[77] = "{bad"
    size = jsonl(tmp_path / "large.jsonl", *lines).stat().st_size
    settings = CollectSettings(root=str(tmp_path), sources=(source("large.jsonl"),))
    complete = collected(tmp_path / "whole", settings)
    monkeypatch.setattr(module, "PART_BYTES", size // 10)
    read = cut_in(7, monkeypatch)
    with pytest.raises(ConnectionError):
        collected(tmp_path / "cut", settings)
    assert 55 < read[-1].pieces[0].cut.before < 70
    assert collected(tmp_path / "cut", settings) == complete
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
    assert read[7] == read[6]
    assert len(read) == 11
    reasons = [r.reason for r in rejected_in(tmp_path / "cut")]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "large.jsonl row 14",
        "large.jsonl row 78",
    ]


def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    """Half a MB of rows and 2, in row groups of 64: a tenth of what is between them would be seen,
    of Python's objects and of Arrow's, which has a pool that nobody else uses."""
    monkeypatch.setattr(tables, "ROWS_PER_GROUP", 64)
    settings = CollectSettings(root=str(tmp_path), sources=(source("rows.jsonl"),))
    usual, arrow = pa.default_memory_pool(), pa.system_memory_pool()
    assert usual.backend_name != arrow.backend_name

    def peak(size: int) -> int:
        """The least of three, for other threads of this process allocate too."""
        write(tmp_path / "rows.jsonl", size)
        peaks = []
        for attempt in range(3):
            pa.set_memory_pool(arrow)
            tracemalloc.start()
            collected(tmp_path / f"{size}-{attempt}", settings)
            peaks.append(tracemalloc.get_traced_memory()[1] + arrow.max_memory())
            tracemalloc.stop()
            pa.set_memory_pool(usual)
        return min(peaks)

    peak(10_000)  # imports what it needs
    smaller, larger = peak(500_000), peak(2_000_000)
    assert larger - smaller < 150_000


def test_a_run_that_goes_on_reads_the_commit_it_began_with(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    row = {"problem": "1+1?", "answer": "2"}
    jsonl(tmp_path / "hub" / "train.jsonl", row)
    source = Source(name="h", kind="hub", dataset=str(tmp_path / "hub"))
    settings = CollectSettings(sources=(source,))
    commits = iter(["a" * 40, "b" * 40])
    monkeypatch.setattr("klear.tasks.data.sources.resolved", lambda *_: next(commits))
    monkeypatch.setattr(module, "read_source", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collected(tmp_path / "out", settings)
    read = [module.Collected(module.read_row(row, source)[0], [], None)]
    monkeypatch.setattr(module, "read_source", lambda *_: iter(read))
    collected(tmp_path / "out", settings)
    (facts,) = json.loads((tmp_path / "out" / "sources.json").read_text())
    assert facts["revision"] == "a" * 40


def problems(out: Path, *sources: Source, seed: int = 0) -> list[Problem]:
    collected(out, CollectSettings(sources=sources), seed)
    return kept_in(out)


def countdown(**fields) -> Source:
    return Source(**{"name": "cd", "kind": "generated", "family": "countdown", **fields})


def test_generated_sources_follow_the_seed_unless_it_is_fixed(tmp_path):
    def prompts(name: str, source: Source, seed: int) -> list[str]:
        return [p.prompt for p in problems(tmp_path / name, source, seed=seed)]

    free, fixed = countdown(size=30), countdown(size=30, fixed_seed=3)
    assert prompts("a", free, 0) == prompts("b", free, 0) != prompts("c", free, 1)
    assert prompts("d", fixed, 0) == prompts("e", fixed, 1)


def test_planted_problems_are_the_benchmarks_own_and_planted_duplicates_real(tmp_path):
    for family, domain in (("countdown", "math"), ("by_example", "code")):
        shared = {"kind": "generated", "family": family, "domain": domain}
        bench = Source(name="bench", split_part="test", fixed_seed=7, size=100, **shared)
        planted = {"duplicate_share": 0.1, "contaminated_share": 0.05, "contaminated_seed": 7}
        train = Source(name="train", size=1000, **planted, **shared)
        kept = problems(tmp_path / family, train, bench)
        rows = [p for p in kept if p.source == "train"]
        held_out = {p.id for p in kept if p.source == "bench"}
        assert len(rows) == 1000
        assert len({p.id for p in rows}) == 900
        assert len({p.id for p in rows} & held_out) == 50


def test_flawed_tests_fail_a_right_program_and_leave_the_other_problems_alone(tmp_path):
    shared = {"name": "ex", "kind": "generated", "family": "by_example", "domain": "code"}
    sound = problems(tmp_path / "a", Source(**shared, size=400))
    flawed = problems(tmp_path / "b", Source(**shared, size=400, flawed_tests_share=0.25))
    assert [p.prompt for p in flawed] == [p.prompt for p in sound]
    wrong = []
    for before, after in zip(sound, flawed, strict=True):
        pairs = list(zip(before.tests.cases, after.tests.cases, strict=True))
        wrong.append(sum(a != b for a, b in pairs))
        assert wrong[-1] in (0, len(pairs) // 2)
        assert all(int(b.output) == int(a.output) + 1 for a, b in pairs if a != b)
    assert 60 < sum(map(bool, wrong)) < 140  # 100 expected, standard deviation 8.7
