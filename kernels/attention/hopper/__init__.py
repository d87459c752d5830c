"""Prefill attention for Hopper, in Gluon: copies, matmuls and softmax of steps overlap."""

from kernels.attention.hopper.kernel import fits, prefill

__all__ = ["fits", "prefill"]
