"""The Llama family as one decoder: Llama, SmolLM2, Mistral, Qwen2 (qkv bias), Qwen3 (qk norm)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from inference.batch import AnySequences, ForwardBatch, SequenceBatch, TokenBatch
from inference.lora import GROUP_NAMES
from inference.model_spec import ModelSpec
from inference.models.linear import Linear
from inference.models.projection import (
    Projected,
    add_rms_norm,
    project,
    rope_kv_write,
    silu_mul,
)
from inference.models.rope import rope_table
from kernels.attention import attention, attention_of_any
from kernels.norm import rms_norm
from kernels.shares import sum_shares

QKV, OUT, GATE_UP, DOWN = range(len(GROUP_NAMES))
# Cosines and sines [T, D / 2] of a step's positions.
Angles = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class LayerWeights:
    """qkv and gate_up are fused along the output, in this order. q_norm, k_norm [D]: Qwen3 only."""

    input_norm: torch.Tensor
    qkv: Linear
    o: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


@dataclass(frozen=True)
class ModelWeights:
    """embed [V, H]; lm_head is made of it when the two are tied."""

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    lm_head: Linear


class LlamaModel:
    """max_len: positions for which rotary angles are prepared."""

    def __init__(self, spec: ModelSpec, weights: ModelWeights, max_len: int) -> None:
        self.spec = spec
        self.weights = weights
        self._scale = spec.head_dim**-0.5
        self._cos, self._sin = rope_table(spec.rope, spec.head_dim, max_len, weights.embed.device)

    def forward(self, batch: ForwardBatch, kv: torch.Tensor) -> torch.Tensor:
        """Logits [samples, V] of batch.logits_rows. kv [L, 2, NB, BS, HKV, D], updated."""
        return self.logits(self.stream(batch.tokens, batch.sequences, kv), batch.logits_rows)

    def stream(
        self, tokens: TokenBatch, sequences: SequenceBatch | AnySequences, kv: torch.Tensor
    ) -> torch.Tensor:
        """The normed stream [T, H] behind the last layer."""
        residual, angles = self.embed(tokens)
        x = self.queries(0, None, residual, angles, tokens, kv)
        for number in range(self.spec.num_layers):
            out = self.attend(number, x, sequences, kv)
            x = self.queries(number + 1, out, residual, angles, tokens, kv)
        return x

    def embed(self, batch: TokenBatch) -> tuple[torch.Tensor, Angles]:
        """The residual stream [T, H] at its start; cosines and sines of the positions."""
        angles = (self._cos[batch.positions], self._sin[batch.positions])
        return F.embedding(batch.token_ids, self.weights.embed), angles

    def queries(
        self,
        number: int,
        out: torch.Tensor | None,
        residual: torch.Tensor,
        angles: Angles,
        batch: TokenBatch,
        kv: torch.Tensor,
    ) -> torch.Tensor:
        """From a layer's attention, out [T, HQ · D], to the queries [T, HQ, D] of layer number,
        whose keys and values are written; behind the last layer, to the normed stream [T, H].

        residual is updated. out None: of layer 0.
        """
        eps, layers = self.spec.rms_norm_eps, self.weights.layers
        is_last = number == len(layers)
        norm = self.weights.norm if is_last else layers[number].input_norm
        if out is None:
            x = rms_norm(residual, norm, eps)
        else:
            former = layers[number - 1]
            attended = project(number - 1, OUT, former.o, out, batch.lora)
            x = add_rms_norm(attended, residual, former.post_norm, eps)
            x = add_rms_norm(self._feed_forward(number - 1, former, x, batch), residual, norm, eps)
        if is_last:
            return x
        layer = layers[number]
        qkv = project(number, QKV, layer.qkv, x, batch.lora)
        norms = (layer.q_norm, layer.k_norm)
        return rope_kv_write(qkv, angles, kv[number], batch.places, norms, eps)

    def attend(
        self, number: int, q: torch.Tensor, batch: SequenceBatch | AnySequences, kv: torch.Tensor
    ) -> torch.Tensor:
        """q [T, HQ, D] over the layer's cache → [T, HQ · D]."""
        if isinstance(batch, AnySequences):
            caches = (kv[number, 0], kv[number, 1])
            out = attention_of_any(q, *caches, batch.decodes, batch.chunks, self._scale)
            return out.flatten(1)
        return attention(
            q,
            kv[number, 0],
            kv[number, 1],
            batch.block_tables,
            batch.query_start,
            batch.context_lens,
            self._scale,
            num_decodes=batch.num_decodes,
            max_decode_context=batch.max_decode_context,
            prefills=batch.prefills,
        ).flatten(1)

    def logits(self, x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """[samples, V] of these rows of the normed stream, None for all."""
        x = x if rows is None else x[rows]
        return sum_shares(self.weights.lm_head(x), x.dtype)

    def _feed_forward(
        self, number: int, layer: LayerWeights, x: torch.Tensor, batch: TokenBatch
    ) -> Projected:
        inner = silu_mul(project(number, GATE_UP, layer.gate_up, x, batch.lora), x.dtype)
        return project(number, DOWN, layer.down, inner, batch.lora)
