"""Hostile headers and patterns: refused in bounded time, and wherever the library refuses."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from inference.adapter_format import FormatError, parse_config, read_header
from inference.adapter_format.header import MAX_HEADER_BYTES
from inference.adapter_format.pattern import PatternError, compile_pattern

PATH = "model.layers.31.self_attn.q_proj_and_some_more"


def entry(shape: list[Any], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def raw_file(header: bytes | dict[str, Any], num_data_bytes: int = 0) -> bytes:
    if isinstance(header, dict):
        header = json.dumps(header).encode()
    return len(header).to_bytes(8, "little") + header + bytes(num_data_bytes)


SOUND = {"b": entry([2], 8, 16), "a": entry([1, 2], 0, 8), "__metadata__": {"format": "pt"}}

BROKEN: dict[str, bytes] = {
    "empty file": b"",
    "seven bytes": b"1234567",
    "length of 2^40": (2**40).to_bytes(8, "little") + b"{}",
    "longer than allowed": raw_file(b"{}" + b" " * MAX_HEADER_BYTES),
    "cut in the header": raw_file(SOUND, 16)[:40],
    "cut at 90 percent": raw_file(SOUND, 14),
    "bytes behind": raw_file(SOUND, 17),
    "overlap": raw_file({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, 12),
    "hole": raw_file({"a": entry([2], 0, 8), "b": entry([2], 12, 20)}, 20),
    "does not begin at zero": raw_file({"a": entry([2], 4, 12)}, 12),
    "past the end": raw_file({"a": entry([400], 0, 1600)}, 16),
    "huge shape": raw_file({"a": entry([2**40, 2**40], 0, 8)}, 8),
    "overflowing shape": raw_file({"a": entry([2**62, 4], 0, 0)}, 0),
    "negative shape": raw_file({"a": entry([-2], 0, 8)}, 8),
    "two negatives": raw_file({"a": entry([-2, -1], 0, 8)}, 8),
    "shape of floats": raw_file({"a": entry([2.0], 0, 8)}, 8),
    "shape of booleans": raw_file({"a": entry([True, 2], 0, 8)}, 8),
    "descending offsets": raw_file({"a": entry([0], 8, 0)}, 8),
    "unknown dtype": raw_file({"a": entry([2], 0, 8, "Q4")}, 8),
    "dtype is a list": raw_file({"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}, 8),
    "no shape": raw_file({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, 8),
    "one offset": raw_file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}, 8),
    "tensor is a number": raw_file({"a": 1}),
    "metadata of numbers": raw_file({"__metadata__": {"a": 1}}),
    "metadata is a list": raw_file({"__metadata__": []}),
    "not JSON": raw_file(b"{nope}"),
    "an array": raw_file(b"[]"),
    "leading space": raw_file(b" {}"),
    "NaN": raw_file(b'{"a": NaN}'),
    "not UTF-8": raw_file(b'{"\xff": 1}'),
    "lone surrogate": raw_file(
        b'{"\\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', 8
    ),
    "the same name twice": raw_file(
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},'
        b' "a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}',
        16,
    ),
    "deep nesting": raw_file(b'{"a":' * 200_000),
    "many dimensions": raw_file({"a": entry([1] * 9, 0, 4)}, 4),
    "a long name": raw_file({"a" * 600: entry([1], 0, 4)}, 4),
    "20,000 tensors": raw_file({f"t{i}": entry([0], 0, 0) for i in range(20_000)}, 0),
}


def write(folder: Path, content: bytes) -> Path:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(content)
    return path


def test_it_works(tmp_path: Path) -> None:
    header = read_header(write(tmp_path, raw_file(SOUND, 16)))
    assert list(header) == ["a", "b"]
    data_start = 8 + len(json.dumps(SOUND))
    assert (header["b"].start, header["b"].end) == (data_start + 8, data_start + 16)
    assert header["a"].shape == (1, 2) and header["a"].dtype == "F32"


@pytest.mark.case("C59")
@pytest.mark.case("C61")
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_header_is_refused_in_no_time(content: bytes, tmp_path: Path) -> None:
    started = time.process_time()
    with pytest.raises(FormatError) as caught:
        read_header(write(tmp_path, content))
    assert time.process_time() - started < 2
    assert {problem.code for problem in caught.value.problems} == {"corrupt_safetensors"}


@pytest.mark.case("C48")
@pytest.mark.parametrize(
    "start", [b"\x80\x02}q\x00", b"\x80\x04\x95\x0b\x00\x00", b"PK\x03\x04\x00\x00"]
)
def test_a_pickle_is_named_as_one(start: bytes, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        read_header(write(tmp_path, start + b"x" * 200))
    assert caught.value.problems[0].code == "pickle"
    assert "convert to safetensors" in caught.value.problems[0].message


def test_a_header_length_that_looks_like_a_pickle_is_read(tmp_path: Path) -> None:
    header = json.dumps(SOUND).encode()
    padded = header + b" " * (640 - len(header))
    path = write(tmp_path, raw_file(padded, 16))
    assert path.read_bytes().startswith(b"\x80\x02")
    assert list(read_header(path)) == ["a", "b"]


def library_accepts(path: Path) -> bool:
    try:
        with safe_open(path, "numpy") as opened:
            list(opened.keys())
    except (SafetensorError, OverflowError):
        return False
    return True


number = st.one_of(st.integers(-2, 24), st.sampled_from([2**40, 2**63, 1.0, None, True, "1"]))
tensor = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "U8", "BF16", "f32", "F64", "I4"]),
        "shape": st.lists(number, max_size=3),
        "data_offsets": st.lists(number, min_size=1, max_size=3),
    }
)
headers = st.dictionaries(st.sampled_from(["a", "b", "c", "__metadata__", ""]), tensor, max_size=3)


@pytest.mark.case("C59")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(header=headers, num_data_bytes=st.integers(0, 32))
def test_what_the_library_refuses_is_refused(
    header: dict[str, Any], num_data_bytes: int, tmp_path: Path
) -> None:
    check_as_strict(raw_file(header, num_data_bytes), tmp_path)


@pytest.mark.case("C59")
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(at=st.integers(0, 170), byte=st.integers(0, 255), cut=st.integers(0, 3))
def test_a_flipped_byte_is_never_accepted_alone(
    at: int, byte: int, cut: int, tmp_path: Path
) -> None:
    content = bytearray(raw_file(SOUND, 16))
    content[min(at, len(content) - 1)] = byte
    check_as_strict(bytes(content[: len(content) - cut]), tmp_path)


def check_as_strict(content: bytes, folder: Path) -> None:
    path = write(folder, content)
    try:
        read_header(path)
    except FormatError:
        return
    assert library_accepts(path)


UNSLOTH = (
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?"
    r"(?:k_proj|v_proj|q_proj|out_proj|fc1|fc2|o_proj|gate_proj|up_proj|down_proj).*?)|"
    r"(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\."
    r"(?:(?:k_proj|v_proj|q_proj|out_proj|fc1|fc2|o_proj|gate_proj|up_proj|down_proj)))"
)
USUAL = [
    r".*layers\.[02]\.self_attn\.(q|v)_proj",
    r"^(?!.*vision).*\.(q_proj|k_proj|v_proj)$",
    r"model\.layers\.\d+\.mlp\.(up|down|gate)_proj",
    r"^(model)(?=\.).*\.(o_proj|k_proj|gate_proj|up_proj|down_proj|q_proj|v_proj)$",
    r"(?P<where>self_attn|mlp)\.[a-z]+_proj",
    r".*\.[0-9]{1,2}\..*",
    UNSLOTH,
]


@pytest.mark.case("C15")
@pytest.mark.parametrize("source", USUAL)
def test_the_patterns_of_trainers_are_accepted(source: str) -> None:
    pattern, _ = compile_pattern(source)
    assert pattern.pattern == source


HOSTILE = [
    "(a+)+b",
    "(a*)*b",
    "(.*)*x",
    "(?:.*.*)+x",
    "((a|aa)+)+$",
    "(a|a)*b",
    "(\\w+\\.?)+x",
    "(x+x+)+y",
    "(.?){40}x",
    "(.{0,40}){3}x",
    "(a|ab){20}x",
    "(?=(.+)+x)",
    ".?" * 40 + "x",
    ".*" * 8 + "x",
    ".*?" * 8 + "x",
    "(.|.)" * 30 + "x",
    "(a|.)(b|.)" * 15 + "x",
    "[^x]*" * 9 + "y",
    "(.+)\\1",
    "(?P<a>.+)(?P=a)",
    "(?i)q_proj",
    "(?(1)a|b)",
    "(",
    "a)|(b",
    "[",
    "a{99999999999}",
    "(" * 90 + "a" + ")" * 90,
    "a" * 2000,
]


@pytest.mark.parametrize("source", HOSTILE)
def test_a_pattern_that_could_hang_is_refused_at_once(source: str) -> None:
    started = time.monotonic()
    with pytest.raises(PatternError):
        compile_pattern(source, r"(.*\.)?({})$")
    assert time.monotonic() - started < 0.5


def test_patterns_that_are_slow_only_together_are_refused() -> None:
    keys = {f"(.+\\.)?.+x{number}.+y": 4 for number in range(400)}
    raw = json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 8, "rank_pattern": keys})
    config, problems, _ = parse_config(raw.encode())
    assert config is None and {problem.code for problem in problems} == {"unsupported_pattern"}


pieces = st.sampled_from(
    ["a", ".", "\\d", "[a-z]", ".*", ".+?", "a?", "x{0,9}", "(a|b)", "(a|.)", "(?:self|mlp)", "\\."]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(pieces, max_size=24))
def test_what_is_accepted_is_fast(parts: list[str]) -> None:
    """The bound is from above: if it were wrong, some combination would hang here."""
    try:
        pattern, _ = compile_pattern("".join(parts) + "!")
    except PatternError:
        return
    started = time.monotonic()
    pattern.fullmatch(PATH)
    assert time.monotonic() - started < 1


def test_accepted_patterns_match_as_re_does() -> None:
    pattern, _ = compile_pattern("q_proj|v_proj", r"(.*\.)?({})$")
    assert pattern.match("model.layers.0.self_attn.q_proj")
    assert not pattern.match("model.layers.0.self_attn.xq_proj")
    assert re.match(r"(.*\.)?(q_proj|v_proj)$", "a.q_proj")
