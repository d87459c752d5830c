"""Which KV blocks hold what: paging, sharing of equal prefixes, eviction. Numbers only, no tensors.

Ownership: a block is in exactly one of three places: referenced by sequences (num_refs > 0), cached
(no reference, content kept, in LRU order), or free. Block 0 is never handed out: padding points
to it.

A cached block's key is (its parent, its tokens). The parent is the node number of the block before
it; of the first block the namespace, and of the block in which an adapter begins to apply the
namespace and the node of the base's block before it. Keys are compared as values, never as glued
strings or as bare hashes: two namespaces cannot meet.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NULL_BLOCK = 0


@dataclass(frozen=True)
class Namespace:
    """Who may share KV blocks: the adapter version (None: base) and the caller's salt.

    start: the first position the adapter applies to. Full blocks before it are the base's, shared
    with all of the same salt; behind it only by those that begin at the same position.
    """

    digest: str | None
    salt: str
    start: int = 0

    @property
    def base(self) -> "Namespace":
        return Namespace(None, self.salt)


# A node, or the namespace that begins here and the node before it, if any.
Parent = int | tuple[Namespace, int | None]
Key = tuple[Parent, tuple[int, ...]]


@dataclass(frozen=True)
class Prefix:
    """A cached prefix: its blocks, and the node number of each."""

    blocks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


class KvCache:
    """num_blocks includes the null block. block_size in tokens."""

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._prefix_cache = prefix_cache
        self._free = deque(range(1, num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._num_refs = [0] * num_blocks
        self._block_by_key: dict[Key, int] = {}
        self._key_by_block: dict[int, Key] = {}
        self._node_by_block: dict[int, int] = {}
        self._next_node = 0

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        return len(self._free) + len(self._cached)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, namespace: Namespace, token_ids: Sequence[int]) -> Prefix:
        """The longest cached prefix in full blocks; at least one token is left to compute."""
        if not self._prefix_cache:
            return Prefix()
        blocks: list[int] = []
        nodes: list[int] = []
        for start in range(0, len(token_ids) - self.block_size, self.block_size):
            tokens = tuple(token_ids[start : start + self.block_size])
            block = self._block_by_key.get((self._parent(namespace, nodes), tokens))
            if block is None:
                break
            blocks.append(block)
            nodes.append(self._node_by_block[block])
        return Prefix(tuple(blocks), tuple(nodes))

    def num_unreferenced(self, blocks: Iterable[int]) -> int:
        """How many of these blocks would leave num_free when acquired."""
        return sum(self._num_refs[block] == 0 for block in blocks)

    def acquire(self, blocks: Iterable[int]) -> None:
        """One more reference to each of these cached or shared blocks."""
        for block in blocks:
            self._cached.pop(block, None)
            self._num_refs[block] += 1

    def allocate(self, num_blocks: int) -> list[int] | None:
        """New blocks with one reference each, or None when there are not enough."""
        if num_blocks > self.num_free:
            return None
        blocks = [self._take() for _ in range(num_blocks)]
        for block in blocks:
            self._num_refs[block] = 1
        return blocks

    def commit(
        self,
        namespace: Namespace,
        token_ids: Sequence[int],
        blocks: Sequence[int],
        nodes: list[int],
    ) -> None:
        """Makes the full blocks of token_ids findable; nodes is the sequence's chain and grows.

        Only after their keys and values have been computed. A block whose content another sequence
        has committed meanwhile stays private; the chain goes on from the other's node.
        """
        if not self._prefix_cache:
            return
        size = self.block_size
        for index in range(len(nodes), len(token_ids) // size):
            tokens = tuple(token_ids[index * size : (index + 1) * size])
            key = (self._parent(namespace, nodes), tokens)
            nodes.append(self._register(key, blocks[index]))

    def release(self, blocks: Sequence[int]) -> None:
        """Takes one reference off each block; last ones first, so that leaves are evicted first."""
        for block in reversed(blocks):
            self._num_refs[block] -= 1
            if self._num_refs[block] > 0:
                continue
            if block in self._key_by_block:
                self._cached[block] = None
            else:
                self._free.append(block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless references, places and keys agree with the block tables."""
        counts = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counts[block] += 1
        assert counts == self._num_refs, "references differ from the block tables"
        assert counts[NULL_BLOCK] == 0, "the null block is in use"
        free, cached = set(self._free), set(self._cached)
        used = {block for block, count in enumerate(counts) if count}
        assert len(free) == len(self._free), "a block is free twice"
        assert not (free & cached or free & used or cached & used), "a block is in two places"
        assert free | cached | used == set(range(1, self.num_blocks)), "a block is lost"
        assert cached <= set(self._key_by_block), "a cached block has no key"
        assert not free & set(self._key_by_block), "a free block has a key"
        assert {b: k for k, b in self._block_by_key.items()} == self._key_by_block, "keys differ"
        assert set(self._node_by_block) == set(self._key_by_block), "nodes differ"

    def _parent(self, namespace: Namespace, nodes: Sequence[int]) -> Parent:
        """Of the block that comes after those of nodes."""
        before = nodes[-1] if nodes else None
        if len(nodes) == namespace.start // self.block_size:
            return namespace, before
        return (namespace.base, None) if before is None else before

    def _take(self) -> int:
        if self._free:
            return self._free.popleft()
        block, _ = self._cached.popitem(last=False)
        self._unregister(block)
        return block

    def _register(self, key: Key, block: int) -> int:
        known = self._block_by_key.get(key)
        if known is not None:
            return self._node_by_block[known]
        self._next_node += 1
        self._block_by_key[key] = block
        self._key_by_block[block] = key
        self._node_by_block[block] = self._next_node
        return self._next_node

    def _unregister(self, block: int) -> None:
        key = self._key_by_block.pop(block)
        del self._block_by_key[key]
        del self._node_by_block[block]
