"""The barrier among a group's warps."""

from triton.experimental.gluon import language as gl

# Its name in Triton 3.6, and since.
thread_barrier = getattr(gl, "thread_barrier", None) or gl.barrier
