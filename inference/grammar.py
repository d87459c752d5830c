"""Output held to a grammar: compiling, one matcher a sequence, the bitmask of what may come next.

The only file that imports xgrammar, and only when the first constrained request comes: it brings
transformers with it. What a client wrote is compiled by threads of our own while its request waits,
and every mask is made by others while the forward runs: neither can hold up the engine's loop. A
compilation cannot be interrupted, so its text is bounded (grammar_check.py) and its time is; past
that the request is refused, the thread is given up and another takes its place.
"""

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from inference.errors import EngineError, ErrorCode
from inference.grammar_check import check_constraint, closed
from inference.grammar_matcher import Matcher, refusal
from inference.request import Constraint
from inference.sequence import Sequence
from inference.workers import Workers

if TYPE_CHECKING:
    import xgrammar

logger = logging.getLogger(__name__)

NUM_COMPILERS = 2
NUM_MASKERS = 4
# Threads that may be lost to compilations past their time before others have to wait for them.
MAX_LOST = 4
MAX_COMPILE_S = 10.0
MAX_QUEUED_S = 30.0
MAX_CACHED = 256
# All that JSON has to escape but for ends of lines, which stand between its tokens.
CONTROL = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")
MAX_CACHED_BYTES = 256 << 20
# Between two tokens of JSON. Without a limit a weak model may write spaces for ever.
MAX_WHITESPACE_CHARS = 16
# Where in xgrammar's sources a message comes from.
ORIGIN = re.compile(r"^\[[\d:]+\] \S+: (?:Check failed: .* is false: )?")


@dataclass(eq=False)
class Entry:
    """One text on its way through the compiler. compiled or error is set when it is done."""

    constraint: Constraint
    queued_s: float
    started_s: float | None = None
    compiled: "xgrammar.CompiledGrammar | None" = None
    num_bytes: int = 0
    error: EngineError | None = None
    # Its thread was given up, and another started.
    is_replaced: bool = False

    @property
    def is_done(self) -> bool:
        return self.compiled is not None or self.error is not None


class Grammars:
    """The compiled grammars of one model, by kind and text. Any thread may call.

    on_done: called by a thread of ours after each compilation, and each first mask.
    """

    def __init__(
        self,
        model_path: str,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        on_done: Callable[[], None],
    ) -> None:
        self._model_path = Path(model_path)
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._on_done = on_done
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], Entry] = OrderedDict()
        self._compilers = Workers("grammar", NUM_COMPILERS)
        self._maskers = Workers("mask", NUM_MASKERS)
        self._num_lost = 0
        self._loading = threading.Lock()
        self._compiler: xgrammar.GrammarCompiler | None = None
        self._json_tokens = torch.zeros(0, dtype=torch.int32)

    def entry(self, constraint: Constraint) -> Entry:
        """Of this text, begun now if it is new. Raises EngineError: what can be told at once."""
        with self._lock:
            known = self._entries.get(constraint.key)
            if known is not None:
                self._entries.move_to_end(constraint.key)
                return known
        self._check(constraint)
        with self._lock:
            new = Entry(constraint, time.monotonic())
            known = self._entries.setdefault(constraint.key, new)
            self._evict()
        if known is new:
            self._compilers.put(lambda: self._compile(new))
        return known

    def settle(
        self, sequences: Iterable[Sequence]
    ) -> Iterator[tuple[Sequence, EngineError | None]]:
        """Those of them that wait no longer: they have their matcher now, or the error says why
        they will have none, under the field that asked for it.
        """
        for sequence in sequences:
            constraint, entry = sequence.request.sampling.constraint, sequence.grammar
            assert constraint is not None and entry is not None
            error = self._error(entry)
            if entry.compiled is not None and sequence.matcher is None:
                sequence.matcher = self._matcher(entry, constraint)
            # With its first mask at hand: a prompt would have to be computed again without.
            if sequence.matcher is not None and sequence.matcher.wait(0.0):
                yield sequence, sequence.matcher.error
            elif error is not None:
                yield sequence, _asked_by(constraint, error)

    def _error(self, entry: Entry) -> EngineError | None:
        with self._lock:
            if not entry.is_done:
                self._check_time(entry)
            return entry.error

    def _matcher(self, entry: Entry, constraint: Constraint) -> Matcher:
        import xgrammar

        assert entry.compiled is not None
        found = xgrammar.GrammarMatcher(entry.compiled)
        is_json = entry.constraint.kind.startswith("json")
        usable = self._json_tokens if is_json else torch.full_like(self._json_tokens, -1)
        return Matcher(found, usable, self._maskers, constraint, self._on_done)

    def close(self) -> None:
        """Ends the threads; entry() must not follow."""
        self._compilers.close()
        self._maskers.close()

    def _check(self, constraint: Constraint) -> None:
        if not self._eos_token_ids:
            raise refusal(constraint, "the model has no end-of-sequence token to end with")
        try:
            check_constraint(constraint)
        except ValueError as error:
            raise refusal(constraint, str(error)) from error

    def _check_time(self, entry: Entry) -> None:
        now_s = time.monotonic()
        if entry.started_s is None:
            if now_s - entry.queued_s > MAX_QUEUED_S:
                entry.error = EngineError(ErrorCode.OVERLOADED, "too many grammars wait; try again")
                self._entries.pop(entry.constraint.key, None)
        elif now_s - entry.started_s > MAX_COMPILE_S:
            message = f"compiling it takes longer than {MAX_COMPILE_S:.0f} s"
            entry.error = refusal(entry.constraint, message)
            if self._num_lost < MAX_LOST:
                self._num_lost += 1
                entry.is_replaced = True
                self._compilers.start_one()

    def _evict(self) -> None:
        """The least recently used that are done. Sequences keep what they use."""
        num_bytes = sum(entry.num_bytes for entry in self._entries.values())
        for key, entry in list(self._entries.items())[:-1]:
            if len(self._entries) <= MAX_CACHED and num_bytes <= MAX_CACHED_BYTES:
                return
            if entry.is_done:
                num_bytes -= entry.num_bytes
                del self._entries[key]

    def _compile(self, entry: Entry) -> None:
        found: xgrammar.CompiledGrammar | EngineError
        try:
            # Imports and the vocabulary are ours: their time is not the client's.
            compiler = self._ready_compiler(entry.constraint)
            entry.started_s = time.monotonic()
            if entry.error is not None:
                return
            found = _compiled(compiler, entry.constraint)
        except EngineError as error:
            found = error
        except Exception:
            logger.exception("a grammar could not be compiled")
            found = EngineError(ErrorCode.INTERNAL, "the grammar could not be compiled")
        with self._lock:
            self._finish(entry, found)
        self._on_done()

    def _finish(self, entry: Entry, found: "xgrammar.CompiledGrammar | EngineError") -> None:
        if entry.is_replaced:
            self._num_lost -= 1
            self._compilers.stop_one()
        if entry.error is not None:
            # It was refused for its time: so is the next one that asks.
            return
        if isinstance(found, EngineError):
            entry.error = found
        else:
            entry.compiled, entry.num_bytes = found, int(found.memory_size_bytes)

    def _ready_compiler(self, constraint: Constraint) -> "xgrammar.GrammarCompiler":
        with self._loading:
            if self._compiler is None:
                self._compiler = self._new_compiler(constraint)
            return self._compiler

    def _new_compiler(self, constraint: Constraint) -> "xgrammar.GrammarCompiler":
        """Raises EngineError UNSUPPORTED_PARAMETER: what this engine lacks."""
        path = self._model_path / "tokenizer.json"
        if not path.is_file():
            message = f"constrained output needs the model's tokenizer: there is no {path.name}"
            raise EngineError(ErrorCode.UNSUPPORTED_PARAMETER, message, constraint.param)
        try:
            import xgrammar
        except ImportError as error:
            message = "constrained output needs the package xgrammar, which is not installed"
            raise EngineError(ErrorCode.UNSUPPORTED_PARAMETER, message, constraint.param) from error
        from inference.server.tokenizer import Tokenizer

        vocabulary = Tokenizer.load(path.parent, None).vocabulary
        # Bytes as clients see them: control tokens have none, nor have ids past the tokenizer's.
        # The compiler never allows a token without bytes.
        tokens = [vocabulary.token_bytes(token_id) for token_id in range(self._vocab_size)]
        self._json_tokens = _without_control_characters(tokens)
        info = xgrammar.TokenizerInfo(
            tokens, xgrammar.VocabType.RAW, stop_token_ids=list(self._eos_token_ids)
        )
        return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def _asked_by(constraint: Constraint, error: EngineError) -> EngineError:
    """The error of one text, which another field may have sent first."""
    message = error.message
    if error.param is not None:
        message = message.replace(f"'{error.param}'", f"'{constraint.param}'", 1)
    return EngineError(error.code, message, constraint.param)


def _without_control_characters(tokens: list[bytes]) -> torch.Tensor:
    """A bit [ceil(V / 32)] a token that may be part of JSON. Between tokens that is no loss, and
    within strings of limited length the compiler lets them pass.
    """
    words = [0] * -(-len(tokens) // 32)
    for token_id, text in enumerate(tokens):
        words[token_id // 32] |= (not CONTROL.search(text)) << token_id % 32
    return torch.tensor(words, dtype=torch.uint32).view(torch.int32)


def _compiled(
    compiler: "xgrammar.GrammarCompiler", constraint: Constraint
) -> "xgrammar.CompiledGrammar":
    """Raises EngineError INVALID_REQUEST with the compiler's reason."""
    try:
        if constraint.kind == "regex":
            return compiler.compile_regex(constraint.text)
        if constraint.kind == "grammar":
            return compiler.compile_grammar(constraint.text)
        is_any = constraint.kind == "json_object"
        text = '{"type": "object"}' if is_any else closed(constraint.text)
        # Its own strict mode closes arrays too, and takes minItems for a contradiction.
        return compiler.compile_json_schema(
            text, strict_mode=False, max_whitespace_cnt=MAX_WHITESPACE_CHARS
        )
    except (RuntimeError, ValueError) as error:
        first = ORIGIN.sub("", str(error)).strip().split("\n")[0]
        raise refusal(constraint, first[:300].rstrip(".")) from error
