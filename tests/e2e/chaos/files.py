"""What the clients upload: a pool of small sound adapters, drawn again and again, and broken ones.

The same bytes come back after they were deleted, in other versions and beside their own removal.
"""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from inference.adapter_format import digest
from tests.tiny import make_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Files:
    """digest: "" of what is to be rejected."""

    config: bytes
    weights: bytes
    digest: str

    def archive(self) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, content in ((CONFIG, self.config), (WEIGHTS, self.weights)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return out.getvalue()


def make_pool(folder: Path, base: Path, number: int) -> list[Files]:
    sound = [_sound(folder / str(seed), base, seed) for seed in range(1, number + 1)]
    return [*sound, Files(b"{}", sound[0].weights, ""), Files(sound[0].config, b"no header", "")]


def _sound(folder: Path, base: Path, seed: int) -> Files:
    make_adapter(folder, base, targets=("q_proj", "v_proj"), seed=seed)
    raw = (folder / CONFIG).read_bytes()
    return Files(raw, (folder / WEIGHTS).read_bytes(), digest(raw, folder / WEIGHTS))
