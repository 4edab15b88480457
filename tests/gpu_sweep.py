"""op_db and random programs on a GPU, in several processes.

``python -m tests.gpu_sweep op_db|random FIRST LAST [--processes N] [--seconds N]`` prints what is
wrong and how much was compared; with ``--seconds`` it begins nothing new after that time.
"""

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

KINDS = (("float32", False), ("float32", True), ("bfloat16", False), ("bfloat16", True))


def operator(number):
    """What is wrong with an operator of op_db, and how many of its samples were compared."""
    from tests.codegen import sweep

    found = sweep.operators()[number : number + 1]
    if not found:
        return [], 0
    (op,) = found
    try:
        problems, compared = sweep.check(op, backend="cuda", device="cuda", kinds=KINDS)
    except Exception as error:
        problems, compared = [(op.formatted_name, f"{type(error).__name__}: {error}")], 1
    return [f"{case} | {problem}" for case, problem in problems], compared


def program(seed):
    """The same of a random program."""
    from tests.codegen.random_graphs import check

    try:
        problem = check(seed, backend="cuda", device="cuda")
    except Exception as error:
        problem = f"seed {seed}: {type(error).__name__}: {error}"
    return [problem] if problem else [], 1


WHAT = {"op_db": operator, "random": program}


def prepare():
    """A worker: our names known to Dynamo, nothing kept between runs."""
    import os

    os.environ.setdefault("DOVETAIL_CACHE", "0")
    warnings.simplefilter("ignore")
    from dovetail import registry

    registry.list_backends()


def until(deadline, what, number):
    """One case, unless it is too late to begin."""
    return WHAT[what](number) if time.time() < deadline else ([], 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    deadline, compared, begun, wrong = time.time() + given.seconds, 0, 0, 0
    numbers = range(given.first, given.last)
    with ProcessPoolExecutor(given.processes, get_context("spawn"), initializer=prepare) as pool:
        waiting = [pool.submit(until, deadline, given.what, n) for n in numbers]
        for done in waiting:
            problems, count = done.result()
            compared, begun, wrong = compared + count, begun + bool(count), wrong + len(problems)
            for problem in problems:
                print(problem[:400], flush=True)
    print(f"{given.what}: {begun} of {len(numbers)} begun, {compared} compared, {wrong} wrong")


if __name__ == "__main__":
    main()
