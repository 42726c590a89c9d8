import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.scenario import Endpoint, ShareGPT
from bench.sources import sharegpt
from bench.sources.sharegpt import sharegpt_rows, whole_part
from bench.workload import Row


def conversation(question: str, answer: str, first: str = "human") -> dict[str, Any]:
    turns = [{"from": first, "value": question}, {"from": "gpt", "value": answer}, {"from": "human", "value": "more"}]
    return {"id": "x", "conversations": turns}


def rows(directory: Path, *conversations: dict[str, Any], seed: int = 1, **values: Any) -> list[Row]:
    path = directory / "sharegpt.json"
    path.write_text(json.dumps(conversations))
    return list(sharegpt_rows(ShareGPT(kind="sharegpt", path=path, **values), np.random.default_rng(seed)))


def test_rows_ask_the_first_question_for_an_answer_of_the_recorded_length(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, conversation("How are you?", "I am fine, thanks."))
    assert row.ask.body == {"messages": [{"role": "user", "content": "How are you?"}]}
    assert row.ask.output_tokens == 5  # 18 characters, four a token
    assert row.ask.endpoint is Endpoint.CHAT
    assert row.at_s is None


def test_rows_leave_out_what_is_no_question_with_an_answer(tmp_path: Path) -> None:
    odd = [conversation("q", "a", first="system"), conversation("", "a"), conversation("q", ""), {"conversations": []}]
    assert rows(tmp_path, *odd) == []


def test_rows_are_in_the_seeds_order_each_once(tmp_path: Path) -> None:
    many = [conversation(f"question {i}", "a") for i in range(50)]
    order, again, other = ([str(row.ask.body) for row in rows(tmp_path, *many, seed=seed)] for seed in (1, 1, 2))
    assert order == again
    assert order != other
    assert sorted(order) == sorted(other)
    assert len(set(order)) == 50


def test_long_questions_are_left_out_and_long_answers_cut(tmp_path: Path) -> None:
    many = [conversation("q" * 400, "a"), conversation("short", "a" * 400)]
    (row,) = rows(tmp_path, *many, max_prompt_tokens=50, max_output_tokens=20)
    assert row.ask.body["messages"][0]["content"] == "short"
    assert row.ask.output_tokens == 20


def test_file_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sharegpt\.json: not ShareGPT's format"):
        rows(tmp_path, {"turns": []})


def test_missing_package_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharegpt, "PACKAGE", "no_such_package_of_expresslane")
    with pytest.raises(ValueError, match=r"pip install 'expresslane\[sharegpt\]'"):
        next(sharegpt_rows(ShareGPT(kind="sharegpt"), np.random.default_rng(1)))


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9, 1.0])
def test_packages_conversations_are_read_as_far_as_they_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: float
) -> None:
    many = [conversation(f"question {i}", "a") for i in range(100)]
    text = json.dumps(many, indent=2)
    package = tmp_path / "packaged_conversations"
    package.mkdir()
    (package / "data.json").write_text(text[: round(len(text) * kept)])
    (package / "__init__.py").write_text(
        "from pathlib import Path\ndef open_dataset():\n    return (Path(__file__).parent / 'data.json').open('rb')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sharegpt, "PACKAGE", package.name)
    monkeypatch.delitem(sys.modules, package.name, raising=False)
    read = list(sharegpt_rows(ShareGPT(kind="sharegpt"), np.random.default_rng(1)))
    assert len(read) == pytest.approx(100 * kept, abs=1)


def test_whole_file_is_left_as_it_is() -> None:
    assert whole_part(b"[1]\n") == b"[1]\n"
