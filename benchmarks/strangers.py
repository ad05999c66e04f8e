"""Score the laws on faults, and their lawful twins, whose authors did not know the laws' code.

python benchmarks/strangers.py                # every style: what was wrong, then a line of JSON
python benchmarks/strangers.py mask_grid      # only styles or cases whose names contain a word
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: a second thread only waits
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.laws.strangers.scoring import Score, cases, score, styles


def summary(scores: list[Score]) -> dict:
    """Return the counts that the last line holds."""
    caught = [one for one in scores if one.caught]
    return {
        "faults": len(scores),
        "caught": len(caught),
        "blamed": sum(one.blamed for one in caught),
        "twins_accused": sum(one.accused for one in scores),
        "seconds": round(sum(one.seconds for one in scores), 1),
    }


def main(words: list[str]) -> None:
    """Score every case whose name contains one of the words, and print what was wrong."""
    scores = []
    for style in styles():
        for case in cases(style):
            if not words or any(word in f"{style}:{case.name}" for word in words):
                one = score(style, case)
                scores.append(one)
                print(f"\r{len(scores)} cases, {one.case[:60]:60}", end="", file=sys.stderr)
                if not one.right:
                    what = [] if one.caught else ["missed"]
                    what += ["blame"] if one.caught and not one.blamed else []
                    what += ["twin accused"] if one.accused else []
                    print(f"{one.case}: {', '.join(what)}; {one.note}", flush=True)
    print(file=sys.stderr)
    print(json.dumps(summary(scores)))


if __name__ == "__main__":
    main(sys.argv[1:])
