"""Synthetic fleets under the routing code that production runs: `python -m gateway.simulate`."""
