"""What a model costs: formulas in named sizes, in total and per module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import sympy

from querykey.costs.formulas.comparison import Comparison, crossings
from querykey.costs.formulas.order import Order, Sum, add_sum, expression, order_of
from querykey.costs.formulas.validity import Valid, written
from querykey.costs.inputs import CostError, OutsideError, whole

if TYPE_CHECKING:
    from querykey.costs.counting.passes import Options
    from querykey.costs.formulas.symbolic import Formulas
    from querykey.costs.measured_model import Subject


class NotComputed(str):
    """Stands where a value will be, and says that it is not computed yet."""


PEAK = NotComputed("peak memory is not computed yet")
SPAN = NotComputed("the parallel depth is not computed yet")
MOVED = NotComputed("the bytes moved are not computed yet")
STATE = NotComputed("the state of decoding is not computed yet")


@dataclass(frozen=True)
class Flops:
    """FLOPs, a multiply-add being 2: matrix products, and pointwise work apart."""

    forward: Any
    backward: Any
    pointwise: Any  # of the forward pass
    pointwise_backward: Any
    visible: Any  # of `forward`, without the pairs that a causal flag hides
    recomputed: Any  # of `backward`, what fused attention computes a second time


@dataclass(frozen=True)
class ModuleCost:
    """What one module costs, its children included."""

    flops: Flops
    params: Any
    saved_bytes: Any
    kind: str = ""  # its class


@dataclass(frozen=True)
class Report:
    """Formulas as sympy expressions in `symbols`; `print` shows them as tables."""

    flops: Flops
    params: Any
    saved_bytes: Any
    modules: dict[str, ModuleCost]
    symbols: dict[str, sympy.Symbol]
    valid: Valid
    unknown: dict[str, dict[str, int]]  # operations without a formula: where, and how often
    notes: list[str]
    engine: str
    settings: dict[str, Any]
    peak_bytes: Any = PEAK
    span: Any = SPAN
    bytes_moved: Any = MOVED
    state_bytes: Any = STATE
    sizes: dict[str, int] = field(default_factory=dict)  # those already put in
    picked: dict[str, str] = field(default_factory=dict)  # sizes that values decide: the module
    below: Report | None = None  # for smaller sizes, where this one does not hold

    def __getitem__(self, name: str) -> Any:
        """A value by its name, such as `flops.forward`."""
        if name not in VALUES:
            raise CostError(f"there is no `{name}` in the report; there are {', '.join(VALUES)}")
        return _get(self, name)

    @property
    def complete(self) -> bool:
        """Whether every operation had a formula; where not, the FLOPs are without `unknown`."""
        return not self.unknown

    def at(self, **sizes: int) -> Report:
        """The same report with these sizes put in; values without a free size are ints."""
        sizes = self._checked(sizes)
        known = {**self.sizes, **sizes}
        broken = self.valid.broken(known)
        if broken and self.below is not None and not self.below.valid.broken(known):
            return self.below.at(**known)
        if broken:
            said = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise OutsideError(
                f"{said} is outside the range of this formula ({written(broken[0])})"
            )
        put = _Put({self.symbols[name]: sympy.Integer(size) for name, size in sizes.items()})
        modules = {p: replace(m, **put.into(m)) for p, m in self.modules.items()}
        left = {n: s for n, s in self.symbols.items() if n not in sizes}
        return replace(self, **put.into(self), modules=modules, symbols=left, sizes=known)

    def order(self, name: str = "flops.forward", given: Mapping[str, Any] | None = None) -> Order:
        """The order of a value as its sizes grow; `given` relates sizes: {"d": "h*k"}."""
        value = self[name]
        if isinstance(value, str):
            raise CostError(f"`{name}`: {value}")
        return order_of(value, list(self.symbols), given)

    def compare(
        self, other: Report, size: str, of: str = "flops.forward", **sizes: int
    ) -> Comparison:
        """Where the cost of this model and of another cross as one size grows, and both hold."""
        first, second = (each.at(**_known(each, sizes)) for each in (self, other))
        if size not in {**first.symbols, **second.symbols}:
            self._checked({size: 1})
        found = crossings(first[of], second[of], size, of)

        def outside(root: Any) -> bool:
            broken = [c for r in (first, second) for c in r.valid.broken({**r.sizes, size: root})]
            return any(not c.has(sympy.Mod) for c in broken)  # they may cross between multiples

        held = tuple(root for root in found.crossings if not outside(root))
        return replace(found, crossings=held)

    def training_bytes(self, optimizer: str = "adamw") -> NotComputed:
        """Memory of a training step."""
        return NotComputed("the memory of a training step is not computed yet")

    def bottleneck(self, device: str | None = None) -> NotComputed:
        """What limits the speed on a device."""
        return NotComputed("what limits the speed on a device is not computed yet")

    def to_dict(self) -> dict[str, Any]:
        """Plain values: numbers as numbers, formulas as text."""
        values = {name: _plain(self[name]) for name in VALUES}
        modules = {
            path: {"kind": m.kind, **{n: _plain(_get(m, n)) for n in PER_MODULE}}
            for path, m in self.modules.items()
        }
        return {
            "schema": 1, "sizes": list(self.symbols), "at": self.sizes, "picked": self.picked,
            **values, "valid": str(self.valid), "unknown": self.unknown, "notes": self.notes,
            "engine": self.engine, "settings": self.settings, "modules": modules,
            "below": self.below and self.below.to_dict(),
        }  # fmt: skip

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        from querykey.costs.render import as_text

        return as_text(self)

    def _checked(self, sizes: Mapping[str, Any]) -> dict[str, int]:
        from querykey.words import suggest

        for name in sizes:
            if name not in self.symbols:
                have = ", ".join(self.symbols) or "none is free"
                hint = suggest(name, self.symbols)
                raise CostError(f"there is no size `{name}`{hint} (the sizes: {have})")
        return {n: whole(n, size, 0 if n in self.picked else 1) for n, size in sizes.items()}


VALUES = (
    "flops.forward", "flops.backward", "flops.pointwise", "flops.pointwise_backward",
    "flops.visible", "flops.recomputed", "params", "saved_bytes", "peak_bytes", "span",
    "bytes_moved", "state_bytes",
)  # fmt: skip
PER_MODULE = VALUES[:8]


def make_report(subject: Subject, found: Formulas, how: Options) -> Report:
    """Add up what modules cost on their own into what they cost with their children."""
    model = subject.model(subject.base())
    kinds: dict[str, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        kinds.setdefault(subject.fold(path), type(module).__name__)
    totals: dict[str, dict[str, Sum]] = {path: {} for path in kinds}
    for (path, metric), each in found.own.items():
        for outer in _outer(path):
            add_sum(totals.setdefault(outer, {}).setdefault(metric, {}), each)
    params = {path: expression(each) for path, each in found.params.items()}
    modules = {
        path: _module(total, params.get(path, sympy.S.Zero), kinds.get(path, ""), how.backward)
        for path, total in totals.items()
    }
    whole = modules[""]
    settings = {"backward": how.backward, "attention": how.attention, "loss": _loss_name(how)}
    return Report(
        whole.flops, whole.params, whole.saved_bytes, modules,
        {name: sympy.Symbol(name) for name in subject.names},
        found.valid, found.unknown, found.notes, found.engine, settings, picked=subject.picked,
        below=found.below and make_report(subject, found.below, how),
    )  # fmt: skip


def _module(total: Mapping[str, Sum], params: Any, kind: str, backward: bool) -> ModuleCost:
    values = {metric: expression(each) for metric, each in total.items()}
    zero = sympy.S.Zero
    forward = values.get("forward", zero)
    visible = sympy.expand(forward - values.get("hidden", zero))
    flops = Flops(
        forward, values.get("backward", zero), values.get("pointwise", zero),
        values.get("pointwise_backward", zero), visible, values.get("recomputed", zero),
    )  # fmt: skip
    return ModuleCost(flops, params, values.get("saved", zero), kind)


def _outer(path: str) -> list[str]:
    """A path and everything that contains it, the whole model last."""
    parts = path.split(".") if path else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


class _Put:
    """Sizes put into formulas; equal layers have equal ones, so each is worked out once."""

    def __init__(self, sizes: Mapping[Any, Any]):
        self.sizes = sizes
        self.known: dict[Any, Any] = {}

    def into(self, each: Report | ModuleCost) -> dict[str, Any]:
        flops = {f.name: self.value(getattr(each.flops, f.name)) for f in fields(Flops)}
        found = {"params": self.value(each.params), "saved_bytes": self.value(each.saved_bytes)}
        return {"flops": Flops(**flops), **found}

    def value(self, formula: Any) -> Any:
        if formula not in self.known:
            found = sympy.sympify(formula).subs(self.sizes)
            if found.is_Rational and not found.is_Integer:
                said = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
                raise CostError(f"{said} is no size of this model: its cost would be {found}")
            self.known[formula] = int(found) if found.is_Integer else found
        return self.known[formula]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int | sympy.Integer) else str(value)


def _get(each: Any, name: str) -> Any:
    for part in name.split("."):
        each = getattr(each, part)
    return each


def _known(report: Report, sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if name in report.symbols}


def _loss_name(how: Options) -> str:
    return "sum of the first floating output" if how.loss is None else "given"
