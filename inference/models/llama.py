"""The Llama family as one decoder: Llama, SmolLM2, Mistral, Qwen2 (qkv bias), Qwen3 (qk norm)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from inference.batch import ForwardBatch
from inference.lora import GROUP_NAMES
from inference.model_spec import ModelSpec
from inference.models.linear import Linear
from inference.models.rope import rope_table
from kernels.activation import silu_mul
from kernels.attention import attention
from kernels.norm import add_rms_norm, rms_norm
from kernels.rope import rope_kv_write

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
        x = rms_norm(residual, self.weights.layers[0].input_norm, eps)
        for number, layer in enumerate(self.weights.layers):
            x = self._attention(number, layer, x, batch, kv[number], angles)
            x = add_rms_norm(x, residual, layer.post_norm, eps)
            x = self._feed_forward(number, layer, x, batch)
            is_last = number + 1 == self.spec.num_layers
            norm = self.weights.norm if is_last else self.weights.layers[number + 1].input_norm
            if is_last:
                x, residual = x[batch.logits_rows], residual[batch.logits_rows]
            x = add_rms_norm(x, residual, norm, eps)
        return self.weights.lm_head(x)

    def _attention(
        self,
        number: int,
        layer: LayerWeights,
        x: torch.Tensor,
        batch: ForwardBatch,
        kv: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        qkv = _project(number, QKV, layer.qkv, x, batch)
        q = rope_kv_write(
            qkv,
            *angles,
            kv[0],
            kv[1],
            batch.places,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=self.spec.rms_norm_eps,
        )
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
        return _project(number, OUT, layer.o, out.flatten(1), batch)

    def _feed_forward(
        self, number: int, layer: LayerWeights, x: torch.Tensor, batch: ForwardBatch
    ) -> torch.Tensor:
        inner = silu_mul(_project(number, GATE_UP, layer.gate_up, x, batch))
        return _project(number, DOWN, layer.down, inner, batch)


def _project(
    number: int, group: int, linear: Linear, x: torch.Tensor, batch: ForwardBatch
) -> torch.Tensor:
    y = linear(x)
    if batch.lora is not None:
        batch.lora.add(number, group, y, x)
    return y
