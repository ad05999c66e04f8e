"""Compiles the planned kernels for a Hopper GPU, which need not be there, and looks for races.

A loop that Triton pipelines copies later tiles into shared memory while products read earlier ones.
Too few buffers, and a copy lands where a product may still be reading: results then change from run
to run, or not, as the clock has it. The last line printed is JSON: kernels with such buffers, and
kernels whose products wait for tiles that are not copied ahead.
"""

import json
import re

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from querykey.backends.triton import plans
from querykey.backends.triton.call import CompletedSquare, KernelCall, Sizes
from querykey.backends.triton.documents import DocumentLaunches
from querykey.backends.triton.launches import Launcher

HALF, SINGLE, N = MockTensor(torch.bfloat16), MockTensor(torch.float32), 4096
FLAGS, WHOLE = MockTensor(torch.uint8), MockTensor(torch.int32)
# Which keys are real, counts, gates and sums of what these get.
KINDS = {
    "": (None, None, None, None),
    ", padded": (FLAGS, SINGLE, None, None),
    ", gates": (None, SINGLE, SINGLE, SINGLE),
}
INPUTS = {"q_LGTD": HALF, "k_LND": HALF, "v_LNM": HALF, "inverse_LGT": SINGLE}
FAR = {"square_LCPDM": HALF, "moments_LCR": SINGLE}
PLACES = {"low_ET": WHOLE, "end_ET": WHOLE, "facts_E2": WHOLE}
INDEX = re.compile(r"(%[\w#]+) = ttg\.memdesc_index (%[\w#]+)\[.*?: !ttg\.memdesc<(\d+)x")
VIEW = re.compile(r"(%[\w#]+) = ttg\.memdesc_(?:trans|subslice) (%[\w#]+)")
PRODUCT = re.compile(r"= ttng\.warp_group_dot (%[\w#]+), (%[\w#]+)")
WAIT = re.compile(r"warp_group_dot_wait .*pendings = (\d+)")
COPY = re.compile(r"= ttg\.async_copy_global_to_local %[\w#]+, (%[\w#]+)")
TILE = re.compile(r"= tt\.load .*tensor<\d+x\d\d+x!tt\.ptr")
ARRIVED = re.compile(r"= ttg\.async_wait .*num = (\d+)")


class Compiled(Exception):
    """Carries what the compiler has made of a kernel, in place of the machine code."""


class Hopper:
    """A GPU to compile for."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device=None):
        return 0


def stop(_backend, module, *_):
    raise Compiled(str(module))


def text_of(launcher, tensors):
    launch = launcher.launch
    options = {"num_warps": launch.warps, "num_stages": launch.stages, "maxnreg": launch.registers}
    try:
        launcher.kernel.warmup(**tensors, **launcher.numbers, grid=(1,), **options)
    except Compiled as made:
        return str(made)
    raise AssertionError("the compiler did not get to the machine's code")


def loops(text):
    """Yield the bodies of loops that have no loop inside."""
    lines = text.splitlines()
    for first, line in enumerate(lines):
        if "scf.for" in line:
            end = line[: len(line) - len(line.lstrip())] + "}"
            body = []
            for inner in lines[first + 1 :]:
                if inner.startswith(end):
                    break
                body.append(inner)
            if not any("scf.for" in inner for inner in body):
                yield body


def endangered(body, text):
    """Return the buffers of a loop into which is copied while a product may still read them."""
    # A single buffer is found before the loop.
    buffers = {m[1]: (m[2], int(m[3])) for m in INDEX.finditer(text)}
    views, read, copies, ahead = {}, set(), [], 0
    running = 0  # products that may be, at most; what the last turn leaves is there in the next
    for _ in range(2):
        begun, copies = 0, []
        for line in body:
            if found := VIEW.search(line):
                views[found[1]] = found[2]
            elif found := PRODUCT.search(line):
                begun, running = begun + 1, running + 1
                for side in found.groups():
                    while side in views:
                        side = views[side]
                    read.add(buffers.get(side, (None,))[0])
            elif found := WAIT.search(line):
                running = min(running, int(found[1]))
            elif found := ARRIVED.search(line):
                ahead = int(found[1])
            elif found := COPY.search(line):
                copies.append((*buffers[found[1]], running, begun))
    ahead = ahead // max(len(copies), 1) + 1  # turns
    # With as many buffers as turns ahead this turn's tile is overwritten, with one more the last's.
    return [
        name
        for name, count, running, begun in copies
        if name in read and running > (begun if count > ahead else 0)
    ]


def planned(size):
    """Yield a name, a launcher and its tensors, for heads of a size."""
    plan, sizes = plans.plan(size, size), Sizes(1, 1, N, N, size, size)
    for far in (True, False):
        how = (sizes, plan, CompletedSquare(1.0, 1.0, 1.0), torch.bfloat16, True, far)
        call, gated = KernelCall(*how), KernelCall(*how, gated=True)
        plain = INPUTS | (FAR if far else dict.fromkeys(FAR))
        outs = plain | dict.fromkeys(("out_LGTM", "residue_LGTM"), HALF) | {"q_LGBDS": HALF}
        back = plain | {"dout_LGTM": HALF, "e_LGT": SINGLE}
        by_query = back | {"q_LGBDS": HALF, "dq_LGTD": HALF}
        by_key = back | {"k_LBDS": HALF, "dk_LND": HALF, "dv_LNM": HALF}
        for name, launcher, tensors in (
            ("outputs", "outputs_and_residue", outs),
            ("by query", "query_gradients", by_query),
            ("by key", "key_gradients", by_key),
        ):
            for kind, (real, counts, gates, total) in KINDS.items():
                more = {"real_LN": real, "total_LGT": total}
                if name == "outputs":
                    more = {"real_LN": real}
                elif name == "by key":
                    more = {"total_LN": total}
                if name == "by query":
                    more |= dict.fromkeys(("out_LGTM", "residue_LGTM"), HALF)
                more |= {"count_LC": counts, "gates_L5N": gates}
                made = getattr(gated if gates else call, launcher)
                yield f"{name} {size} {far}{kind}", made, tensors | more
    for launches, w in ((call.key_sums, None), (call.query_sums, SINGLE)):
        tensors = {"x_LGTD": HALF, "x_LGBDS": HALF, "y_LGTM": HALF, "w_LGT": w} | FAR
        tensors |= {"count_LC": w} | dict.fromkeys((*PLACES, "x_sorted_LGTD", "y_sorted_LGTM"))
        yield f"sums {size} {bool(w)}", launches.chunk_sums, tensors


def packed(size):
    """Yield a name, a launcher and its tensors, for documents and heads of a size."""
    plan, sizes = plans.plan(size, size), Sizes(1, 1, N, N, size, size)
    for far in (True, False):
        how = (sizes, plan, CompletedSquare(1.0, 1.0, 1.0), torch.bfloat16, True, far)
        made = DocumentLaunches(KernelCall(*how), 1, 1000)
        plain = {"q_LGTD": HALF, "k_LTD": HALF, "v_LTM": HALF, "inverse_LGT": SINGLE}
        plain |= (FAR if far else dict.fromkeys(FAR)) | PLACES | {"order_ET": WHOLE}
        keys = {"k_sorted_LTD": HALF, "v_sorted_LTM": HALF, "q_LGBDS": HALF}
        outs = keys | {"out_LGTM": HALF, "residue_LGTM": HALF}
        back = plain | {"dout_LGTM": HALF, "e_LGT": SINGLE}
        by_key = {"k_LBDS": HALF, "q_sorted_LGTD": HALF, "dout_sorted_LGTM": HALF}
        by_key |= {"dk_LTD": HALF, "dv_LTM": HALF}
        for name, tensors in (
            ("outputs_and_residue", plain | outs | {"seen_ET": WHOLE, "real_ET": None}),
            ("query_gradients", back | outs | {"dq_LGTD": HALF}),
            ("key_gradients", back | by_key),
        ):
            parts = getattr(made, name)
            yield f"documents, {name} {size} {far}, pairs", parts.by_pairs, tensors
            if far:
                yield f"documents, {name} {size}, sums", parts.by_sums, tensors
        if far:
            sums = {"x_LGTD": HALF, "x_LGBDS": HALF, "y_LGTM": HALF, "w_LGT": None} | FAR | PLACES
            sums |= {"count_LC": None, "x_sorted_LGTD": HALF, "y_sorted_LGTM": HALF}
            yield f"documents, sums {size}", made.key_sums.chunk_sums, sums


@triton.jit
def racing(X, Y, Z, N, D: tl.constexpr):
    """Read x for two products, turned and not, and into registers: what the pipeline gets wrong."""
    d = tl.arange(0, D)
    a = tl.zeros((D, D), tl.float32)
    b = tl.zeros((D, D), tl.float32)
    c = tl.zeros((D, D), tl.float32)
    for t in range(0, N, D):
        at = (t + d[:, None]) * D + d[None, :]
        x, y = tl.load(X + at), tl.load(Y + at)
        a = tl.dot(tl.trans(x), y, a)
        b = tl.dot(tl.trans(x), x, b)
        c += x.to(tl.float32)
    tl.store(Z + d[:, None] * D + d[None, :], a + b + c)


def main():
    driver.set_active(Hopper())
    CUDABackend.make_llir = stop
    found, waiting, seen = {}, [], 0
    wrong = Launcher(racing, (1,), plans.PLAIN, N=N, D=64)
    wrong = ("racing", wrong, {"X": HALF, "Y": HALF, "Z": SINGLE})
    for name, launcher, tensors in [*planned(64), *planned(128), *packed(64), wrong]:
        text = text_of(launcher, tensors)
        bodies = list(loops(text))
        if any(TILE.search(line) for body in bodies for line in body):
            waiting.append(name)
        bodies = [body for body in bodies if any(map(COPY.search, body))]
        seen += len(bodies)
        if bad := [buffer for body in bodies for buffer in endangered(body, text)]:
            found[name] = bad
    print(json.dumps({"loops": seen, "found": found, "waiting": waiting}))


if __name__ == "__main__":
    main()
