"""The Llama family as one decoder: Llama, SmolLM2, Mistral, Qwen2 (qkv bias), Qwen3 (qk norm)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from inference.batch import ForwardBatch
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
from kernels.attention import attention
from kernels.norm import rms_norm
from kernels.shares import sum_shares

QKV, OUT, GATE_UP, DOWN = range(len(GROUP_NAMES))


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
        eps = self.spec.rms_norm_eps
        angles = (self._cos[batch.positions], self._sin[batch.positions])
        residual = F.embedding(batch.token_ids, self.weights.embed)
        norms = [layer.input_norm for layer in self.weights.layers[1:]] + [self.weights.norm]
        x = rms_norm(residual, self.weights.layers[0].input_norm, eps)
        for number, (layer, next_norm) in enumerate(zip(self.weights.layers, norms, strict=True)):
            out = self._attention(number, layer, x, batch, kv[number], angles)
            x = add_rms_norm(out, residual, layer.post_norm, eps)
            out = self._feed_forward(number, layer, x, batch)
            x = add_rms_norm(out, residual, next_norm, eps)
        if batch.logits_rows is not None:
            x = x[batch.logits_rows]
        return sum_shares(self.weights.lm_head(x), x.dtype)

    def _attention(
        self,
        number: int,
        layer: LayerWeights,
        x: torch.Tensor,
        batch: ForwardBatch,
        kv: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
    ) -> Projected:
        qkv = project(number, QKV, layer.qkv, x, batch.lora)
        norms = (layer.q_norm, layer.k_norm)
        q = rope_kv_write(qkv, angles, kv, batch.places, norms, self.spec.rms_norm_eps)
        out = attention(
            q,
            kv[0],
            kv[1],
            batch.block_tables,
            batch.query_start,
            batch.context_lens,
            self._scale,
            num_decodes=batch.num_decodes,
            max_decode_context=batch.max_decode_context,
            prefills=batch.prefills,
        )
        return project(number, OUT, layer.o, out.flatten(1), batch.lora)

    def _feed_forward(
        self, number: int, layer: LayerWeights, x: torch.Tensor, batch: ForwardBatch
    ) -> Projected:
        inner = silu_mul(project(number, GATE_UP, layer.gate_up, x, batch.lora), x.dtype)
        return project(number, DOWN, layer.down, inner, batch.lora)
