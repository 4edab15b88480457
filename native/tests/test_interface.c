/* Structures of callers that are older or careless, and streams of a device that fail. */
#include "plugin.h"

#include "internal.h"

#include "check.h"

#include <string.h>

/* No more is written than the caller says there is room for. */
static void test_filling(void)
{
    dvt_device_info made = {sizeof made, 7, "name", "version"};
    struct {
        uint32_t struct_size, abi;
        unsigned char behind[64];
    } old = {.struct_size = 8};
    memset(old.behind, 0xA5, sizeof old.behind);
    EXPECT(dvt_fill(&old, &made, sizeof made) == DVT_OK, "a shorter structure is refused");
    EXPECT(old.struct_size == 8 && old.abi == 7, "a shorter structure is not filled in");
    for (size_t i = 0; i < sizeof old.behind; i++)
        EXPECT(old.behind[i] == 0xA5, "written behind the caller's structure");
    dvt_device_info unset = {0};
    EXPECT(dvt_fill(&unset, &made, sizeof made) == DVT_ERROR_ARGUMENT, "no struct_size");
    struct {
        dvt_device_info info;
        uint64_t later;
    } newer = {{.struct_size = sizeof newer}, 9};
    EXPECT(dvt_fill(&newer, &made, sizeof made) == DVT_OK &&
               newer.info.struct_size == sizeof made && newer.later == 9,
           "a newer caller is not told how much there is");
}

static int transfers, computes;
static char transfer_stream, compute_stream, device;

static dvp_status sync_stream(dvp_device *on, dvp_stream *stream, dvp_error *error)
{
    (void)on;
    (void)error;
    transfers += (char *)stream == &transfer_stream;
    computes += (char *)stream == &compute_stream;
    return (char *)stream == &transfer_stream ? DVP_FAILED : DVP_OK;
}

/* A stream that was not waited for may write to memory that is freed next. */
static void test_both_streams_are_waited_for(void)
{
    plugin p = {.api = {.stream_sync = sync_stream},
                .info = {.name = "test"},
                .device = (dvp_device *)(void *)&device,
                .lanes = {{.compute = (dvp_stream *)(void *)&compute_stream,
                           .transfer = (dvp_stream *)(void *)&transfer_stream}}};
    p.lanes[0].plugin = &p;
    plugin_error error = {0};
    EXPECT(plugin_sync(&p.lanes[0], &error) == -1 && error.problem == PLUGIN_FAILED,
           "no error");
    EXPECT(transfers == 1 && computes == 1, "one failed stream keeps the other from being "
                                            "waited for");
}

int main(void)
{
    test_filling();
    test_both_streams_are_waited_for();
    printf("native/tests/test_interface: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
