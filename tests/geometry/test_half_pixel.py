"""No half pixel outside geometry: the source is searched for ½ added to or taken from anything."""

import ast
from pathlib import Path

import linglue

PACKAGE = Path(linglue.__file__).parent

# What is no pixel convention: by file, the expressions that may stay.
ALLOWED = {
    "features/superpoint.py": {  # where SuperPoint's published code samples its cells, kept as it is
        "w * CELL - CELL / 2 - 0.5",
        "h * CELL - CELL / 2 - 0.5",
        "keypoints - CELL / 2 + 0.5",
    },
    "training/images/warp.py": {"0.5 - k"},  # between two levels of a pyramid
    "training/front_end/trainer.py": {"0.5 - 0.5 * math.cos(math.pi * left)"},  # a learning rate
    "viz/canvas.py": {  # how much of a pixel a line or disc covers
        "width / 2 + 0.5",
        "radius + 0.5",
    },
    "viz/model.py": {"count - 0.5", "number - 0.5"},  # edges of the cells of a matrix plot
}


def half_steps(source: str) -> set[str]:
    """Sums and differences with the constant ½ in a source text."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            operands = [node.left, node.right]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            operands = [node.value]
        else:
            continue
        if any(isinstance(operand, ast.Constant) and operand.value == 0.5 for operand in operands):
            found.add(ast.unparse(node))
    return found


def test_the_search_finds_what_it_is_for():
    assert half_steps("y = (x + 0.5) * s - 0.5\nk[:2, 2] += 0.5") == {
        "x + 0.5",
        "(x + 0.5) * s - 0.5",
        "k[:2, 2] += 0.5",
    }
    assert half_steps("y = 0.5 * x + 1.5") == set()


def test_no_half_pixel_outside_geometry():
    found = {
        path.relative_to(PACKAGE).as_posix(): half_steps(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    unexplained = {
        name: steps - ALLOWED.get(name, set())
        for name, steps in found.items()
        if not name.startswith("geometry/") and steps - ALLOWED.get(name, set())
    }
    assert not unexplained, "use linglue.geometry.pixels or .colmap, or say in ALLOWED what this is"
    assert not {name: gone for name, steps in ALLOWED.items() if (gone := steps - found.get(name, set()))}
