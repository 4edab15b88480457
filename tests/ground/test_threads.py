"""Threads that register, look up and list at once."""

import functools
import threading
import warnings

from dovetail import errors
from tests.ground.samples import Accel, compile_graph


def test_sixteen_threads_of_a_thousand_mixed_calls(registry):
    threads, calls = 16, 1000
    problems, start = [], threading.Barrier(threads)

    def work(number):
        start.wait()
        try:
            for i in range(calls):
                name = f"t{number}_{i // 5}"
                if i % 5 == 0:
                    registry.register_backend(functools.partial(compile_graph), name=name)
                elif i % 5 == 1:
                    assert callable(registry.lookup_backend(name))
                elif i % 5 == 2:
                    assert name in registry.list_backends()
                elif i % 5 == 3:
                    assert registry.backend_info(name).name == name
                    registry.set_default_backend(name, device=f"device{number}")
                else:
                    with registry.registered_backend(Accel, name=f"only_{name}"):
                        assert registry.get_backend(f"only_{name}").tiles == 4
                    assert registry.default_backend(f"device{number}") == name
        except BaseException as error:
            problems.append(error)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert problems == []
    expected = {f"t{n}_{i}" for n in range(threads) for i in range(calls // 5)}
    assert expected == {n for n in registry.list_backends() if n.startswith("t")}


def test_two_threads_cannot_both_get_a_name(registry):
    winners, start = [], threading.Barrier(8)

    def claim(number):
        start.wait()
        try:
            registry.register_backend(functools.partial(compile_graph), name="one_name")
            winners.append(number)
        except errors.BackendNameTaken:
            pass

    workers = [threading.Thread(target=claim, args=(n,)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(winners) == 1


def test_experimental_warns_once_over_all_threads(registry):
    registry.register_experimental_backend(compile_graph, name="shared")
    told, start = [], threading.Barrier(8)

    def use():
        start.wait()
        registry.lookup_backend("shared")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest: told.append(message)
        workers = [threading.Thread(target=use) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(told) == 1
