"""No function of a plug-in is called under Python's lock: all of the table's, on the simulator."""

import ctypes
import gc
import re

import numpy as np
import pytest
import torch
from torch import nn

import dovetail
from tests.artifact.files import file_bytes
from tests.native.streams_file import SUM, chain
from tests.plugin.conftest import HEADER, compile_library
from tests.plugin.sim import simulator

pytestmark = pytest.mark.e2e

# A plug-in around another: each function of its table looks whether the thread has the lock.
AROUND = r"""
#define _GNU_SOURCE
#include "dovetail_plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static dvp_plugin real;
static char called[1 << 16], holding[1 << 12];

static void note(char *list, size_t size, const char *name)
{
    size_t used = strlen(list);
    if (strstr(list, name) == NULL)
        snprintf(list + used, size - used, "%s ", name);
}

static void look(const char *name)
{
    int (*check)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
    note(called, sizeof called, name);
    if (check == NULL || check())
        note(holding, sizeof holding, name);
}

DVP_EXPORT const char *names_called(void) { return called; }
DVP_EXPORT const char *names_holding(void) { return holding; }

@functions@
DVP_EXPORT dvp_status dovetail_plugin_query(uint32_t host_abi, const dvp_host *host,
                                            const dvp_plugin **plugin)
{
    void *library = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
    dvp_query query = library ? (dvp_query)dlsym(library, DVP_QUERY_SYMBOL) : NULL;
    const dvp_plugin *given;
    if (query == NULL || query(host_abi, host, &given) != DVP_OK)
        return DVP_FAILED;
    real = *given;
    static dvp_plugin table;
    table = real;
@rows@
    *plugin = &table;
    return DVP_OK;
}
"""


def around(path):
    """The source, and the names of the table's functions."""
    table = HEADER.read_text().split("uint32_t abi; /* DVP_ABI */")[1].split("} dvp_plugin;")[0]
    found = re.findall(r"(dvp_status|void) \(\*(\w+)\)\(([^;]*?)\);", table)
    functions, rows = [], []
    for result, name, parameters in found:
        given = ", ".join(re.findall(r"(\w+)(?:,|$)", parameters))
        call = "return " if result == "dvp_status" else ""
        functions.append(
            f"static {result} {name}({parameters})\n"
            f'{{\n    look("{name} ");\n    {call}real.{name}({given});\n}}\n'
        )
        rows.append(f"    if (real.{name} != NULL)\n        table.{name} = {name};")
    text = AROUND.replace("@functions@", "\n".join(functions)).replace("@rows@", "\n".join(rows))
    return text, {name for _, name, _ in found}


@pytest.fixture
def watched(sim_path, tmp_path):
    text, names = around(sim_path)
    source = tmp_path / "around.c"
    source.write_text(text)
    define = f'-DREAL="{sim_path}"'
    library = compile_library(tmp_path / "libaround.so", source, flags=[define, "-Wno-pedantic"])
    return library, names


def train_and_export(sim, library, folder):
    layers, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(2, 8)
    for _ in range(3):
        torch.compile(layers, backend=sim.name)(x).sum().backward()
    path = folder / "layers.dvt"
    exported = dovetail.export(layers.eval(), (x,), backend=sim.name)
    exported(x)
    exported.save(path)
    dovetail.load(path, plugins=[library])(x)


def run_on_streams(library, folder):
    path = folder / "chain.dvt"
    path.write_bytes(file_bytes(chain(20)))
    run = dovetail.load(path, plugins=[library])
    device = run.device()
    first, second = device.stream(), device.stream()
    x = device.tensor(np.arange(256, dtype=np.float32), first)
    for _ in range(4):
        y = run.on(first)(x)
        second.follow(y)
        run.on(second)(y).wait()
    assert y.host().array()[3] == 3
    np.from_dlpack(device.empty((4,)).host())
    shared = device.empty((256,), kind="pinned")
    run.on(second)(shared)
    device.host_memory(np.zeros(256, np.float32))
    native = device.stream(first.handle)
    run.on(native)(x)
    native.wait()
    first.wait()


def keep_a_sum(library, folder):
    path = folder / "sum.dvt"
    start = {"total": np.zeros(256, np.float32).tobytes()}
    path.write_bytes(file_bytes(SUM.format(plugin="accel_sim", kernel="binary"), start))
    run = dovetail.load(path, plugins=[library])
    for _ in range(2):
        run(np.ones(256, np.float32))
    assert np.from_dlpack(run.state["total"])[0] == 2
    run.state.reset()
    run(np.ones(256, np.float32))


def test_no_function_is_called_under_the_lock(watched, tmp_path):
    library, names = watched
    with simulator(library) as sim:
        train_and_export(sim, library, tmp_path)
        run_on_streams(library, tmp_path)
        keep_a_sum(library, tmp_path)
        gc.collect()
    seen = ctypes.CDLL(str(library))
    seen.names_called.restype = seen.names_holding.restype = ctypes.c_char_p
    assert seen.names_holding() == b""
    called = set(seen.names_called().decode().split())
    # segment_compile and its companions, stream_sync beside stream_wait, one device
    assert len(names - called) < 10, names - called
