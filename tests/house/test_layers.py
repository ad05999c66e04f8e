"""Imports between rooms point one way, and go through a room's front door."""

from pathlib import Path

import pytest
from tests.house.source import (
    SOURCE,
    cycles,
    import_graph,
    names_offered,
    our_imports,
    parse,
    plant,
    room_of,
    target,
    trees,
)

import querykey

ORDER = [
    {"errors", "words", "shapes", "show"},
    {"ag"},
    {"attention"},
    {"backends"},
    {"nn"},
    {"models"},
    {"targets"},
    {"costs", "laws"},
    {"train"},
    {"lab"},
    {"cli", "pytest_plugin"},
    {"__main__"},
]
ROOMS = sorted(set().union(*ORDER))
FIRST = ORDER[0]  # these may import each other; the test of cycles keeps them apart
NEVER = {"costs": {"models"}, "laws": {"models"}}  # they work on any torch module


def may_import(room: str) -> set[str]:
    """The rooms to the left of a room, itself included."""
    place = next(place for place, rooms in enumerate(ORDER) if room in rooms)
    left = set().union(*ORDER[:place], FIRST if room in FIRST else {room})
    return left - NEVER.get(room, set())


def wrong_way(source: Path) -> list[str]:
    """Every import of a room that does not stand to the left of the importing one."""
    return [
        str(found)
        for found in our_imports(source)
        if found.file != Path("__init__.py")
        if len(found.parts) < 2 or found.parts[1] not in may_import(room_of(found.file))
    ]


def past_the_door(source: Path) -> list[str]:
    """Every import of an inner file of another room."""
    return [
        str(found)
        for found in our_imports(source)
        if (asked := target(source, found)) is not None
        if found.file != Path("__init__.py") and room_of(found.file) != room_of(asked)
        if asked not in (Path(room_of(asked), "__init__.py"), Path(f"{room_of(asked)}.py"))
    ]


def test_imports_point_one_way():
    assert wrong_way(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("shapes.py", "import querykey.targets"),
        ("attention/masks.py", "def f():\n    from querykey.backends import attend"),
        ("attention/masks.py", "if TYPE_CHECKING:\n    from ..backends import attend"),
        ("laws/table.py", "from querykey import models"),
        ("costs/flops.py", "from querykey.models.decoder import Decoder"),
        ("laws/table.py", "from querykey.costs import cost"),
        ("models/text.py", "from querykey.targets import build"),
        ("nn/block.py", "LATE = {'build': 'querykey.models.build'}"),
        ("nn/block.py", "import querykey as qk"),
    ],
)
def test_the_layering_test_can_fail(tmp_path, file, code):
    plant(tmp_path, {"models/build.py": "", file: code})
    assert len(wrong_way(tmp_path)) == 1


def test_every_room_has_its_place_in_the_layering():
    # The plugin is pytest's to load and `__main__` is Python's: no attributes of the package.
    rooms = {room_of(file) for file in trees(SOURCE)} - {"__init__"}
    assert rooms <= set(ROOMS)
    rooms -= {"pytest_plugin", "__main__"}
    assert rooms == set(querykey._ROOMS)


def test_rooms_are_entered_through_their_front_door():
    assert past_the_door(SOURCE) == []


def test_the_test_of_front_doors_can_fail(tmp_path):
    plant(
        tmp_path,
        {
            "attention/__init__.py": "from querykey.attention.masks import Mask",
            "attention/masks.py": "",
            "attention/decoding/__init__.py": "",
            "nn/good.py": "from querykey.attention import Mask\nfrom querykey.ag import nn",
            "nn/best.py": "from querykey.show import table",
            "show/__init__.py": "from querykey.show.table import table",
            "show/table.py": "def table(): ...",
            "ag/__init__.py": "from querykey.ag import nn\n__all__ = ['nn']",
            "ag/nn.py": "from querykey.ag import tensor",
            "ag/tensor.py": "",
            "nn/bad.py": "from querykey.attention.masks import Mask",
            "nn/worse.py": "def f():\n    from querykey.attention import decoding",
        },
    )
    assert past_the_door(tmp_path) == [
        "nn/bad.py:1 imports querykey.attention.masks.Mask",
        "nn/worse.py:2 imports querykey.attention.decoding",
    ]


@pytest.mark.parametrize("room", [room for room in ROOMS if (SOURCE / room).is_dir()])
def test_a_front_door_says_what_it_offers(room):
    names = names_offered(parse(SOURCE / room / "__init__.py"))
    assert names
    module = getattr(querykey, room)
    assert [name for name in names if not hasattr(module, name)] == []


def test_no_file_imports_itself_through_others():
    assert cycles(import_graph(SOURCE)) == []


def test_the_test_of_cycles_can_fail(tmp_path):
    plant(
        tmp_path,
        {
            "nn/__init__.py": "from querykey.nn.block import Block",
            "nn/block.py": "def f():\n    from querykey.nn.mlp import MLP",
            "nn/mlp.py": "if TYPE_CHECKING:\n    from .norms import Norm",
            "nn/norms.py": "from querykey.nn import block",
            "nn/config.py": "from querykey.nn.norms import Norm",
            "ag/__init__.py": "from querykey.ag.tensor import Tensor",
            "ag/tensor.py": "LATE = 'querykey.ag'",
        },
    )
    assert cycles(import_graph(tmp_path)) == [
        ["ag/__init__.py", "ag/tensor.py"],
        ["nn/block.py", "nn/mlp.py", "nn/norms.py"],
    ]
