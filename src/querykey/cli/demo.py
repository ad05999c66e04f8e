"""The verb `qk demo`: what querykey does, shown in seconds."""

from __future__ import annotations

from querykey.cli.output import display, say, status
from querykey.cli.targets import describe_target, ways_to_name_a_target


def demo() -> int:
    """Show in a few seconds what querykey does: a broken law, a model by name, and its cost."""
    _show_a_leak()
    say("A target is a model that you name. These are the ways to name one:")
    display(ways_to_name_a_target())
    name = "hf:gpt2" if _has("transformers") else "decoder"
    say(f"One of them, built without any download and described (`qk targets {name}`):\n")
    describe_target(name)
    say(f"What it costs, as a formula; nothing was computed (`qk cost {name}`):\n")
    _cost_in_short(name)
    say("Next: `qk check YOUR_FILE.py:YOUR_FACTORY`, `qk train --list`, `qk lab`, `qk --help`.")
    return 0


def _show_a_leak() -> None:
    from querykey.laws import LEAK, explained, leaky_model

    say("A small language model. In one of its three layers the mask is off by one:\n")
    say("".join(f"    {line}\n" for line in LEAK.strip().splitlines()))
    with status("checking"):
        from querykey.laws import check as check_model

        report = check_model(leaky_model())
    say("`qk check` is not told so. It changes what must not matter, such as later tokens:\n")
    rows = [f for f in report.laws if f.verdict != "not-applicable"]
    from querykey.show import table

    display(table(("law", "verdict", "module"), [(f.law, f.verdict, f.module or "") for f in rows]))
    say(explained(report.law("causality.perturb")) + "\n")


def _cost_in_short(name: str) -> None:
    with status(f"deriving the cost of {name}"):
        from querykey.costs import cost_of_target, totals
        from querykey.show import table

        report = cost_of_target(name)
    display(table(("cost", f"in {', '.join(report.symbols)}"), totals(report)[:6]))
    say(f"It grows as {report.order('flops.forward')}.\n")


def _has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
