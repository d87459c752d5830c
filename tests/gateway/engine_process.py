"""The real engine as a process: a tiny random base, and adapters loaded into it by their digest."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import requests

from inference.adapter_format import digest
from tests.gateway.live import BASE_MODEL, ROOT_DIR


@dataclass
class Engine:
    base: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def start_engine(base: Path, port: int, *more: str) -> Engine:
    """more: flags."""
    command = [sys.executable, "-m", "inference", "serve", "--model-path", str(base)]
    options = ["--served-model-name", BASE_MODEL, "--port", str(port), "--num-threads", "1"]
    process = subprocess.Popen(command + options + ["--kv-cache-bytes", "16M", *more], cwd=ROOT_DIR)
    return Engine(base, port, process)


def load(engine: Engine, folder: Path) -> str:
    """Load under its digest, as the control plane does, and return that."""
    config = (folder / "adapter_config.json").read_bytes()
    name = digest(config, folder / "adapter_model.safetensors")
    body = {"lora_name": name, "lora_path": str(folder)}
    answer = requests.post(f"{engine.url}/load_lora_adapter", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return name


def is_ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/readyz", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False
