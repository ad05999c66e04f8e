"""One call of the kernels, without its tensors: sizes, how it is cut up, and every launch.

A `KernelCall` is made once and kept for all calls alike, since the host needs longer to work it out
than to start the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from querykey.backends.triton import plans
from querykey.backends.triton.buffers import sum_shapes
from querykey.backends.triton.kernels import gates, gradients, running, sums
from querykey.backends.triton.kernels.outputs import outputs
from querykey.backends.triton.launches import Launcher

VALUES = 8192  # entries of values, or of gradients of outputs, that one program scales
AT_ONCE = 1024  # gates that are summed up at a time


class Sizes(NamedTuple):
    """The sizes of q (lanes, group, queries, key_dim), k (lanes, keys, key_dim) and v."""

    lanes: int
    group: int
    queries: int
    keys: int
    key_dim: int
    value_dim: int


class CompletedSquare(NamedTuple):
    """A similarity c2 x^2 + c1 x + c0, x = scale q.k, as (rise q.k + shift)^2 + offset.

    In this form nothing cancels where a square comes near 0.
    """

    rise: float
    shift: float
    offset: float

    @classmethod
    def of(cls, scale: float, c0: float, c1: float, c2: float) -> CompletedSquare:
        """Return the form for a kernel's scale and coefficients."""
        rise, shift = scale * math.sqrt(c2), c1 / (2 * math.sqrt(c2))
        offset = c0 - shift**2
        return cls(rise, shift, offset if abs(offset) > 1e-12 * c0 else 0.0)

    @property
    def arguments(self) -> dict[str, float | None]:
        """The numbers as the kernels take them, with None for no offset."""
        return self._asdict() | {"offset": self.offset or None}


@dataclass(frozen=True, eq=False)
class KernelCall:
    """The sizes of a call, its plan and its similarity, and the launches that follow from them."""

    sizes: Sizes
    plan: plans.Plan
    similarity: CompletedSquare
    dtype: torch.dtype
    causal: bool
    far: bool  # some keys come through sums
    carried: bool = False  # sums begin with those of a past
    gated: bool = False  # keys have gates, and gradients are asked for

    @property
    def near(self) -> bool:
        """Whether some queries and keys meet pair by pair."""
        return self.causal or not self.far

    @property
    def precision(self) -> str:
        """The precision of products: float32 inputs mean float32, half-precision ones tf32."""
        return "ieee" if self.dtype == torch.float32 else "tf32"

    @property
    def step(self) -> int:
        """Count the tokens of a transposed block, which lies inside a chunk."""
        return min(plans.STEP, self.plan.chunk)

    @property
    def tables(self) -> int:
        """Count the tables of sums per lane: one a chunk, or one for all; 0 where none is far."""
        if not self.far:
            return 0
        return cut(self.sizes.keys, self.plan.chunk) if self.causal else 1

    def blocks(self, tokens: int) -> int:
        """Count the transposed blocks of so many tokens, whole chunks of them."""
        return cut(tokens, self.plan.chunk) * self.plan.chunk // self.step

    def rows_at_once(self, tokens: int) -> int:
        """Count the lanes whose tokens, so many each, fit into the cache at once."""
        width = self.sizes.key_dim + self.sizes.value_dim
        return max(plans.CACHE // max(tokens * width * self.dtype.itemsize, 1), 1)

    @cached_property
    def key_sums(self) -> SumLaunches:
        """The launches that sum up keys and values."""
        return SumLaunches(self, self.sizes.keys, group=1, weighted=False)

    @cached_property
    def weighted_key_sums(self) -> SumLaunches:
        """The launches that sum up keys with weights, and values that have had theirs."""
        return SumLaunches(self, self.sizes.keys, group=1, weighted=True)

    @cached_property
    def query_sums(self) -> SumLaunches:
        """The launches that sum up queries and gradients of their outputs, with weights."""
        sizes = self.sizes
        return SumLaunches(self, sizes.queries, sizes.group, weighted=True, backward=True)

    @cached_property
    def gate_tables(self) -> Launcher:
        """The launch of what the kernels need of gates."""
        keys, chunk = self.sizes.keys, self.plan.chunk
        return Launcher(
            gates.gate_tables, (cut(keys, chunk), self.sizes.lanes), plans.PLAIN,
            N=keys, CHUNK=chunk, GRANULE=self.plan.granule, STEP=AT_ONCE,
        )  # fmt: skip

    @cached_property
    def gate_gradients(self) -> Launcher:
        """The launch of the gradients of gates, by chunk where keys are far."""
        sizes, chunk = self.sizes, self.plan.chunk
        parts = self.query_sums.parts if self.far else 1
        return Launcher(
            gates.gate_gradients, (cut(sizes.keys, chunk), sizes.lanes), plans.PLAIN,
            N=sizes.keys, parts=parts, chunks=self.tables, G=sizes.group, CHUNK=chunk,
            STEP=AT_ONCE, PARTS=1 << (parts - 1).bit_length(),
        )  # fmt: skip

    @cached_property
    def scaled_values(self) -> Launcher:
        """The launch of values times the weights of their keys."""
        rows, block = self.sizes.lanes * self.sizes.keys, VALUES // self.sizes.value_dim
        return Launcher(
            gates.scaled_values, (cut(rows, block),), plans.PLAIN, rows=rows,
            M=self.sizes.value_dim, BLOCK=block,
        )  # fmt: skip

    @cached_property
    def outputs(self) -> Launcher:
        """The launch of the outputs, without room for a residue."""
        return self._outputs(keep=False)

    @cached_property
    def outputs_and_residue(self) -> Launcher:
        """The launch of the outputs and their residue."""
        return self._outputs(keep=True)

    def _outputs(self, keep: bool) -> Launcher:
        launch = self.plan.outputs[not self.far]
        return Launcher(
            outputs, self._query_grid(launch), launch, **self._of_queries,
            KEEP=keep, CARRIED=self.carried, **self._constants(launch),
        )  # fmt: skip

    @cached_property
    def scaled_gradients(self) -> Launcher:
        """The launch of what the gradients take from the output's gradient."""
        return self.scaled()

    def scaled(self, heads: int = 1) -> Launcher:
        """Make the launch of `scaled_gradients`; `heads` lanes have the same documents."""
        rows = self.sizes.lanes * self.sizes.group * self.sizes.queries
        block = VALUES // self.sizes.value_dim
        return Launcher(
            gradients.scaled_gradients, (cut(rows, block),), plans.PLAIN, rows=rows,
            T=self.sizes.queries, heads=heads, G=self.sizes.group, M=self.sizes.value_dim,
            BLOCK=block,
        )  # fmt: skip

    @cached_property
    def query_gradients(self) -> Launcher:
        """The launch of the gradients of queries."""
        launch = self.plan.by_query[not self.far]
        if self.gated and self.far and self.plan.gated:
            launch = self.plan.gated[0]
        return Launcher(
            gradients.query_gradients, self._query_grid(launch), launch,
            **self._of_queries, **self._constants(launch),
        )  # fmt: skip

    @cached_property
    def key_gradients(self) -> Launcher:
        """The launch of the gradients of keys and values."""
        sizes, launch = self.sizes, self.plan.by_key[not self.far]
        if self.gated and self.far and self.plan.gated:
            launch = self.plan.gated[1]
        return Launcher(
            gradients.key_gradients, (cut(sizes.keys, launch.keys), sizes.lanes), launch,
            T=sizes.queries, N=sizes.keys, blocks=self.blocks(sizes.keys), chunks=self.tables,
            rows_at_once=self.rows_at_once(sizes.group * sizes.queries),
            **self.similarity.arguments, **self._constants(launch),
        )  # fmt: skip

    def _query_grid(self, launch: plans.Launch) -> tuple[int, int]:
        return cut(self.sizes.queries, launch.queries), self.sizes.lanes * self.sizes.group

    @property
    def _of_queries(self) -> dict[str, Any]:
        """The numbers that the kernels over queries get at run time."""
        sizes = self.sizes
        return {
            "T": sizes.queries, "N": sizes.keys, "blocks": self.blocks(sizes.queries),
            "chunks": self.tables, "rows_at_once": self.rows_at_once(sizes.keys) * sizes.group,
            **self.similarity.arguments,
        }  # fmt: skip

    def _constants(self, launch: plans.Launch) -> dict[str, Any]:
        """Return what the kernels over queries or keys are compiled for."""
        sizes = self.sizes
        return {
            "G": sizes.group, "CHUNK": self.plan.chunk, "D": sizes.key_dim, "M": sizes.value_dim,
            "STEP": self.step, "BQ": launch.queries, "BK": launch.keys,
            "GRANULE": self.plan.granule, "CAUSAL": self.causal, "FAR": self.far,
            "NEAR": self.near, "PRECISION": self.precision,
        }  # fmt: skip


class SumLaunches:
    """The launches that sum up the tokens of all chunks, keys or, going backward, queries.

    Of documents, those of more than `longest_near` tokens; `heads` lanes have the same ones.
    """

    def __init__(
        self,
        call: KernelCall,
        tokens: int,
        group: int,
        weighted: bool,
        backward: bool = False,
        heads: int = 1,
        longest_near: int | None = None,
    ):
        lanes, chunk = call.sizes.lanes, call.plan.chunk
        key_dim, value_dim = call.sizes.key_dim, call.sizes.value_dim
        blocks, self.chunks = call.blocks(tokens), cut(tokens, chunk)
        self.block_shape = (lanes, group, blocks, key_dim, call.step)
        self.square_shape, self.moments_size = sum_shapes(key_dim, value_dim)
        # No later chunk asks for the sums of the last, nor an earlier one for those of the first
        # going backward, unless a state is to hold them.
        asked = self.chunks - 1 if call.causal and not call.carried else self.chunks
        tiles, launch = plans.sum_plan(key_dim, value_dim)
        pairs = key_dim // 8 * (key_dim // 8 + 1) // 2  # of octets
        self.transposed = Launcher(
            sums.transposed, (blocks, lanes * group), plans.PLAIN,
            T=tokens, blocks=blocks, D=key_dim, STEP=call.step,
        )  # fmt: skip
        self.chunk_sums = Launcher(
            sums.chunk_sums, (pairs // tiles + 2, asked, lanes), launch,
            T=tokens, blocks=blocks, chunks=self.chunks, G=group, CHUNK=chunk, D=key_dim,
            M=value_dim, STEP=call.step, FIRST=self.chunks - asked if backward else 0,
            TILES=tiles, EVEN=longest_near is None and tokens % chunk == 0, WEIGHTED=weighted,
            BACKWARD=backward, PRECISION=call.precision, heads=heads, longest_near=longest_near,
        )  # fmt: skip
        size, block = math.prod(self.square_shape), 1024 if key_dim > 32 else 256
        self.parts = cut(size, block) + cut(self.moments_size, block) + 1
        self.running_sums = Launcher(
            running.running_sums, (self.parts, lanes), plans.PLAIN, N=tokens, chunks=self.chunks,
            square_size=size, moments_size=self.moments_size, **call.similarity.arguments,
            D=key_dim, M=value_dim, CHUNK=chunk, BLOCK=block, CARRIED=call.carried,
            BACKWARD=backward, TOTAL=not call.causal, heads=heads, longest_near=longest_near,
        )  # fmt: skip


def cut(tokens: int, size: int) -> int:
    """Count the pieces of at most `size` that so many tokens are cut into."""
    return -(-tokens // size)


def kernel_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Sequence[float],
    *,
    causal: bool,
    keep: bool,
    carried: bool = False,
    gated: bool = False,
    pairs: bool = False,
) -> KernelCall:
    """Return the call for q (..., T, D), k (..., N, D) and v (..., N, M), axes folded or not.

    `pairs` says that every pair is met, without sums.
    """
    (*rows, queries, key_dim), (*lanes, keys, value_dim) = q.shape, v.shape
    plan = plans.plan(key_dim, value_dim)
    count = math.prod(lanes)
    sizes = Sizes(count, math.prod(rows) // count, queries, keys, key_dim, value_dim)
    how = (causal, keep, carried, gated, pairs)
    return _kernel_call(sizes, plan, tuple(numbers), q.dtype, *how)


@lru_cache(maxsize=256)
def _kernel_call(
    sizes: Sizes,
    plan: plans.Plan,
    numbers: tuple[float, ...],
    dtype: torch.dtype,
    causal: bool,
    keep: bool,
    carried: bool,
    gated: bool,
    pairs: bool,
) -> KernelCall:
    far = carried or (not pairs and plan.far(sizes.queries, sizes.keys, keep))
    similarity = CompletedSquare.of(*numbers)
    return KernelCall(sizes, plan, similarity, dtype, causal, far, carried, gated)
