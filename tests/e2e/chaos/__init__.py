"""A house under fire: clients change everything while its processes are killed; then the books."""
