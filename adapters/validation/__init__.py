"""Is an upload an adapter that can be served? Answered in a child process with limits.

Nothing here imports Django or torch, opens a network connection or unpickles anything.
"""
