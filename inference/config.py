"""Everything that the engine process can be told, as frozen values. Read nowhere else."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NoReturn

from inference.flag_types import fraction, named_path, port, positive, seconds, size, url

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
LOAD_FORMATS = ("auto", "dummy")
DESCRIPTION = "One base model and many LoRA adapters, served from one process."


@dataclass(frozen=True)
class EngineConfig:
    """model_path: a Hugging Face directory. None means: derived from the machine and the model.

    max_loras_per_batch: distinct adapters in one forward. max_lora_rank: largest rank of a module.
    max_batch_tokens: tokens of one forward; longer prompts are prefilled in chunks.
    kv_cache_bytes: KV memory; None: gpu_memory_fraction of the device, or 1 GiB on the CPU.
    host_adapter_bytes: adapters kept in host memory, on CUDA pinned and taken at the start; one of
    the largest rank has room in any case. Least recently used leave first, dear to load later.
    adapter_cache_dir: a folder of ours for compiled adapters, in all adapter_cache_bytes; None:
    adapters are packed anew whenever they come from disk.
    cuda_graphs: on CUDA, decode steps are captured at the start, by batch size.
    prompt_graphs: so are steps with prompts, by number of tokens.
    overlap: a step is launched before the tokens of the one before it are read; None: on CUDA.
    """

    model_path: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    load_format: Literal["auto", "dummy"] = "auto"
    max_loras_per_batch: int = 8
    max_lora_rank: int = 64
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_batch_tokens: int | None = None
    kv_block_size: int = 16
    kv_cache_bytes: int | None = None
    gpu_memory_fraction: float = 0.9
    host_adapter_bytes: int = 4 << 30
    adapter_cache_dir: str | None = None
    adapter_cache_bytes: int = 64 << 30
    prefix_cache: bool = True
    cuda_graphs: bool = True
    prompt_graphs: bool = True
    overlap: bool | None = None
    num_threads: int | None = None
    seed: int | None = None
    tp: int = 1


@dataclass(frozen=True)
class Announcement:
    """house: the URL of its web process. own_url: of this replica, as the house reaches it."""

    house: str
    own_url: str
    token: str


@dataclass(frozen=True)
class ServeConfig:
    """What `python -m inference serve` was told. adapter_dirs empty: adapters load from anywhere.

    base_name: what clients call the base model. grace_s: time for running streams after SIGTERM.
    usage_file: where what requests came to outlives the process.
    """

    engine: EngineConfig
    base_name: str
    host: str
    port: int
    lora_paths: tuple[tuple[str, str], ...]
    adapter_dirs: tuple[Path, ...]
    grace_s: float
    announcement: Announcement | None = None
    usage_file: Path | None = None


class DefaultsFormatter(argparse.HelpFormatter):
    """Adds each default that the help does not explain itself."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        if action.default in (None, argparse.SUPPRESS) or action.option_strings == ["-h", "--help"]:
            return text
        return f"{text} (default: %(default)s)"


class OneLineParser(argparse.ArgumentParser):
    """A mistake on the command line is one line and exit status 2, without the usage block."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse_arguments(arguments: Sequence[str]) -> ServeConfig:
    """Exits with status 2 and one line on stderr when anything is wrong."""
    parser = OneLineParser(prog="python -m inference", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve one base model and its adapters over HTTP",
        description="Serve one base model and its adapters over OpenAI's HTTP API.",
        formatter_class=DefaultsFormatter,
        allow_abbrev=False,
    )
    _add_model_flags(serve)
    _add_adapter_flags(serve)
    _add_adapter_memory_flags(serve)
    _add_batch_flags(serve)
    _add_memory_flags(serve)
    _add_http_flags(serve)
    values = parser.parse_args(arguments)
    try:
        return _serve_config(values)
    except ValueError as error:
        serve.error(str(error))


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--model-path", required=True, metavar="DIR", help="a Hugging Face model directory")
    add("--served-model-name", metavar="NAME", help="the base model's name; default: DIR's name")
    add(
        "--dtype", choices=DTYPES, default="auto", help="of weights and KV cache; auto: the model's"
    )
    add("--device", choices=DEVICES, default="auto", help="auto: cuda where there is one")
    load_help = "auto: safetensors; dummy: random weights of the config's shape, for benchmarks"
    add("--load-format", choices=LOAD_FORMATS, default="auto", help=load_help)
    add("--tp", type=positive, default=1, metavar="K", help="devices for one model; only 1 yet")
    add("--num-threads", type=positive, metavar="N", help="CPU threads; default: torch's choice")
    add("--seed", type=int, metavar="N", help="of requests without a seed; default: random")


def _add_adapter_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("adapters").add_argument
    add(
        "--lora-paths",
        nargs="+",
        action="extend",
        type=named_path,
        metavar="NAME=PATH",
        help="adapters to load at the start; default: none",
    )
    batch_help = "distinct adapters in one forward"
    add("--max-loras-per-batch", type=positive, default=8, metavar="N", help=batch_help)
    rank_help = "largest rank that an adapter may have"
    add("--max-lora-rank", type=positive, default=64, metavar="R", help=rank_help)
    dir_help = (
        "adapters may be loaded over HTTP only from below DIR; repeatable; default: from anywhere"
    )
    add("--adapter-dir", action="append", metavar="DIR", help=dir_help)


def _add_adapter_memory_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where adapters are kept").add_argument
    host_help = "host memory for adapters: bytes, or with the unit K, M or G"
    add("--host-adapter-bytes", type=size, default="4G", metavar="SIZE", help=host_help)
    cache_help = (
        "folder, this user's alone, for adapters laid out as they lie in memory, which are read at "
        "the speed of the disk; default: none, each is packed again whenever it comes from disk"
    )
    add("--adapter-cache-dir", metavar="DIR", help=cache_help)
    room_help = "room for them: bytes, or with the unit K, M or G; least recently used leave first"
    add("--adapter-cache-bytes", type=size, default="64G", metavar="SIZE", help=room_help)


def _add_batch_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("batching").add_argument
    switch = argparse.BooleanOptionalAction
    len_help = "longest prompt and answer together, in tokens; default: the model's"
    add("--max-model-len", type=positive, metavar="N", help=len_help)
    seqs_help = "sequences that run at once"
    add("--max-num-seqs", type=positive, default=64, metavar="N", help=seqs_help)
    batch_help = "tokens of one forward; default: by the device"
    add("--max-batch-tokens", type=positive, metavar="N", help=batch_help)
    graphs_help = "on a GPU, decode by graphs captured at the start"
    add("--cuda-graphs", action=switch, default=True, help=graphs_help)
    prompts_help = "on a GPU, steps with prompts by graphs too"
    add("--prompt-graphs", action=switch, default=True, help=prompts_help)
    overlap_help = (
        "launch a step before the tokens of the one before it are read; default: on a GPU, where "
        "the device then never waits"
    )
    add("--overlap", action=switch, default=None, help=overlap_help)


def _add_memory_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("KV memory").add_argument
    block_help = "tokens of a KV block"
    add("--kv-block-size", type=positive, default=16, metavar="N", help=block_help)
    kv_help = (
        "KV cache: bytes, or with the unit K, M or G; default: 1G on the CPU, else by fraction"
    )
    add("--kv-cache-bytes", type=size, metavar="SIZE", help=kv_help)
    fraction_help = "share of the GPU's memory to use"
    add("--gpu-memory-fraction", type=fraction, default=0.9, metavar="F", help=fraction_help)
    prefix_help = "reuse the KV blocks of equal beginnings"
    switch = argparse.BooleanOptionalAction
    add("--prefix-cache", action=switch, default=True, help=prefix_help)


def _add_http_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("HTTP")
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=port, default=30000, metavar="P", help="port to listen on; 0: any free one")
    grace_help = "seconds for running requests after SIGTERM; then they end with an error"
    house_help = "URL of a house's web process that this replica announces itself to"
    add("--announce-to", type=url, metavar="URL", help=house_help)
    own_help = "URL under which the house reaches this replica; default: by --host and --port"
    add("--announce-url", type=url, metavar="URL", help=own_help)
    token_help = "file with the house's REPLICA_TOKEN"
    add("--announce-token-file", type=Path, metavar="FILE", help=token_help)
    usage_help = (
        "file, this replica's alone, in which the tokens of ended requests outlive the process: "
        "twice 65,536 requests, some 30 MB; default: they are known to this process only"
    )
    add("--usage-file", type=Path, metavar="FILE", help=usage_help)
    add("--grace-s", type=seconds, default=10.0, metavar="S", help=grace_help)


def _serve_config(values: argparse.Namespace) -> ServeConfig:
    """Raises ValueError for what single flags cannot show."""
    if values.tp != 1:
        message = f"--tp {values.tp}: this build serves one device per process"
        raise ValueError(f"{message}; tensor parallelism comes later")
    model_path = Path(values.model_path)
    if not (model_path / "config.json").is_file():
        raise ValueError(f"--model-path {model_path}: no config.json there")
    base_name = values.served_model_name or model_path.resolve().name
    return ServeConfig(
        engine=_engine_config(values),
        base_name=base_name,
        host=values.host,
        port=values.port,
        lora_paths=_lora_paths(values, base_name),
        adapter_dirs=tuple(_folder(path) for path in values.adapter_dir or ()),
        grace_s=values.grace_s,
        announcement=_announcement(values),
        usage_file=values.usage_file,
    )


def _lora_paths(values: argparse.Namespace, base_name: str) -> tuple[tuple[str, str], ...]:
    lora_paths = tuple(values.lora_paths or ())
    names = [name for name, _ in lora_paths]
    for name in names:
        if name == base_name or names.count(name) > 1:
            raise ValueError(f"--lora-paths: the name {name!r} is taken already")
    return lora_paths


def _announcement(values: argparse.Namespace) -> Announcement | None:
    if values.announce_to is None:
        return None
    if values.announce_token_file is None:
        raise ValueError("--announce-to: --announce-token-file is needed too")
    own_url = values.announce_url
    if own_url is None:
        if values.host in ("0.0.0.0", "::") or values.port == 0:
            raise ValueError("--announce-to: --announce-url is needed with this --host and --port")
        own_url = f"http://{values.host}:{values.port}"
    try:
        token = values.announce_token_file.read_text().strip()
    except OSError as error:
        raise ValueError(f"--announce-token-file: {error}") from error
    return Announcement(values.announce_to, own_url, token)


def _folder(path: str) -> Path:
    """May not exist yet: the control plane makes its store with the first upload."""
    if Path(path).exists() and not Path(path).is_dir():
        raise ValueError(f"--adapter-dir {path}: not a folder")
    return Path(path).resolve()


def _engine_config(values: argparse.Namespace) -> EngineConfig:
    flags = vars(values)
    return EngineConfig(**{field.name: flags[field.name] for field in fields(EngineConfig)})
