"""Uploads to send by the hundred: sound ones, each of its own bytes, and one of each hazard."""

import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tiny import make_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Fields of a multipart request.
Files = dict[str, tuple[str, bytes]]


@dataclass(frozen=True)
class Sound:
    """An adapter that fits the base, in float32."""

    config: bytes
    weights: bytes

    @classmethod
    def make(cls, base: Path) -> "Sound":
        with tempfile.TemporaryDirectory() as name:
            folder = make_adapter(Path(name), base, r=4, targets=("q_proj",))
            return cls((folder / CONFIG).read_bytes(), (folder / WEIGHTS).read_bytes())

    def numbered(self, number: int) -> bytes:
        return self.weights[:-4] + struct.pack("<f", 1.0 + number)

    def with_config(self, **fields: Any) -> bytes:
        return json.dumps(json.loads(self.config) | fields).encode()


def apart(config: bytes, weights: bytes) -> Files:
    return {"config": (CONFIG, config), "weights": (WEIGHTS, weights)}


def zipped(*members: tuple[str, bytes]) -> Files:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return {"archive": ("adapter.zip", out.getvalue())}


def good(sound: Sound, number: int) -> Files:
    return apart(sound.config, sound.numbered(number))


def not_a_number(sound: Sound, number: int) -> Files:
    return apart(sound.config, sound.weights[:-4] + struct.pack("<f", float("nan")))


def no_effect(sound: Sound, number: int) -> Files:
    size = 8 + struct.unpack("<Q", sound.weights[:8])[0]
    return apart(sound.config, sound.weights[:size] + bytes(len(sound.weights) - size))


def missing_tensors(sound: Sound, number: int) -> Files:
    return apart(sound.with_config(target_modules=["q_proj", "v_proj"]), sound.numbered(number))


def another_rank(sound: Sound, number: int) -> Files:
    return apart(sound.with_config(r=8), sound.numbered(number))


def unsupported(sound: Sound, number: int) -> Files:
    return apart(sound.with_config(use_dora=True), sound.numbered(number))


def no_json(sound: Sound, number: int) -> Files:
    return apart(b"{", sound.numbered(number))


def a_pickle(sound: Sound, number: int) -> Files:
    return apart(sound.config, b"\x80\x04\x95" + sound.weights)


def cut_off(sound: Sound, number: int) -> Files:
    return apart(sound.config, sound.weights[:-100])


def a_way_out(sound: Sound, number: int) -> Files:
    members = ((CONFIG, sound.config), (WEIGHTS, sound.weights), ("../../evil", b"x"))
    return zipped(*members)


def a_bomb(sound: Sound, number: int) -> Files:
    return zipped((CONFIG, sound.config), (WEIGHTS, bytes(50_000_000)))


HOSTILE: tuple[Callable[[Sound, int], Files], ...] = (
    not_a_number,
    no_effect,
    missing_tensors,
    another_rank,
    unsupported,
    no_json,
    a_pickle,
    cut_off,
    a_way_out,
    a_bomb,
)
