"""Documents packed into one sequence: a query sees the keys with its own id.

All of them or those up to itself. Once tokens are sorted by id, those of one id in their order, it
sees an interval, whatever the ids were. Where causal calls are long enough for sums, so are their
long documents; all others are met pair by pair. The equations are in `kernels.documents`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from querykey.backends.triton import plans
from querykey.backends.triton.buffers import empty_outputs
from querykey.backends.triton.call import KernelCall, SumLaunches, cut, kernel_call
from querykey.backends.triton.intervals import DocumentFacts, Intervals
from querykey.backends.triton.kernels import documents as kernels
from querykey.backends.triton.launches import Launcher
from querykey.backends.triton.passes import Places, Results, Sums, Tokens, scale_gradients, sum_up
from querykey.backends.triton.plans import Launch

COPIED = 8192  # entries of tokens that one program copies


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    found: Intervals,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
    facts: DocumentFacts | None = None,
) -> Results:
    """Do as `passes.forward` for documents; 1/z is in their order.

    What the facts, if they are known, tell to be needless is not started: answers are the same.
    """
    launches = _launches(q, k, v, found, numbers, causal, keep)
    out, residue, inverse = empty_outputs(q, v, keep)
    low, end, seen, *real = found.table
    k_sorted, v_sorted = (launches.sorted_copy(x, found, facts) for x in (k, v))
    blocks, sums, far = None, Sums(None, None, None), launches.far(facts)
    if far:
        key_sums, places = launches.key_sums, Places(low, end, found.facts)
        k_blocks = launches.blocks(key_sums, k, found)
        tokens = Tokens(k, k_blocks, v, None, k_sorted, v_sorted)
        sums, _ = sum_up(launches.call, key_sums, tokens, None, places=places)
        blocks = launches.blocks(launches.query_sums, q, found)
    start = launches.outputs if residue is None else launches.outputs_and_residue
    start(
        far, q_LGTD=q, q_LGBDS=blocks, k_LTD=k, v_LTM=v, k_sorted_LTD=k_sorted,
        v_sorted_LTM=v_sorted, square_LCPDM=sums.square, moments_LCR=sums.moments,
        order_ET=found.order, low_ET=low, end_ET=end, seen_ET=seen,
        real_ET=real[0] if real else None, facts_E2=found.facts, out_LGTM=out,
        residue_LGTM=residue, inverse_LGT=inverse,
    )  # fmt: skip
    return Results(out, residue, inverse, sums.square, sums.moments)


def backward(
    dout: Tensor,
    results: Results,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    found: Intervals,
    numbers: Sequence[float],
    causal: bool,
    facts: DocumentFacts | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Do as `passes.backward` for documents, with the facts that `forward` had."""
    launches = _launches(q, k, v, found, numbers, causal, True)
    call, order, far = launches.call, found.order, launches.far(facts)
    low, end, *_ = found.table
    e = torch.empty_like(results.inverse)
    g = a = None
    if far:
        g, a = scale_gradients(launches.scaled_gradients, dout, results, e, order)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    blocks = launches.blocks(launches.query_sums, q, found) if far else None
    launches.query_gradients(
        far, q_LGTD=q, q_LGBDS=blocks, k_LTD=k, v_LTM=v,
        k_sorted_LTD=launches.sorted_copy(k, found, facts),
        v_sorted_LTM=launches.sorted_copy(v, found, facts), dout_LGTM=dout, e_LGT=e,
        inverse_LGT=results.inverse, square_LCPDM=results.square, moments_LCR=results.moments,
        order_ET=order, low_ET=low, end_ET=end, facts_E2=found.facts, out_LGTM=results.out,
        residue_LGTM=results.residue, dq_LGTD=dq,
    )  # fmt: skip
    q_sorted, dout_sorted = (launches.sorted_copy(x, found, facts) for x in (q, dout))
    square = moments = None
    if blocks is not None and g is not None:
        tokens = Tokens(q, blocks, g, a, q_sorted)
        places = Places(low, end, found.facts)
        (square, moments, _), _ = sum_up(call, launches.query_sums, tokens, None, places=places)
        del g, tokens  # before the next
        blocks = launches.blocks(launches.key_sums, k, found)
    launches.key_gradients(
        far, q_LGTD=q, k_LTD=k, k_LBDS=blocks, v_LTM=v, dout_LGTM=dout, q_sorted_LGTD=q_sorted,
        dout_sorted_LGTM=dout_sorted, e_LGT=e, inverse_LGT=results.inverse, square_LCPDM=square,
        moments_LCR=moments, order_ET=order, low_ET=low, end_ET=end, facts_E2=found.facts,
        dk_LTD=dk, dv_LTM=dv,
    )  # fmt: skip
    return dq, dk, dv


def _launches(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    found: Intervals,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> DocumentLaunches:
    """Return the launches of a call, made once for all calls alike."""
    # Without causal order a query would need the sums of its document behind it as well.
    call = kernel_call(q, k, v, numbers, causal=causal, keep=keep, pairs=not causal)
    return _known(call, len(found.order), call.plan.near[keep])


class Parts:
    """One job in two launches, by sums and by pairs: each leaves the other's blocks alone."""

    def __init__(self, by_sums: Launcher | None, by_pairs: Launcher):
        self.by_sums, self.by_pairs = by_sums, by_pairs

    def __call__(self, far: bool, **tensors: Tensor | None) -> None:
        """Run both on the same tensors, or where nothing is far the second alone."""
        if far and self.by_sums is not None:
            self.by_sums(**tensors)
        self.by_pairs(**{name: None if name in _OF_SUMS else x for name, x in tensors.items()})


_OF_SUMS = {"square_LCPDM", "moments_LCR", "q_LGBDS", "k_LBDS"}


class DocumentLaunches:
    """The launches of calls alike: how they are cut up, and how many batch entries they have."""

    def __init__(self, call: KernelCall, batch: int, longest_near: int):
        self.call, self.longest_near = call, longest_near
        self.heads = call.sizes.lanes // batch  # lanes that share documents
        self._copies: dict[tuple[int, int], Launcher] = {}

    def far(self, facts: DocumentFacts | None) -> bool:
        """Whether some documents may be long enough for sums."""
        return self.call.far and (facts is None or facts.longest > self.longest_near)

    def sorted_copy(self, x: Tensor, found: Intervals, facts: DocumentFacts | None) -> Tensor:
        """Return x (lanes, ..., T, width) in the order of documents, which nobody reads if it is x.

        That is known from the facts, or else on the GPU, where nothing is written then.
        """
        if facts is not None and not facts.moved:
            return x
        y, (tokens, width) = torch.empty_like(x), x.shape[-2:]
        rows = x.numel() // (tokens * width)
        copy = self._copies.get((rows, width))
        if copy is None:
            block, heads = COPIED // width, rows // len(found.order)
            copy = self._copies[rows, width] = Launcher(
                kernels.sorted_copy, (cut(tokens, block), rows), plans.PLAIN,
                T=tokens, heads=heads, WIDTH=width, BLOCK=block,
            )  # fmt: skip
        copy(x_LTW=x, y_LTW=y, order_ET=found.order, facts_E2=found.facts)
        return y

    def blocks(self, sums: SumLaunches, x: Tensor, found: Intervals) -> Tensor:
        """Return x in order and in blocks with tokens last, unwritten if no document is long."""
        blocks = x.new_empty(sums.block_shape)
        start = self._blocks_of_keys if sums is self.key_sums else self._blocks_of_queries
        start(x_LGTD=x, x_LGBDS=blocks, order_ET=found.order, facts_E2=found.facts)
        return blocks

    @cached_property
    def key_sums(self) -> SumLaunches:
        """The launches that sum up keys and values."""
        how = {"heads": self.heads, "longest_near": self.longest_near}
        return SumLaunches(self.call, self.call.sizes.keys, 1, weighted=False, **how)

    @cached_property
    def query_sums(self) -> SumLaunches:
        """The launches that sum up queries and gradients of their outputs, with weights."""
        how = {"heads": self.heads, "longest_near": self.longest_near}
        sizes = self.call.sizes
        return SumLaunches(
            self.call, sizes.queries, sizes.group, weighted=True, backward=True, **how
        )

    @cached_property
    def _blocks_of_keys(self) -> Launcher:
        return self._blocks(1)

    @cached_property
    def _blocks_of_queries(self) -> Launcher:
        return self._blocks(self.call.sizes.group)

    def _blocks(self, group: int) -> Launcher:
        call = self.call
        sizes, blocks = call.sizes, call.blocks(call.sizes.keys)
        return Launcher(
            kernels.sorted_blocks, (blocks, sizes.lanes * group), plans.PLAIN, T=sizes.keys,
            blocks=blocks, heads=self.heads * group, longest_near=self.longest_near,
            D=sizes.key_dim, STEP=call.step,
        )  # fmt: skip

    @cached_property
    def scaled_gradients(self) -> Launcher:
        """The launch of what the gradients take from the output's gradient."""
        return self.call.scaled(self.heads)

    @cached_property
    def outputs(self) -> Parts:
        """The launches of the outputs, without room for a residue."""
        return self._by_query(kernels.document_outputs, self.call.plan.outputs, KEEP=False)

    @cached_property
    def outputs_and_residue(self) -> Parts:
        """The launches of the outputs and their residue."""
        return self._by_query(kernels.document_outputs, self.call.plan.outputs, KEEP=True)

    @cached_property
    def query_gradients(self) -> Parts:
        """The launches of the gradients of queries."""
        return self._by_query(kernels.document_query_gradients, self.call.plan.by_query)

    def _by_query(self, kernel: Any, launches: tuple[Launch, Launch], **more: bool) -> Parts:
        sizes = self.call.sizes
        return self._parts(
            kernel, launches, lambda x: cut(sizes.queries, x.queries), sizes.group, **more
        )

    @cached_property
    def key_gradients(self) -> Parts:
        """The launches of the gradients of keys and values."""
        launches, keys = self.call.plan.by_key, self.call.sizes.keys
        return self._parts(kernels.document_key_gradients, launches, lambda x: cut(keys, x.keys), 1)

    def _parts(
        self,
        kernel: Any,
        launches: tuple[Launch, Launch],
        blocks: Callable[[Launch], int],
        group: int,
        **more: bool,
    ) -> Parts:
        """Return the launches of a kernel: for blocks with sums, if there are any, and without."""
        split, near = self.call.far, launches[1]
        if split and blocks(launches[0]) != blocks(near):
            near = launches[0]  # each block is left to one of both

        def made(launch: Launch, far: bool) -> Launcher:
            grid = blocks(launch), self.call.sizes.lanes * group
            how = {"SPLIT": split, "FAR": far} | self._numbers(launch) | more
            return Launcher(kernel, grid, launch, **how)

        return Parts(made(launches[0], True) if split else None, made(near, False))

    def _numbers(self, launch: plans.Launch) -> dict[str, Any]:
        """Return the numbers that all kernels over queries or keys take."""
        call = self.call
        sizes, similarity = call.sizes, call.similarity
        return {
            "T": sizes.queries, "heads": self.heads, "blocks": call.blocks(sizes.keys),
            "chunks": call.tables, "longest_near": self.longest_near, "rise": similarity.rise,
            "shift": similarity.shift, "offset": similarity.offset or None, "G": sizes.group,
            "CHUNK": call.plan.chunk, "D": sizes.key_dim, "M": sizes.value_dim, "STEP": call.step,
            "BQ": launch.queries, "BK": launch.keys, "CAUSAL": call.causal,
            "PRECISION": call.precision,
        }  # fmt: skip


@lru_cache(maxsize=256)
def _known(call: KernelCall, batch: int, longest_near: int) -> DocumentLaunches:
    return DocumentLaunches(call, batch, longest_near)
