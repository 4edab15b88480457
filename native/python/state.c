/* state.c: what changes when a tensor is written to or given other memory, as bytes to compare.
 *
 * PyTorch counts writes in a tensor's version, but not all of them: `.data`, NumPy arrays,
 * batch norm's running statistics and collectives go uncounted. A state has the version, and
 * words of the contents beside it: all of a small tensor, or a few spread over it. A frozen
 * model compares the states of all its weights at each call, so a state is quick to make and
 * `states_unchanged` allocates nothing.
 */
#include "bindings.h"

#include <stdint.h>

enum {
    SAMPLES = 8,         /* words read of a tensor that is not read whole */
    WHOLE_BYTES = 65536, /* the largest tensor that KEY_SMALL_WHOLE reads whole */
    MAX_DIMS = 64,       /* PyTorch's own limit */
    DLPACK_CUDA_HOST =
        3, /* DLPack's number for pinned memory, which the host reads as its own */
};
enum { KEY_SAMPLE = 0, KEY_SMALL_WHOLE = 1, KEY_WHOLE = 2 };

/* One tensor's part of the result. No padding: compared as words. Of a tensor that is read
 * whole, the last word is a digest of it and the others are zero. */
typedef struct {
    uint64_t address, version, layout, words[SAMPLES];
} tensor_state;

/* ---- hashing: each step is a bijection of the word, so no change of one word goes unseen ----
 */

typedef struct {
    uint64_t lane[4];
} hasher;

static inline uint64_t mix(uint64_t state, uint64_t word)
{
    state = (state ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return state ^ (state >> 32);
}

static inline uint64_t load(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static hasher start(void)
{
    return (hasher){{1, 2, 3, 4}}; /* lanes that differ, so that words cannot trade places */
}

static void absorb(hasher *h, const uint8_t *bytes, size_t size)
{
    for (; size >= 32; bytes += 32, size -= 32)
        for (int i = 0; i < 4; i++)
            h->lane[i] = mix(h->lane[i], load(bytes + 8 * i));
    for (int i = 0; size >= 8; i++, bytes += 8, size -= 8)
        h->lane[i] = mix(h->lane[i], load(bytes));
    if (size != 0) {
        uint64_t rest = 0;
        memcpy(&rest, bytes, size);
        h->lane[3] = mix(h->lane[3], rest);
    }
}

static uint64_t finish(const hasher *h)
{
    uint64_t digest = h->lane[0];
    for (int i = 1; i < 4; i++)
        digest = mix(digest, h->lane[i]);
    return digest;
}

/* ---- a tensor's memory ---- */

static size_t element_size(const dvt_tensor *t)
{
    return ((size_t)t->dtype.bits * t->dtype.lanes + 7) / 8;
}

static int64_t element_count(const dvt_tensor *t)
{
    int64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        count *= t->shape[i];
    return count;
}

/* Whether the elements fill the memory between the first and the last of them. */
static bool is_dense(const dvt_tensor *t, int64_t count)
{
    int64_t last = 0;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->strides[i] == 0 && t->shape[i] > 1)
            return false;
        last += (t->shape[i] - 1) * t->strides[i];
    }
    return last + 1 == count;
}

/* Where an element lies, in elements; `index` counts in the order of the dimensions. */
static int64_t place_of(const dvt_tensor *t, int64_t index)
{
    int64_t place = 0;
    for (int32_t i = t->ndim; i-- > 0;) {
        place += index % t->shape[i] * t->strides[i];
        index /= t->shape[i];
    }
    return place;
}

typedef struct {
    int64_t size, stride;
} dimension;

/* The dimensions that matter, largest stride first; the elements that lie together at the end
 * of it become `*run`. */
static int sorted_dimensions(const dvt_tensor *t, dimension *dims, int64_t *run)
{
    int count = 0;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 1 || t->strides[i] == 0)
            continue;
        int at = count++;
        for (; at > 0 && dims[at - 1].stride < t->strides[i]; at--)
            dims[at] = dims[at - 1];
        dims[at] = (dimension){t->shape[i], t->strides[i]};
    }
    for (*run = 1; count > 0 && dims[count - 1].stride == *run; count--)
        *run *= dims[count - 1].size;
    return count;
}

static uint64_t hash_strided(const dvt_tensor *t, const uint8_t *data)
{
    dimension dims[MAX_DIMS];
    int64_t at[MAX_DIMS] = {0}, run;
    const int count = sorted_dimensions(t, dims, &run);
    const size_t element = element_size(t);
    hasher h = start();
    for (int64_t place = 0;;) {
        absorb(&h, data + (size_t)place * element, (size_t)run * element);
        int i = count - 1;
        for (; i >= 0 && ++at[i] == dims[i].size; i--) {
            place -= (dims[i].size - 1) * dims[i].stride;
            at[i] = 0;
        }
        if (i < 0)
            return finish(&h);
        place += dims[i].stride;
    }
}

static void read_samples(const dvt_tensor *t, const uint8_t *data, int64_t count, bool dense,
                         uint64_t *words)
{
    const size_t element = element_size(t), size = (size_t)count * element;
    for (size_t i = 0; i < SAMPLES; i++) {
        if (dense) {
            words[i] = load(data + (size - 8) * i / (SAMPLES - 1));
        } else {
            int64_t place = place_of(t, (count - 1) * (int64_t)i / (SAMPLES - 1));
            memcpy(&words[i], data + (size_t)place * element, element < 8 ? element : 8);
        }
    }
}

/* Fills words that are zero. */
static void read_contents(const dvt_tensor *t, int how, uint64_t *words)
{
    const int64_t count = element_count(t);
    const bool on_host = t->device.type == DVT_CPU || t->device.type == DLPACK_CUDA_HOST;
    if (count == 0 || t->data == NULL || !on_host)
        return;
    const uint8_t *data = (const uint8_t *)t->data + t->byte_offset;
    const size_t size = (size_t)count * element_size(t);
    const bool dense = is_dense(t, count);
    const size_t limit = how == KEY_WHOLE         ? SIZE_MAX
                         : how == KEY_SMALL_WHOLE ? (size_t)WHOLE_BYTES
                                                  : (size_t)SAMPLES * 8;
    if (size > limit) {
        read_samples(t, data, count, dense, words);
    } else if (!dense) {
        words[SAMPLES - 1] = hash_strided(t, data);
    } else {
        hasher h = start();
        absorb(&h, data, size);
        words[SAMPLES - 1] = finish(&h);
    }
}

static uint64_t hash_layout(const dvt_tensor *t)
{
    uint64_t sizes = mix(t->dtype.code, ((uint64_t)t->dtype.bits << 16) | t->dtype.lanes);
    uint64_t strides = (uint64_t)t->ndim;
    for (int32_t i = 0; i < t->ndim; i++) {
        sizes = mix(sizes, (uint64_t)t->shape[i]);
        strides = mix(strides, (uint64_t)t->strides[i]);
    }
    return mix(sizes, strides);
}

/* ---- Python ---- */

/* A type whose attribute `_version` is written in C, and how to read it without a search
 * through the bases. References are held; guarded by the interpreter lock. */
typedef struct {
    PyTypeObject *type;
    PyObject *descriptor;
    descrgetfunc get;
} versioned_type;

/* Reads the attribute `_version`. Weights are parameters and buffers: two types. One whose
 * attribute is written in Python is asked each time, as it may be exchanged. */
static PyObject *get_version(PyObject *tensor)
{
    static versioned_type seen[2];
    static unsigned next;
    static PyObject *name;
    PyTypeObject *type = Py_TYPE(tensor);
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        if (seen[i].type == type)
            return seen[i].get(seen[i].descriptor, tensor, (PyObject *)type);
    if (name == NULL && (name = PyUnicode_InternFromString("_version")) == NULL)
        return NULL;
    PyObject *found = PyObject_GetAttr((PyObject *)type, name);
    if (found == NULL)
        PyErr_Clear();
    if (found != NULL && Py_TYPE(found) == &PyGetSetDescr_Type) {
        versioned_type *place = &seen[next++ % 2], previous = *place;
        *place = (versioned_type){
            (PyTypeObject *)Py_NewRef((PyObject *)type), Py_NewRef(found),
            (descrgetfunc)PyType_GetSlot(&PyGetSetDescr_Type, Py_tp_descr_get)};
        Py_XDECREF((PyObject *)previous.type);
        Py_XDECREF(previous.descriptor);
    }
    Py_XDECREF(found);
    return PyObject_GetAttr(tensor, name);
}

/* The version; UINT64_MAX where the tensor has none (it was made in inference mode). */
static int read_version(PyObject *tensor, uint64_t *version)
{
    PyObject *number = get_version(tensor);
    *version = UINT64_MAX;
    if (number == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    *version = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

static int read_state(PyObject *tensor, int how, tensor_state *out)
{
    dvt_tensor t = {0};
    const exchange_api *api = exchange_of(Py_TYPE(tensor));
    if (api == NULL || api->tensor_from_object(tensor, &t) != 0) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "a %R has no strided memory",
                     (PyObject *)Py_TYPE(tensor));
        return -1;
    }
    if (t.ndim > MAX_DIMS || (t.ndim > 0 && t.strides == NULL)) {
        PyErr_SetString(PyExc_TypeError, "a tensor without strides");
        return -1;
    }
    if (read_version(tensor, &out->version) != 0)
        return -1;
    out->address = (uint64_t)(uintptr_t)t.data + t.byte_offset;
    out->layout = hash_layout(&t);
    memset(out->words, 0, sizeof out->words);
    read_contents(&t, out->version == UINT64_MAX ? KEY_WHOLE : how, out->words);
    return 0;
}

PyObject *tensor_states(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tensors;
    const char *how;
    Py_ssize_t given;
    if (!PyArg_ParseTuple(args, "O!y#", &PyTuple_Type, &tensors, &how, &given))
        return NULL;
    const Py_ssize_t count = PyTuple_Size(tensors);
    if (given != count)
        return PyErr_Format(PyExc_ValueError, "%zd tensors, %zd ways to read", count, given);
    PyObject *result =
        PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(tensor_state));
    if (result == NULL)
        return NULL;
    char *out = PyBytes_AsString(result);
    for (Py_ssize_t i = 0; i < count; i++) {
        tensor_state state;
        if (read_state(PyTuple_GetItem(tensors, i), how[i], &state) != 0) {
            Py_DECREF(result);
            return NULL;
        }
        memcpy(out + i * (Py_ssize_t)sizeof state, &state, sizeof state);
    }
    return result;
}

static bool is_same(const tensor_state *state, const uint8_t *kept)
{
    uint64_t difference = 0;
    for (size_t i = 0; i < sizeof *state; i += 8)
        difference |= load((const uint8_t *)state + i) ^ load(kept + i);
    return difference == 0;
}

/* Whether states(tensors, how) would give these bytes: 1, 0, or -1 with an exception set. */
static int compare_states(PyObject *tensors, const char *how, const char *kept)
{
    const Py_ssize_t count = PyTuple_Size(tensors);
    for (Py_ssize_t i = 0; i < count; i++) {
        tensor_state state;
        if (read_state(PyTuple_GetItem(tensors, i), how[i], &state) != 0)
            return -1;
        if (!is_same(&state, (const uint8_t *)kept + i * (Py_ssize_t)sizeof state))
            return 0;
    }
    return 1;
}

PyObject *states_unchanged(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    if (given != 3 || !PyTuple_Check(args[0]) || !PyBytes_Check(args[1]) ||
        !PyBytes_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "give a tuple of tensors, bytes and bytes");
        return NULL;
    }
    const Py_ssize_t count = PyTuple_Size(args[0]);
    int same = 0;
    if (PyBytes_Size(args[1]) == count &&
        PyBytes_Size(args[2]) == count * (Py_ssize_t)sizeof(tensor_state))
        same = compare_states(args[0], PyBytes_AsString(args[1]), PyBytes_AsString(args[2]));
    return same < 0 ? NULL : PyBool_FromLong(same);
}
