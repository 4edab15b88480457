/* Fuzzing the loader and the executor: every input ends in a result or a typed error.
 *
 * fuzz_artifact [-n INPUTS] [-s SEED] [-j PROCESSES] [-i NUMBER] [-x] [-k] [-o FOLDER]
 *               [PLUGIN.so...] SEED.dvt...
 *
 * makes INPUTS inputs from the artifacts, each from SEED and its number alone, and tries them
 * in PROCESSES processes. -x tries every truncation and every flipped bit of header and table
 * of each artifact besides. -k goes on after findings that do not end the process. A finding
 * prints the seed and the number, with which `-s SEED -i NUMBER` tries it again, and leaves the
 * input in FOLDER. */
#include "fuzz.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#define HANG_SECONDS 60

seed seeds[MAX_SEEDS];
uint32_t seed_count;

static struct {
    uint64_t inputs, seed, only;
    uint32_t processes;
    bool one, exhaustive, keep;
    const char *folder;
} options = {.inputs = 50000, .seed = 1, .processes = 1, .folder = "."};

/* ---- findings ---- */

static struct {
    const char *from;
    uint64_t number;
    const bytes *file;
    bool reported;
} now;

static void report(void)
{
    char path[512];
    if (now.reported || now.file == NULL)
        return;
    now.reported = true;
    snprintf(path, sizeof path, "%s/finding-%llu-%llu.dvt", options.folder,
             (unsigned long long)options.seed, (unsigned long long)now.number);
    dprintf(2, "\nFINDING: seed %llu, input %llu, from %s; again with -s %llu -i %llu; in %s\n",
            (unsigned long long)options.seed, (unsigned long long)now.number, now.from,
            (unsigned long long)options.seed, (unsigned long long)now.number, path);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file >= 0) {
        if (write(file, now.file->data, now.file->size) < 0)
            dprintf(2, "cannot write %s\n", path);
        close(file);
    }
}

static void on_signal(int number)
{
    dprintf(2, "%s\n", number == SIGALRM ? "an input takes too long" : "the process was ended");
    report();
    _exit(3);
}

void finding(const char *what)
{
    fprintf(stderr, "%s\n", what);
#ifdef __SANITIZE_ADDRESS__
    if (verbose || !options.keep)
        __sanitizer_print_stack_trace();
#endif
    report();
    if (!options.keep)
        abort();
    counts->findings++;
}

#ifdef __SANITIZE_ADDRESS__
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

const char *__asan_default_options(void)
{
    return "max_allocation_size_mb=256:allocator_may_return_null=1:detect_leaks=1";
}

const char *__ubsan_default_options(void)
{
    return "abort_on_error=1:print_stacktrace=1"; /* so that on_signal reports it */
}
#endif

static void watch(void)
{
    signal(SIGALRM, on_signal);
    signal(SIGABRT, on_signal);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_set_death_callback(report);
#else
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
    signal(SIGFPE, on_signal);
#endif
}

/* ---- inputs ---- */

static void try_input(const bytes *file, const document *d, const seed *from)
{
    now.from = from->name;
    now.reported = false;
    now.file = file;
    alarm(HANG_SECONDS);
    exercise(file, d, from);
}

/* Most seeds are of kernel IR; code and devices get a share of their own. */
static const seed *pick_seed(void)
{
    uint32_t wanted = one_in(8) ? DVT_CODE : one_in(8) ? DVT_DEVICES : 0;
    for (uint32_t tries = 0; wanted != 0 && tries < 64; tries++) {
        seed *s = &seeds[below(seed_count)];
        if (document_part(&s->parts, wanted) != NULL)
            return s;
    }
    return &seeds[below(seed_count)];
}

static void try_number(uint64_t number)
{
    static document work;
    static bytes file;
    chance_state = options.seed * 0xd1342543de82ef95u + number * 0x2545f4914f6cdd1du;
    random_word();
    const seed *from = pick_seed();
    now.number = number;
    now.from = from->name;
    if (one_in(8))
        try_relocation();
    make_input(from, &work, &file);
    try_input(&file, &work, from);
}

/* Every truncation of header and table, every bit of them flipped, and every byte inverted with
 * the digests put right. */
static void try_heads(const seed *from, uint32_t process)
{
    static bytes file;
    size_t head = HEADER + from->parts.count * (size_t)ENTRY;
    for (size_t at = process; at < head; at += options.processes) {
        now.number = at;
        chance_state = at;
        bytes_set(&file, from->file, at);
        try_input(&file, NULL, from);
        for (unsigned bit = 0; bit <= 8; bit++) {
            bytes_set(&file, from->file, from->size);
            file.data[at] ^= (uint8_t)(bit < 8 ? 1u << bit : 0xffu);
            if (bit == 8)
                reseal(&file, true);
            try_input(&file, NULL, from);
        }
    }
}

static void load_plugins(int count, char **paths)
{
    dvt_error error = {0, ""};
    for (int i = 0; i < count && plugin_count < sizeof plugins / sizeof *plugins; i++) {
        size_t length = strlen(paths[i]);
        if (length < 3 || strcmp(paths[i] + length - 3, ".so") != 0)
            continue;
        if (dvt_load_plugin(paths[i], &plugins[plugin_count++], &error) != DVT_OK) {
            fprintf(stderr, "%s\n", error.message);
            exit(2);
        }
    }
}

/* A seed as it is: it must be possible to open it, and nearly always to run it. */
static void try_seed(const seed *from)
{
    static document work;
    bytes file = {from->file, from->size, from->size};
    uint64_t opened = counts->opened, results = counts->results;
    document_copy(&work, &from->parts);
    for (uint64_t i = 0; i < 40; i++) {
        now.number = i;
        chance_state = i;
        try_input(&file, &work, from);
    }
    if (counts->opened == opened) {
        fprintf(stderr, "%s cannot be opened\n", from->name);
        exit(2);
    }
    if (counts->results == results)
        fprintf(stderr, "%s gives no results\n", from->name);
}

static void run_process(uint32_t process, int count, char **paths)
{
    watch();
    dvt_set_threads(1);
    load_plugins(count, paths);
    devices_wrap();
    try_interface();
    for (uint32_t i = process; !options.one && i < seed_count; i += options.processes)
        try_seed(&seeds[i]);
    for (uint32_t i = 0; options.exhaustive && i < seed_count; i++)
        try_heads(&seeds[i], process);
    verbose = options.one;
    if (options.one)
        try_number(options.only);
    for (uint64_t n = process; !options.one && n < options.inputs; n += options.processes)
        try_number(n);
    alarm(0);
    devices_fail(false, 0);
    for (size_t i = 0; i < plugin_count; i++)
        if (dvt_close_plugin(plugins[i]) != 0)
            finding("an artifact left memory on a device");
    exit(0);
}

/* ---- seeds ---- */

static void read_seed(const char *path)
{
    FILE *file = fopen(path, "rb");
    seed *s = &seeds[seed_count];
    s->file = malloc(1 << 22);
    s->size = file != NULL && s->file != NULL ? fread(s->file, 1, 1 << 22, file) : 0;
    if (file != NULL)
        fclose(file);
    s->name = path;
    if (!document_read(s->file, s->size, &s->parts)) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(2);
    }
    const part *code = document_part(&s->parts, DVT_CODE);
    if (code != NULL)
        bytes_set(&s->code, code->body.data, code->body.size);
    seed_count++;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(file_name(((const seed *)left)->name),
                  file_name(((const seed *)right)->name));
}

/* In the order of their names, so that a number means one input wherever they lie. */
static void read_seeds(int count, char **paths)
{
    for (int i = 0; i < count && seed_count < MAX_SEEDS; i++) {
        size_t length = strlen(paths[i]);
        if (length < 3 || strcmp(paths[i] + length - 3, ".so") != 0)
            read_seed(paths[i]);
    }
    qsort(seeds, seed_count, sizeof *seeds, by_name);
    if (seed_count == 0) {
        fprintf(stderr, "no artifacts to start from\n");
        exit(2);
    }
}

/* What the fuzzer knows of the format must be what the format is. */
static void check_seed(const seed *s)
{
    static document copy;
    static bytes file;
    document_copy(&copy, &s->parts);
    document_write(&copy, false, &file);
    if (file.size != s->size || memcmp(file.data, s->file, s->size) != 0) {
        fprintf(stderr, "%s: put together again it is another file\n", s->name);
        exit(2);
    }
    part *ir = document_part(&copy, DVT_KERNEL_IR), *code = document_part(&copy, DVT_CODE);
    if ((ir != NULL && !mutate_kernel_ir(&ir->body)) ||
        (code != NULL && !mutate_code(&code->body))) {
        fprintf(stderr, "%s: its kernel IR or code is not as the fuzzer expects\n", s->name);
        exit(2);
    }
}

/* A file that the fuzzer signs must count as signed by a trusted key. */
static void check_signing(void)
{
    static document copy;
    static bytes file;
    dvt_open_options trusted = {.struct_size = sizeof trusted, .flags = DVT_OPEN_INSPECT};
    dvt_artifact *a = NULL;
    dvt_error error = {0, ""};
    void *aligned = NULL;
    trusted.keys = (const uint8_t (*)[32])public_key;
    trusted.key_count = 1;
    chance_state = 0; /* does not take the way of before 1.3 */
    document_copy(&copy, &seeds[0].parts);
    document_write(&copy, true, &file);
    if (posix_memalign(&aligned, DVT_ALIGN, file.size) != 0)
        exit(2);
    memcpy(aligned, file.data, file.size);
    if (dvt_open_memory(aligned, file.size, &trusted, &a, &error) != DVT_OK ||
        dvt_signature_state(a) != 1) {
        fprintf(stderr, "a signature of the fuzzer's does not count: %s\n", error.message);
        exit(2);
    }
    dvt_close(a);
    free(aligned);
}

/* ---- the whole ---- */

static void read_options(int count, char **arguments)
{
    for (int option; (option = getopt(count, arguments, "n:s:j:i:xko:")) != -1;) {
        uint64_t number = optarg != NULL ? strtoull(optarg, NULL, 0) : 0;
        if (option == 'n')
            options.inputs = number;
        else if (option == 's')
            options.seed = number;
        else if (option == 'j')
            options.processes = number > 0 && number <= 256 ? (uint32_t)number : 1;
        else if (option == 'i')
            options.only = number, options.one = true;
        else if (option == 'x')
            options.exhaustive = true;
        else if (option == 'k')
            options.keep = true;
        else if (option == 'o')
            options.folder = optarg;
        else
            exit(2);
    }
    if (options.one)
        options.processes = 1, options.exhaustive = false;
}

static int wait_for(const pid_t *children)
{
    int failed = 0;
    for (uint32_t done = 0; done < options.processes; done++) {
        int status;
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            for (uint32_t i = 0; i < options.processes && !failed; i++)
                kill(children[i], SIGTERM);
            failed = 1;
        }
    }
    return failed;
}

static int print_tally(const tally *all, double seconds)
{
    tally sum = {0};
    for (uint32_t i = 0; i < options.processes; i++) {
        sum.inputs += all[i].inputs;
        sum.opened += all[i].opened;
        sum.runs += all[i].runs;
        sum.results += all[i].results;
        sum.compared += all[i].compared;
        sum.faults += all[i].faults;
        sum.findings += all[i].findings;
    }
    printf(
        "%llu inputs from %u artifacts in %.0f s (%.0f a second, %u processes): %llu opened, "
        "%llu runs, %llu gave results, %llu inputs run twice alike, memory ran out in %llu; "
        "%llu findings\n",
        (unsigned long long)sum.inputs, seed_count, seconds, (double)sum.inputs / seconds,
        options.processes, (unsigned long long)sum.opened, (unsigned long long)sum.runs,
        (unsigned long long)sum.results, (unsigned long long)sum.compared,
        (unsigned long long)sum.faults, (unsigned long long)sum.findings);
    return sum.findings > 0;
}

int main(int count, char **arguments)
{
    struct timespec begin, end;
    static pid_t children[256];
    read_options(count, arguments);
    dvt_ed25519_public(signing_key, public_key);
    read_seeds(count - optind, arguments + optind);
    for (uint32_t i = 0; i < seed_count; i++)
        check_seed(&seeds[i]);
    check_signing();
    clock_gettime(CLOCK_MONOTONIC, &begin);
    tally *all = mmap(NULL, options.processes * sizeof *all, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 2;
    fflush(NULL);
    for (uint32_t i = 0; i < options.processes; i++) {
        counts = &all[i];
        children[i] = fork();
        if (children[i] == 0)
            run_process(i, count - optind, arguments + optind);
    }
    int failed = wait_for(children);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (!failed)
        failed = print_tally(all, (double)(end.tv_sec - begin.tv_sec) +
                                      1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
    return failed;
}
