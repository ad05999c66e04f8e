"""Files that show breaches: one script per target and broken law, in a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from querykey.laws.report import Report
from querykey.show import make_folder, write_file

Scripts = dict[tuple[str, str], str]  # by target and law: the file


def write_scripts(folder: Path, reports: Iterable[Report]) -> Scripts:
    """Write the script of every breach into the folder, and return their files."""
    make_folder(folder)
    files: Scripts = {}
    for report in reports:
        for finding in report.violations:
            if finding.repro:
                file = _free(folder, f"{file_name(report.target)}.{finding.law}", files.values())
                write_file(file, finding.repro)
                files[report.target, finding.law] = str(file)
    return files


def file_name(target: str) -> str:
    """Return a target's name with only the letters that every file system takes."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", target.replace(".py:", "_")).strip("_")[-80:] or "target"


def _free(folder: Path, stem: str, taken: Iterable[str]) -> Path:
    """Return a file that no other target of this run has; those of earlier runs are overwritten."""
    names = set(taken)
    file, number = folder / f"{stem}.py", 2
    while str(file) in names:
        file, number = folder / f"{stem}-{number}.py", number + 1
    return file
