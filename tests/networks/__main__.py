"""``python -m tests.networks FIRST LAST [WAY]``: random networks, what is wrong with each."""

import sys
import time
import warnings
from collections import Counter

from tests.networks import ways


def main():
    warnings.simplefilter("ignore")
    first, last = map(int, sys.argv[1:3])
    way = getattr(ways, sys.argv[3]) if len(sys.argv) > 3 else None
    started, wrong, count = time.time(), Counter(), 0
    for seed in range(first, last):
        said = ways.check(seed, way)
        count += 1
        if said:
            wrong[said.split()[2]] += 1
            print(said, flush=True)
    print(
        f"{count} networks, {sum(wrong.values())} wrong, {time.time() - started:.0f} s", dict(wrong)
    )


if __name__ == "__main__":
    main()
