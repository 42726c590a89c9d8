from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.scenario import Azure
from bench.sources.azure import azure_rows
from bench.workload import Row

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"


def rows(directory: Path, text: str, **values: Any) -> list[Row]:
    path = directory / "azure.csv"
    path.write_text(text)
    source = Azure(kind="azure", path=path, **values)
    return list(azure_rows(source, np.random.default_rng(1)))


def test_rows_have_times_from_the_first_and_lengths(tmp_path: Path) -> None:
    lines = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109", "2023-11-16 18:16:50,7,0"]
    read = rows(tmp_path, "\r\n".join([HEAD, *lines]))
    assert [row.at_s for row in read] == pytest.approx([0, 4.314579, 63.319410])
    assert [row.ask.prompt_tokens for row in read] == [374, 396, 7]
    assert [row.ask.output_tokens for row in read] == [44, 109, 1]  # none is as good as one: a server must answer
    assert len({row.ask.pieces[0].key for row in read}) == 3


def test_rows_are_cut_to_the_most_that_a_model_takes(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, f"{HEAD}\n2023-11-16 18:15:46.6,374,44\n", max_prompt_tokens=100, max_output_tokens=10)
    assert (row.ask.prompt_tokens, row.ask.output_tokens) == (100, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n1,2,3", "its columns are"),
        ("", "its columns are None"),
        (f"{HEAD}\n2023-11-16 18:15:46.6,374,44\nsoon,1,2", "line 3: Invalid isoformat"),
        (f"{HEAD}\n2023-11-16 18:15:46.6,many,44", "line 2: invalid literal"),
        (f"{HEAD}\n2023-11-16 18:15:46.6,374", "line 2: "),
    ],
)
def test_file_of_another_format_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"azure\.csv") as refused:
        rows(tmp_path, text)
    assert message in str(refused.value)
