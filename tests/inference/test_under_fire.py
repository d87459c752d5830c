"""Random traffic over the whole engine, faults in it: one end for each request, and right answers.

Requests come and go; adapters are loaded, unloaded, evicted, replaced under their name, broken on
disk, steps raise, logits are NaN, inputs are bad. Whatever happens to one request, each other
finishes with the tokens it gets when it is alone.
"""

import random
import shutil
import threading
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from inference.errors import EngineError, ErrorCode
from inference.request import Aborted, Constraint, Failed, Finished, SamplingParams
from tests.inference.constraining import Patient
from tests.inference.driving import PROMPT, greedy, make_engine
from tests.tiny import make_adapter

BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4
INVOCATION = PROMPT[20:22]
DIGITS = Constraint("regex", "[0-9]{3}")
# Its logits are not finite.
BROKEN = "broken"
# Its files break on disk while it is served.
FRAGILE = "fragile"
# Two sets of weights that take turns under one name.
SHARED = ("shared 1", "shared 2")
BAD: list[tuple[list[int], dict[str, Any], ErrorCode]] = [
    ([], {}, ErrorCode.INVALID_REQUEST),
    ([259], {}, ErrorCode.INVALID_REQUEST),
    ([5, -1], {}, ErrorCode.INVALID_REQUEST),
    ([5] * 128, {}, ErrorCode.CONTEXT_LENGTH_EXCEEDED),
    ([5], {"logit_bias": ((1, float("nan")),)}, ErrorCode.INVALID_REQUEST),
    ([5], {"stop_token_ids": (1 << 40,)}, ErrorCode.INVALID_REQUEST),
]

PARTS_OF_A_STEP = ("launch", "sample", "collect")
HAS_GRAMMARS = find_spec("xgrammar") is not None
ON_A_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
)

Key = tuple[str | None, int, int, bool]


class World:
    """The same adapters and the answers that each request has alone, asked for once."""

    def __init__(self, folder: Path, base: Path, device: str) -> None:
        self.base = base
        self.config = {"device": device, "dtype": "float32", "max_model_len": 128}
        options: dict[str, dict[str, Any]] = {
            "r8": {"r": 8},
            "r16": {"r": 16, "targets": ("q_proj", "o_proj", "up_proj")},
            "late": {"r": 8, "alora_invocation_tokens": INVOCATION},
            BROKEN: {"r": 4, "strength": 1e37},
            SHARED[0]: {"r": 8},
            SHARED[1]: {"r": 8},
            FRAGILE: {"r": 16},
        }
        self.paths = {
            name: make_adapter(folder / name, base, seed=seed, **chosen)
            for seed, (name, chosen) in enumerate(options.items(), 1)
        }
        self._alone = Patient(make_engine(base, prefix_cache=False, **self.config))
        for name, path in self.paths.items():
            self._alone.engine.load_adapter(name, str(path))
        self._answers: dict[Key, list[int]] = {}

    def answer(self, key: Key) -> list[int]:
        adapter, length, num_tokens, has_grammar = key
        if key not in self._answers:
            params = params_of(num_tokens, has_grammar)
            self._answers[key] = self._alone.ask(PROMPT[:length], params, adapter)
        return self._answers[key]


def params_of(num_tokens: int, has_grammar: bool) -> SamplingParams:
    return greedy(num_tokens, constraint=DIGITS if has_grammar else None)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=ON_A_GPU)])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, base: Path
) -> World:
    return World(tmp_path_factory.mktemp("fire"), base, request.param)


def break_files(folder: Path, chance: random.Random) -> None:
    """In the header, in a tensor, at the end, or altogether."""
    weights = folder / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    kind = chance.randrange(4)
    if kind == 0:
        content[chance.randrange(200)] ^= 0xFF
    elif kind == 1:
        content[-1 - chance.randrange(5000)] ^= 0xFF
    elif kind == 2:
        del content[-chance.randint(1, 5000) :]
    weights.write_bytes(content)
    if kind == 3:
        weights.unlink()


class Fire:
    """One engine, a small one, and what it was asked."""

    def __init__(self, world: World, folder: Path, seed: int) -> None:
        self.world, self.chance = world, random.Random(seed)
        fragile = Path(shutil.copytree(world.paths[FRAGILE], folder / FRAGILE))
        self.paths = {**world.paths, FRAGILE: fragile}
        self.is_whole, self.pages = True, folder / "pages"
        self.client = Patient(
            make_engine(
                world.base,
                **world.config,
                max_loras_per_batch=self.chance.choice([1, 2]),
                max_lora_rank=16,
                adapter_cache_dir=self.chance.choice([None, str(self.pages)]),
                max_num_seqs=5,
                overlap=self.chance.random() < 0.5,
                max_batch_tokens=self.chance.choice([6, 24, 200]),
                kv_cache_bytes=self.chance.choice([12, 16, 40]) * BLOCK_BYTES,
                # Room for all, for a few, for none: those come from disk each time.
                host_adapter_bytes=self.chance.choice([1 << 30, 600_000, 1]),
            )
        )
        self.engine = self.client.engine
        self.bound: dict[str, str] = {}
        self.asked: dict[str, Key] = {}
        self.may_fail: set[str] = set()
        self.may_abort: set[str] = set()

    def act(self) -> None:
        actions = [self.submit] * 6 + [self.step] * 12
        actions += [self.abort, self.load, self.load, self.unload, self.bad_input, self.fault]
        actions += [self.break_compiled]
        actions += [self.break_fragile] * (self.is_whole and FRAGILE in self.bound)
        self.chance.choice(actions)()

    def submit(self) -> None:
        chance = self.chance
        name = chance.choice([None, *self.bound])
        adapter = None if name is None else self.bound[name]
        key = (
            adapter,
            chance.choice([15, 33, 48, 64, 70]),
            chance.randint(1, 9),
            chance.random() < 0.1 and HAS_GRAMMARS,
        )
        prompt, params = PROMPT[: key[1]], params_of(key[2], key[3])
        salt = chance.choice(["", "", "tenant"])
        if adapter == "late" and key[1] < 22:
            with pytest.raises(EngineError, match="invocation tokens"):
                self.client.submit(prompt, params, name, salt)
            return
        request_id = self.client.submit(prompt, params, name, salt)
        self.asked[request_id] = key

    def step(self) -> None:
        self.client.step()

    def abort(self) -> None:
        """Of any request so far, ended ones and one that never was too."""
        request_id = self.chance.choice([*self.asked, "nobody"])
        self.engine.abort(request_id)
        self.may_abort.add(request_id)

    def load(self) -> None:
        path = self.chance.choice([p for p in self.paths if p != FRAGILE or self.is_whole])
        name = "shared" if path in SHARED else path
        pinned = self.chance.random() < 0.1
        try:
            self.engine.load_adapter(name, str(self.paths[path]), pinned)
        except EngineError as error:
            is_taken = self.bound.get(name) not in (None, path)
            assert error.code is (ErrorCode.ADAPTER_CONFLICT if is_taken else ErrorCode.OVERLOADED)
            assert is_taken or pinned
        else:
            self.bound[name] = path

    def unload(self) -> None:
        name = self.chance.choice([*self.bound, "nobody"])
        if name not in self.bound:
            with pytest.raises(EngineError) as refused:
                self.engine.unload_adapter(name)
            assert refused.value.code is ErrorCode.MODEL_NOT_FOUND
            return
        self.engine.unload_adapter(name)
        del self.bound[name]

    def bad_input(self) -> None:
        token_ids, params, code = self.chance.choice(BAD)
        with pytest.raises(EngineError) as refused:
            self.client.submit(token_ids, greedy(3, **params))
        assert refused.value.code is code

    def break_fragile(self) -> None:
        break_files(self.paths[FRAGILE], self.chance)
        self.is_whole = False

    def break_compiled(self) -> None:
        """A file of pages: it is read from PEFT's again, and nobody notices."""
        files = sorted(self.pages.glob("*.pages"))
        if files:
            path = self.chance.choice(files)
            content = bytearray(path.read_bytes())
            content[self.chance.choice([5, 60, len(content) - 9])] ^= 0xFF
            # In place: a reader that has it open sees it too.
            with path.open("r+b") as file:
                file.write(content)

    def fault(self) -> None:
        """A step raises: whatever is in the batch then may fail."""

        def fail(*_: object) -> None:
            raise RuntimeError("the device is lost")

        self.may_fail.update(r for r in self.asked if not self.client.terminal(r))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.engine._runner, self.chance.choice(PARTS_OF_A_STEP), fail)
            self.client.step()

    def check(self) -> None:
        for request_id, key in self.asked.items():
            tokens, wanted = self.client.tokens(request_id), None
            (end,) = self.client.terminal(request_id)
            assert self.client.events[request_id][-1] is end
            if key[0] == BROKEN and not isinstance(end, Aborted):
                assert isinstance(end, Failed) and not tokens
                codes = {ErrorCode.NON_FINITE_LOGITS}
                codes |= {ErrorCode.INTERNAL} if request_id in self.may_fail else set()
                assert end.code in codes
                continue
            if key[0] != BROKEN:
                wanted = self.world.answer(key)
                assert tokens == wanted[: len(tokens)], (request_id, key)
            if isinstance(end, Finished):
                assert tokens == wanted, (request_id, key)
            elif isinstance(end, Failed) and end.code is ErrorCode.INVALID_ADAPTER:
                assert key[0] == FRAGILE and not self.is_whole and not tokens
            elif isinstance(end, Failed):
                assert request_id in self.may_fail and end.code is ErrorCode.INTERNAL
            else:
                assert request_id in self.may_abort
        stats, state = self.engine.stats(), self.engine.state()
        assert stats.num_finished + stats.num_aborted + stats.num_failed == len(self.asked)
        assert state.num_free_kv_blocks == state.num_kv_blocks
        assert all(info.num_leases == 0 for info in state.adapters)
        assert {info.name for info in state.adapters} == set(self.bound)


@pytest.mark.case("C65")
@pytest.mark.case("C71")
# A smaller seed is no smaller case: nothing to shrink.
@settings(max_examples=10, deadline=None, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32))
def test_each_request_ends_once_and_answers_as_if_alone(world: World, seed: int) -> None:
    with TemporaryDirectory() as folder:
        fire = Fire(world, Path(folder), seed)
        for _ in range(90):
            fire.act()
        fire.client.drain()
        fire.check()
        # As a server ends: the readers' threads too.
        fire.engine.stop()
        fire.engine.run()


@pytest.mark.parametrize("seed", range(3))
def test_stop_ends_each_request_once_whoever_submits_meanwhile(world: World, seed: int) -> None:
    client, chance = (
        Patient(make_engine(world.base, max_num_seqs=4, **world.config)),
        random.Random(seed),
    )
    client.engine.load_adapter("r8", str(world.paths["r8"]))
    accepted: list[str] = []
    loop = threading.Thread(target=client.engine.run)
    loop.start()
    try:
        for _ in range(chance.randint(5, 60)):
            name, prompt = chance.choice([None, "r8"]), PROMPT[: chance.randint(1, 60)]
            accepted.append(client.submit(prompt, greedy(chance.randint(1, 40)), name))
            if chance.random() < 0.3:
                client.engine.abort(chance.choice(accepted))
    finally:
        client.engine.stop()
    with pytest.raises(EngineError, match="stopping"):
        client.submit(PROMPT, greedy(3))
    loop.join(60)
    assert not loop.is_alive()
    for request_id in accepted:
        assert len(client.terminal(request_id)) == 1
        assert client.events[request_id][-1] in client.terminal(request_id)
