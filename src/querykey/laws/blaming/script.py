"""A script that shows a breach: how the model is made, the calls, and what is compared.

The text is plain torch. It is run here on a copy of the model before it is given to anybody.
"""

from __future__ import annotations

import io
import random
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional

from querykey.laws.subject import Subject
from querykey.laws.understanding.float64 import duplicate
from querykey.targets import PRESETS, TakesBatch, quiet

CASTS = ("half", "float", "bfloat16")  # of tensors, inherited from C
RANDOMISE = '''
def randomise(model):
    """Draw every matrix anew, because small first weights hide much."""
    generator = torch.Generator().manual_seed({seed})
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.dim() > 1:
                parameter.copy_(1.2 * noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.1 * noise.to(parameter.dtype))
'''
RATES = """
    for module in model.modules():  # code that looks at the rate takes its other path
        for name, value in list(vars(module).items()):
            if value == 0.0 and isinstance(value, float) and ("drop" in name or name == "p"):
                setattr(module, name, 0.1)
"""
BUILD = '''
def build():
    """Return the model, the same in every call."""
    torch.set_default_dtype(torch.float32)
    random.seed({seed})
    numpy.random.seed({seed})
    torch.manual_seed({seed})
    {made} = make()
    model.eval(){randomise}{train}
    torch.manual_seed({seed})
    torch.set_default_dtype(DTYPE)
    {result}
'''


@dataclass(frozen=True)
class Preparation:
    """How a script prepares the model before it is called."""

    dtype: torch.dtype = torch.float32
    random: bool = False  # its weights are drawn anew
    train: bool = False
    rates: bool = False  # dropout rates of zero become 0.1
    seed: int = 0

    @property
    def limit(self) -> float:
        """Return the relative difference above which it is not rounding."""
        return 1e-3 if self.dtype is torch.float32 else 1e-6

    def code(self, function: bool) -> str:
        """Return the functions that build the model; `function`: a Subject's, not the model's."""
        train = "\n    model.train()" * self.train + f"\n{RATES.strip(chr(10))}" * self.rates
        build = BUILD.format(
            seed=self.seed,
            made="model, forward" if function else "model",
            randomise="\n    randomise(model)" * self.random,
            train=train,
            result="model.to(DTYPE)\n    return forward" if function else "return model.to(DTYPE)",
        )
        text = f"DTYPE, LIMIT = {self.dtype}, {self.limit}\n"
        if self.train:
            text += "torch.nn.functional.dropout = lambda x, *args, **kwargs: x  # it would hide it"
            text += "\n"
        return text + "\n" + RANDOMISE.format(seed=self.seed) * self.random + "\n" + build


BUILD_OTHER = '''

def build_other():
    """Return the other model, the same in every call."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed({seed})
    model = make_other()
    torch.set_default_dtype(DTYPE)
    return model.eval().to(DTYPE)
'''


def making_other(subject: Subject) -> str:
    """Return the code of `make_other`, which makes the model that is to be the same."""
    assert subject.like is not None
    other, mapping = subject.like
    text = making(other).replace("def make()", "def make_other()").replace("SPEC", "OTHER")
    if mapping is None:
        return text
    module, name = getattr(mapping, "__module__", ""), getattr(mapping, "__qualname__", "")
    if not name.isidentifier() or module in ("", "__main__"):
        return f'{text}\n\ndef weights_of(state):\n    raise SystemExit("map the names here")\n'
    folder = _folder_of(module)
    path = f"sys.path.insert(0, {folder!r})\n" if folder else ""
    return f"{text}\n\n{path}from {module} import {name} as weights_of  # noqa: E402\n"


PLAIN_MADE = (
    "made = factory() if not isinstance(factory, nn.Module) else factory\n"
    "    return made if isinstance(made, nn.Module) else made.model"
)


def making(subject: Subject) -> str:
    """Return the code of `make`, which makes the target; a model without one is left to fill in."""
    name, function = subject.name, subject.forward is not subject.model
    source, _, attribute = name.rpartition(":")
    if name in PRESETS or name.startswith("hf:") or Path(name).is_dir():
        return (
            "import querykey as qk\n\n\ndef make():\n"
            f"    return qk.targets.build({name!r}).model\n"
        )  # fmt: skip
    tail = "made = factory()\n    return made.model, made.forward" if function else PLAIN_MADE
    if isinstance(subject.forward, TakesBatch):
        batch = 'type("Batch", (), tensors)()' if subject.forward.attributes else "tensors"
        model = PLAIN_MADE.replace("return", "model =")
        tail = f"{model}\n    return model, lambda **tensors: model({batch})"
    if source.endswith(".py"):
        return (
            f"sys.path.insert(0, {str(Path(source).resolve().parent)!r})\n"
            f"SPEC = importlib.util.spec_from_file_location({Path(source).stem!r}, "
            f"{str(Path(source).resolve())!r})\n\n\n"
            "def make():\n"
            "    module = importlib.util.module_from_spec(SPEC)\n"
            "    sys.modules[SPEC.name] = module\n"
            "    SPEC.loader.exec_module(module)\n"
            f"    factory = module.{attribute}\n    {tail}\n"
        )
    if source and attribute.isidentifier():
        folder = _folder_of(source)
        path = f"sys.path.insert(0, {folder!r})\n" if folder else ""
        imported = f"from {source} import {attribute} as factory"
        return f"{path}\n\ndef make():\n    {imported}\n\n    {tail}\n"
    built = "(model, forward)" if function else "model"
    return f'\n\ndef make():\n    raise SystemExit("build the model here")\n    return {built}\n'


def _folder_of(module: str) -> str:
    """Return the folder that a module was imported from; nothing for an installed package."""
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    if not file or "site-packages" in file:
        return ""
    place = Path(file).resolve().parent
    return str(place.parent if Path(file).name == "__init__.py" else place)


def whole_script(
    title: str, subject: Subject, preparation: Preparation, body: str, two: bool = False
) -> str:
    """Return a script that runs by itself; `two`: it makes the model that is to be the same too."""
    words = f"{title}\n\nIt prints what it compares; the exit code is 1 where the law is broken."
    head = "\n".join(textwrap.fill(part, 98) for part in words.replace('"""', "'''").split("\n"))
    head = head.replace("\\", "/")
    imports = "import copy\nimport importlib.util\nimport math\nimport random\nimport sys\n\n"
    imports += "import numpy\nimport torch\nfrom torch import nn\n\n"
    code = preparation.code(subject.forward is not subject.model)
    made = making(subject)
    if two:
        made += f"\n\n{making_other(subject)}"
        code += BUILD_OTHER.format(seed=preparation.seed)
    return f'"""{head}\n"""\n\n{imports}{made}\n\n{code}\n\n{body}'


def shows(subject: Subject, copied: Callable[[], nn.Module], text: str) -> bool:
    """Return whether a script leaves with exit code 1, with copies in place of what it makes."""
    function = subject.forward is not subject.model

    def make() -> Any:
        model = copied()
        return (model, subject.on(model)) if function else model

    before, after = text.index("import copy\nimport importlib.util"), text.index("DTYPE, LIMIT = ")
    imports = "\n".join(
        line for line in text[before:after].split("\n") if line.startswith(("import ", "from "))
    )
    world: dict[str, Any] = {"__name__": "__main__", "make": make}
    if subject.like is not None:
        other, mapping = subject.like
        world |= {"make_other": lambda: duplicate(other.model, wide=False), "weights_of": mapping}
    try:
        with _unchanged(), quiet(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            exec(compile(f"{imports}\n{text[after:]}", "reproduction", "exec"), world)
    except SystemExit as leave:
        return leave.code == 1
    except Exception:
        return False
    return False


@contextmanager
def _unchanged() -> Iterator[None]:
    """Undo what a script changes in torch."""
    dtype, dropout, grad = torch.get_default_dtype(), functional.dropout, torch.is_grad_enabled()
    multinomial, fast = torch.multinomial, torch.backends.mha.get_fastpath_enabled()
    python, numbers = random.getstate(), numpy.random.get_state()
    torch.set_grad_enabled(True)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        for cast in [cast for cast in CASTS if cast in vars(torch.Tensor)]:
            delattr(torch.Tensor, cast)
        functional.dropout, torch.multinomial = dropout, multinomial
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.compiler.set_stance("default")
        random.setstate(python)
        numpy.random.set_state(numbers)
