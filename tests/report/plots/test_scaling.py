from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hidl_cli.analysis.scaling import Kind, Observation, Study, judge
from hidl_cli.report.plots import draw_scaling

pytestmark = pytest.mark.real


def study(steps: list[int], *, kind: Kind = "weak", repetitions: int = 5, target: float = 0.7) -> Study:
    observations = [
        Observation(n, r, (30.0 * n**0.95 if kind == "weak" else 400 / n**0.9) * (1 + 0.01 * ((r * n) % 7)))
        for n in steps
        for r in range(1, repetitions + 1)
    ]
    metric, unit = ("images_per_second", "images/s") if kind == "weak" else ("epoch_time", "s")
    return judge(kind=kind, target=target, metric=metric, unit=unit, step_unit="nodes", observations=observations)


def words(path: Path) -> str:
    """The comments of an SVG file hold the text of each label."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    root = ElementTree.parse(path, parser).getroot()
    return "|".join((node.text or "").strip() for node in root.iter(ElementTree.Comment))


@pytest.mark.parametrize(
    "judged",
    [
        study([1]),
        study([1, 2]),
        study([1, 2, 4], repetitions=2),
        study([2**i for i in range(10)]),
        study(list(range(1, 11))),
        study([4, 8, 16, 32, 64, 128], kind="strong"),
    ],
    ids=["one", "two", "no interval", "ten doublings", "ten in a row", "strong"],
)
def test_a_png_is_twice_640_pixels_wide(judged: Study, tmp_path: Path) -> None:
    draw_scaling(judged, tmp_path / "scaling.png")
    header = (tmp_path / "scaling.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", header[16:24]) == (1280, 1120)


def test_a_picture_is_labelled_with_units_target_and_verdict(tmp_path: Path) -> None:
    draw_scaling(study([1, 2, 4]), tmp_path / "scaling.svg")
    shown = words(tmp_path / "scaling.svg")
    for label in ("Weak scaling of images_per_second: pass", "images/s", "nodes", "efficiency", "ideal", "target"):
        assert label in shown


def test_strong_scaling_shows_the_speedup_over_its_baseline(tmp_path: Path) -> None:
    draw_scaling(study([4, 8, 16], kind="strong"), tmp_path / "scaling.svg")
    assert "speed-up over 4 nodes" in words(tmp_path / "scaling.svg")


def test_the_same_study_gives_the_same_svg(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw_scaling(study([1, 2]), tmp_path / name)
    assert words(tmp_path / "a.svg") == words(tmp_path / "b.svg")


def test_only_the_picture_is_left_behind_and_replaces_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "scaling.png").write_text("old")
    draw_scaling(study([1, 2]), tmp_path / "scaling.png")
    assert [path.name for path in tmp_path.iterdir()] == ["scaling.png"]
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unsupported image format scaling\.gif"):
        draw_scaling(study([1, 2]), tmp_path / "scaling.gif")


def test_importing_results_loads_nothing_heavy() -> None:
    code = (
        "import hidl_cli.report.plots, hidl_cli.analysis.scaling, hidl_cli.report.tables, sys;"
        "print([m for m in ('numpy', 'matplotlib', 'rich', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_pyplot_is_never_loaded(tmp_path: Path) -> None:
    code = f"""if True:
        import sys
        from pathlib import Path
        from hidl_cli.report.plots import draw_scaling
        from hidl_cli.analysis.scaling import judge
        from hidl_cli.analysis.scaling import Observation
        draw_scaling(judge(kind="weak", target=0.7, metric="m", unit="1/s", step_unit="ranks",
                   observations=[Observation(1, 1, 1.0)]), Path({str(tmp_path / "x.png")!r}))
        print("matplotlib.pyplot" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
