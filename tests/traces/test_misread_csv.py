"""CSV files of kinds that tools misread, beside those of ../shared/cases: each is read as what it
means, or refused in one line that says what is wrong and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from vtsim.errors import TraceFormatError
from vtsim.traces import load

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
STAMP = "2023-11-16 18:15:46.6805900"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
LAB = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"


def azure(*rows: str, header: str = AZURE) -> str:
    return header + "".join(f"{row}\n" for row in rows)


class Read(NamedTuple):
    """A file that is read, and as what."""

    data: str | bytes
    arrival_s: list[float]
    prompt: list[int]
    output: list[int]
    dropped: dict[str, int] = {}  # noqa: RUF012
    moved: int = 0


READ = {
    "BOM and CRLF": Read(
        "\ufeff" + azure(f"{STAMP},374,44").replace("\n", "\r\n"), [0], [374], [44]
    ),
    "every cell in quotes": Read(
        azure(f'"{STAMP}","374","44"', header='"TIMESTAMP","ContextTokens","GeneratedTokens"\n'),
        [0],
        [374],
        [44],
    ),
    "no line end at the end": Read(VIDUR + "0,5,6", [0], [5], [6]),
    "columns in another order": Read(
        azure(f"44,{STAMP},374", header="GeneratedTokens,TIMESTAMP,ContextTokens\n"),
        [0],
        [374],
        [44],
    ),
    "blanks behind the commas": Read(
        azure(f"{STAMP}, 374, 44", header="TIMESTAMP, ContextTokens, GeneratedTokens\n"),
        [0],
        [374],
        [44],
    ),
    "a pandas index in front": Read(
        azure(f"0,{STAMP},374,44", header="," + AZURE), [0], [374], [44]
    ),
    "a comma at the end of each line": Read(
        azure(f"{STAMP},374,44,", header=AZURE.replace("\n", ",\n")), [0], [374], [44]
    ),
    "semicolons and decimal commas in stamps": Read(
        azure(
            "2023-11-16 18:15:46,5;3;4",
            "2023-11-16 18:15:47,25;5;6",
            header=AZURE.replace(",", ";"),
        ),
        [0, 0.75],
        [3, 5],
        [4, 6],
    ),
    "counts with exponents and fractions of 0": Read(
        azure(f"{STAMP},3.74e2,44.0"), [0], [374], [44]
    ),
    "stamps with and without zone, of several zones": Read(
        azure(
            "2023-11-16 18:15:46,1,1", "2023-11-16T19:15:47+01:00,2,2", "2023-11-16T18:15:48.5Z,3,3"
        ),
        [0, 1, 2.5],
        [1, 2, 3],
        [1, 2, 3],
    ),
    "stamps that descend": Read(
        azure("2023-11-16 18:15:49,3,3", "2023-11-16 18:15:48,2,2", "2023-11-16 18:15:47,1,1"),
        [0, 1, 2],
        [1, 2, 3],
        [1, 2, 3],
        moved=2,
    ),
    "no tokens asked or got": Read(
        azure(f"{STAMP},0,44", f"{STAMP},5,0", f"{STAMP},5,1"),
        [0],
        [5],
        [1],
        {"zero_prompt": 1, "zero_output": 1},
    ),
    "rows of nothing but commas, as spreadsheets leave them": Read(
        azure(f"{STAMP},3,4", ",,", f"{STAMP},5,6", ",,"), [0, 0], [3, 5], [4, 6]
    ),
    "the same in another table": Read(VIDUR + "0,5,6\n , ,\n", [0], [5], [6]),
    "seconds as 1e-3 and 1.5E+1": Read(
        VIDUR + "1e-3,5,6\n1.5E+1,7,8\n", [0, 14.999], [5, 7], [6, 8]
    ),
    "seconds of minus zero": Read(VIDUR + "-0.0,5,6\n1,7,8\n", [0, 1], [5, 7], [6, 8]),
    "sessions that alternate": Read(
        LAB + "a,0,0,0,10,5,10\nb,1,0,0,11,5,10\n", [0, 0.001], [10, 11], [5, 5]
    ),
}


@pytest.mark.parametrize("kind", READ)
def test_is_read_as_what_it_means(kind: str, read: Any) -> None:
    read.means(READ[kind])


def write(folder: Path, data: str | bytes) -> Path:
    path = folder / "x"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "line ends of CR alone": (
        azure(f"{STAMP},374,44").replace("\n", "\r"),
        "x:1: a carriage return stands inside a line",
    ),
    "thousands in quotes": (azure(f'{STAMP},"1,374",44'), "x:2: ContextTokens: is not a number"),
    "thousands with thin blanks": (
        azure(f"{STAMP},1\u202f374,44"),
        "x:2: ContextTokens: is not a number",
    ),
    "digits of another script": (azure(f"{STAMP},٣٧٤,44"), "ContextTokens: is not a number"),
    "half a token": (azure(f"{STAMP},374.5,44"), "x:2: ContextTokens: is not a whole number"),
    "NaN": (azure(f"{STAMP},NaN,44"), "x:2: ContextTokens: is not finite (got 'NaN')"),
    "an empty cell": (azure(f"{STAMP},,44"), "x:2: ContextTokens: is empty"),
    "tokens beyond reason": (
        VIDUR + "0,99999999999999999999,6\n",
        "x:2: num_prefill_tokens: is larger than",
    ),
    "an endless arrival": (VIDUR + "inf,5,6\n", "x:2: arrived_at: is not finite"),
    "a header alone": (AZURE, "x: no requests"),
    "two files, one behind the other": (
        azure(f"{STAMP},374,44") * 2,
        "x:3: TIMESTAMP: is not a date and time",
    ),
    "a column twice": (
        azure(
            f"{STAMP},1,374,44", header="TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n"
        ),
        "x:1: ContextTokens: stands twice in the header",
    ),
    "a cell too many": (azure(f"{STAMP},374,44,"), "x:2: has 4 cells where the header has 3"),
    "a cell too few": (azure(f"{STAMP},374"), "x:2: has 2 cells where the header has 3"),
    "seconds where dates stand": (azure("1700158546.68,374,44"), "x:2: TIMESTAMP: is not a date"),
    "dates where seconds stand": (VIDUR + f"{STAMP},5,6\n", "x:2: arrived_at: is not a number"),
    "a day without its time": (azure("2023-11-16,374,44"), "x:2: TIMESTAMP: is not a date"),
    "a bad value behind a cell of two lines": (
        azure(f'{STAMP},3,4,"a\nb"', f"{STAMP},3,y,c", header=AZURE.replace("\n", ",Note\n")),
        "x:4: GeneratedTokens: is not a number (got 'y')",
    ),
    "a session without a name": (LAB + ",0,0,0,10,5,10\n", "x:2: session_id: is empty"),
    "rounds out of order": (
        LAB + "a,0,1,10,5,5,10\na,0,0,0,10,5,10\n",
        "x:3: round_idx: does not follow round 1 of session a",
    ),
    "a session that starts twice": (
        LAB + "a,0,0,0,10,5,10\na,50,1,15,5,5,10\n",
        "x:3: arrival_time: differs from the start of session a",
    ),
    "a wait into the past": (LAB + "a,0,0,0,10,5,-10\n", "x:2: tool_wait_after_ms: is negative"),
    "Latin-1": (
        (BURST + "5,GPT-4é,300,41,341,Conversation log\n").encode("latin-1"),
        "x:2: is not UTF-8 text",
    ),
    "NUL bytes in a cell": (VIDUR + "0,\x005,6\n", "x: holds NUL bytes"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    data, words = REFUSED[kind]
    with pytest.raises(TraceFormatError) as caught:
        load(write(tmp_path, data))
    assert words in str(caught.value).replace(f"{tmp_path}/", "")
    assert "\n" not in str(caught.value)
