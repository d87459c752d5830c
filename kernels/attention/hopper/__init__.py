"""Attention for Hopper, in Gluon: copies, matmuls and softmax of different steps overlap."""

from kernels.attention.hopper.decode import decode
from kernels.attention.hopper.prefill import fits, prefill

__all__ = ["decode", "fits", "prefill"]
