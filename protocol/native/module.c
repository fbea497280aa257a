/* The Python module `_lowtide_walk`, and its functions over records.h. `__init__.py` documents the functions.

   A function returns None if the plain form must decide. It holds the interpreter's lock, because a batch takes a
   fraction of a millisecond; only the walk over a large batch releases it. Buffers are exported while they are in use,
   so that they cannot be resized. */

#include "crc32c.h"
#include "functions.h"
#include "records.h"

#include <string.h>

/* Increase it with every change of a parameter or result: a module with another version is ignored. */
#define WALK_VERSION 16

/* ---------------------------------------------------------------- a batch to columns */
static bool is_array(PyObject *array, int64_t size)
{
    return array != NULL && PyByteArray_Check(array) && PyByteArray_Size(array) == size;
}

/* Adds `more` bytes. Errors: BufferError, MemoryError. */
static bool grow(PyObject *array, int64_t more)
{
    return PyByteArray_Resize(array, PyByteArray_Size(array) + (Py_ssize_t)more) == 0;
}

static uint8_t *start_of(PyObject *array)
{
    return (uint8_t *)PyByteArray_AsString(array);
}

static int64_t bitmap_bytes(int64_t rows)
{
    return (rows + 7) / 8;
}

static bool grow_bitmap(PyObject *array, int64_t rows, int64_t more)
{
    int64_t before = bitmap_bytes(rows), after = bitmap_bytes(rows + more);
    if (!grow(array, after - before)) {
        return false;
    }
    memset(start_of(array) + before, 0xff, (size_t)(after - before));
    return true;
}

/* The three buffers of a column. */
struct binary_arrays {
    PyObject *validity, *offsets, *values;
    int64_t before; /* the size of `values` */
};

static bool find_arrays(PyObject *tuple, Py_ssize_t first, int64_t rows, struct binary_arrays *arrays)
{
    *arrays = (struct binary_arrays){
        .validity = item(tuple, first), .offsets = item(tuple, first + 1), .values = item(tuple, first + 2)};
    if (!is_array(arrays->validity, bitmap_bytes(rows)) || !is_array(arrays->offsets, (rows + 1) * 4) ||
        arrays->values == NULL || !PyByteArray_Check(arrays->values)) {
        return false;
    }
    arrays->before = PyByteArray_Size(arrays->values);
    return true;
}

static bool grow_arrays(const struct binary_arrays *arrays, int64_t rows, int64_t more, int64_t bytes)
{
    return grow_bitmap(arrays->validity, rows, more) && grow(arrays->offsets, more * 4) && grow(arrays->values, bytes);
}

static struct binary_column column_of(const struct binary_arrays *arrays, int64_t rows, int64_t more, int64_t bytes)
{
    return (struct binary_column){.validity = start_of(arrays->validity),
                                  .offsets = start_of(arrays->offsets),
                                  .values = start_of(arrays->values),
                                  .place = rows,
                                  .entries = more,
                                  .position = arrays->before,
                                  .room = bytes};
}

struct column_arrays {
    PyObject *offsets, *timestamps, *list_validity, *list_offsets;
    struct binary_arrays keys, values, names, contents;
    int64_t rows, headers;
};

static bool find_column_arrays(PyObject *records, PyObject *headers, struct column_arrays *arrays)
{
    arrays->offsets = item(records, 0);
    arrays->timestamps = item(records, 1);
    if (!is_array(arrays->offsets, arrays->rows * 8) || !is_array(arrays->timestamps, arrays->rows * 8) ||
        !find_arrays(records, 2, arrays->rows, &arrays->keys) ||
        !find_arrays(records, 5, arrays->rows, &arrays->values)) {
        return false;
    }
    if (headers == Py_None) {
        return true;
    }
    arrays->list_validity = item(headers, 0);
    arrays->list_offsets = item(headers, 1);
    return is_array(arrays->list_validity, bitmap_bytes(arrays->rows)) &&
           is_array(arrays->list_offsets, (arrays->rows + 1) * 4) &&
           find_arrays(headers, 2, arrays->headers, &arrays->names) &&
           find_arrays(headers, 5, arrays->headers, &arrays->contents);
}

static bool fits(const struct binary_arrays *arrays, int64_t more)
{
    return more <= INT32_MAX - arrays->before;
}

static bool grow_columns(const struct column_arrays *arrays, const struct sums *sums, bool with_headers)
{
    if (!grow(arrays->offsets, sums->rows * 8) || !grow(arrays->timestamps, sums->rows * 8) ||
        !grow_arrays(&arrays->keys, arrays->rows, sums->rows, sums->key_bytes) ||
        !grow_arrays(&arrays->values, arrays->rows, sums->rows, sums->value_bytes)) {
        return false;
    }
    return !with_headers || (grow_bitmap(arrays->list_validity, arrays->rows, sums->rows) &&
                             grow(arrays->list_offsets, sums->rows * 4) &&
                             grow_arrays(&arrays->names, arrays->headers, sums->headers, sums->name_bytes) &&
                             grow_arrays(&arrays->contents, arrays->headers, sums->headers, sums->content_bytes));
}

static bool fill(const struct batch *batch, const struct column_arrays *arrays, const struct sums *sums)
{
    struct columns columns = {.offsets = start_of(arrays->offsets),
                              .timestamps = start_of(arrays->timestamps),
                              .place = arrays->rows,
                              .rows = sums->rows,
                              .keys = column_of(&arrays->keys, arrays->rows, sums->rows, sums->key_bytes),
                              .values = column_of(&arrays->values, arrays->rows, sums->rows, sums->value_bytes)};
    if (batch->with_headers) {
        columns.list_validity = start_of(arrays->list_validity);
        columns.list_offsets = start_of(arrays->list_offsets);
        columns.names = column_of(&arrays->names, arrays->headers, sums->headers, sums->name_bytes);
        columns.contents = column_of(&arrays->contents, arrays->headers, sums->headers, sums->content_bytes);
    }
    return fill_columns(batch, &columns);
}

static bool read_batch(PyObject *tuple, struct views *views, struct batch *batch)
{
    PyObject *append_time = item(tuple, 5);
    batch->has_append_time = append_time != NULL && append_time != Py_None;
    return view(views, item(tuple, 0), PyBUF_SIMPLE, &batch->payload, &batch->size) &&
           as_record_count(item(tuple, 1), batch->size, &batch->record_count) &&
           as_int64(item(tuple, 2), &batch->base_offset) && as_int32(item(tuple, 3), &batch->last_offset_delta) &&
           as_int64(item(tuple, 4), &batch->base_timestamp) &&
           (!batch->has_append_time || as_int64(append_time, &batch->append_time)) &&
           as_int64(item(tuple, 6), &batch->from_offset) && as_int64(item(tuple, 7), &batch->until_offset) &&
           batch->base_offset >= 0 && batch->last_offset_delta >= 0 &&
           batch->base_offset <= INT64_MAX - batch->last_offset_delta;
}

static PyObject *append_records(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct batch batch = {0};
    struct column_arrays arrays = {0};
    struct sums sums;
    if (!has_arguments(given, 5)) {
        return NULL;
    }
    batch.with_headers = arguments[4] != Py_None;
    if (!read_batch(arguments[0], &views, &batch) || !as_int64(arguments[1], &arrays.rows) ||
        !as_int64(arguments[3], &arrays.headers) || arrays.rows < 0 || arrays.rows > INT32_MAX || arrays.headers < 0 ||
        arrays.headers > INT32_MAX || !find_column_arrays(arguments[2], arguments[4], &arrays) ||
        !measure_batch(&batch, &sums) || !fits(&arrays.keys, sums.key_bytes) ||
        !fits(&arrays.values, sums.value_bytes) || !fits(&arrays.names, sums.name_bytes) ||
        !fits(&arrays.contents, sums.content_bytes) || sums.rows > INT32_MAX - arrays.rows ||
        sums.headers > INT32_MAX - arrays.headers) {
        return leave_to_plain_form(&views);
    }
    bool is_done = grow_columns(&arrays, &sums, batch.with_headers);
    if (is_done && !fill(&batch, &arrays, &sums)) {
        PyErr_SetString(PyExc_RuntimeError, "the records have changed while they were read");
        is_done = false;
    }
    release_views(&views);
    if (!is_done) {
        return NULL;
    }
    return Py_BuildValue("(LLLLLL)", (long long)sums.rows, (long long)(sums.rows - sums.keys),
                         (long long)(sums.rows - sums.values), (long long)sums.headers,
                         (long long)(sums.rows - sums.rows_with_headers), (long long)(sums.headers - sums.contents));
}

/* ---------------------------------------------------------------- columns to a batch */
/* Reads None, or a tuple of offsets, values, validity (or None) and the first entry. */
static bool read_input(PyObject *object, struct views *views, struct binary_input *input)
{
    *input = (struct binary_input){.is_there = object != NULL && object != Py_None};
    if (!input->is_there) {
        return object != NULL;
    }
    PyObject *validity = item(object, 2);
    return view(views, item(object, 0), PyBUF_SIMPLE, &input->offsets, &input->offsets_size) &&
           input->offsets_size % 4 == 0 &&
           view(views, item(object, 1), PyBUF_SIMPLE, &input->values, &input->values_size) &&
           (validity == Py_None || view(views, validity, PyBUF_SIMPLE, &input->validity, &input->validity_size)) &&
           as_int64(item(object, 3), &input->first) && input->first >= 0;
}

/* Reads None or int64s. */
static bool read_optional(PyObject *object, struct views *views, const uint8_t **bytes, size_t *size)
{
    *bytes = NULL;
    return object == Py_None || (view(views, object, PyBUF_SIMPLE, bytes, size) && *size % 8 == 0);
}

/* Reads `RowBuffers` and the fields of a `RowRun` after the rows. */
static bool read_rows(PyObject *columns, PyObject *run, struct views *views, struct rows *rows, int64_t *size_max)
{
    return as_int64(item(columns, 0), &rows->row_count) &&
           read_optional(item(columns, 1), views, &rows->timestamps, &rows->timestamps_size) &&
           read_input(item(columns, 2), views, &rows->keys) && read_input(item(columns, 3), views, &rows->values) &&
           read_input(item(columns, 4), views, &rows->lists) && read_input(item(columns, 5), views, &rows->names) &&
           read_input(item(columns, 6), views, &rows->contents) &&
           read_optional(item(run, 0), views, &rows->selected, &rows->selected_size) &&
           as_int64(item(run, 1), &rows->first) && as_int64(item(run, 2), &rows->count) &&
           as_int64(item(run, 3), size_max) && as_int64(item(run, 4), &rows->timestamp_ms);
}

static PyObject *append_rows(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct rows rows = {0};
    struct written written;
    int64_t size_max;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    PyObject *out = arguments[0];
    if (!PyByteArray_Check(out) || !read_rows(arguments[1], arguments[2], &views, &rows, &size_max) || size_max < 0 ||
        !measure_rows(&rows, (size_t)size_max, &written)) {
        return leave_to_plain_form(&views);
    }
    Py_ssize_t before = PyByteArray_Size(out);
    bool is_done = grow(out, (int64_t)written.size);
    if (is_done && !write_rows(&rows, &written, start_of(out) + before)) {
        PyErr_SetString(PyExc_RuntimeError, "the columns have changed while they were read");
        is_done = false;
    }
    release_views(&views);
    if (!is_done) {
        return NULL;
    }
    if (written.rows == 0) {
        written.base_timestamp = written.max_timestamp = rows.timestamp_ms;
    }
    return Py_BuildValue("(LLL)", (long long)written.rows, (long long)written.base_timestamp,
                         (long long)written.max_timestamp);
}

/* ---------------------------------------------------------------- the last offset of each key */
static bool read_table(PyObject *places, PyObject *secret, struct views *views, struct key_table *table)
{
    const uint8_t *bytes;
    size_t size, count;
    if (!view(views, secret, PyBUF_SIMPLE, &bytes, &size) || size != sizeof table->secret) {
        return false;
    }
    memcpy(table->secret, bytes, size);
    if (!view(views, places, PyBUF_WRITABLE, &bytes, &size)) {
        return false;
    }
    count = size / 8;
    if (size % 16 != 0 || count < 2 || (count & (count - 1)) != 0 || (uintptr_t)bytes % sizeof(int64_t) != 0) {
        return false;
    }
    table->places = (int64_t *)(uintptr_t)bytes;
    table->mask = count - 2;
    return true;
}

static PyObject *hash_key_(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct key_table table;
    const uint8_t *secret, *key;
    size_t secret_size, size;
    uint64_t hash, check;
    if (!has_arguments(given, 2)) {
        return NULL;
    }
    if (!view(&views, arguments[0], PyBUF_SIMPLE, &secret, &secret_size) || secret_size != sizeof table.secret ||
        !view(&views, arguments[1], PyBUF_SIMPLE, &key, &size)) {
        release_views(&views);
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a secret has 16 bytes");
        }
        return NULL;
    }
    memcpy(table.secret, secret, secret_size);
    hash_key(&table, key, size, &hash, &check);
    release_views(&views);
    return Py_BuildValue("(LL)", (long long)hash, (long long)check);
}

static PyObject *note_keys_(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct key_table table;
    struct noted noted = {0};
    const uint8_t *payload;
    size_t size;
    int32_t count;
    int64_t shift, first_delta, room;
    if (!has_arguments(given, 8)) {
        return NULL;
    }
    if (!read_table(arguments[0], arguments[1], &views, &table) ||
        !view(&views, arguments[2], PyBUF_SIMPLE, &payload, &size) || !as_record_count(arguments[3], size, &count) ||
        !as_int64(arguments[4], &shift) || !as_int64(arguments[5], &first_delta) || !as_int64(arguments[6], &room) ||
        !as_int64(arguments[7], &noted.records) ||
        !note_keys(&table, payload, size, count, shift, first_delta, room, &noted)) {
        return leave_to_plain_form(&views);
    }
    release_views(&views);
    return Py_BuildValue("(LLL)", (long long)noted.records, (long long)noted.added, (long long)noted.last_delta);
}

static PyObject *copy_keys(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct key_table from, to;
    static const uint8_t none[sizeof from.secret];
    if (!has_arguments(given, 2)) {
        return NULL;
    }
    PyObject *secret = PyBytes_FromStringAndSize((const char *)none, sizeof none);
    if (secret == NULL) {
        return NULL;
    }
    bool is_right = read_table(arguments[0], secret, &views, &from) && read_table(arguments[1], secret, &views, &to) &&
                    to.mask > from.mask;
    Py_DECREF(secret);
    if (!is_right) {
        release_views(&views);
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a table of keys is copied into a larger one");
        }
        return NULL;
    }
    for (size_t place = 0; place <= from.mask; place += 2) {
        if (from.places[place] == 0) {
            continue;
        }
        size_t found = (size_t)from.places[place + 1] & to.mask;
        while (to.places[found] != 0) {
            found = (found + 2) & to.mask;
        }
        to.places[found] = from.places[place];
        to.places[found + 1] = from.places[place + 1];
    }
    release_views(&views);
    return Py_NewRef(Py_None);
}

static PyObject *written_payload(const uint8_t *payload, size_t size, int32_t count, const struct retention *retention,
                                 const uint8_t *gone, const struct retained *retained)
{
    if (retained->records == count && !retained->is_rewritten) {
        return Py_NewRef(Py_None);
    }
    PyObject *left = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)retained->size);
    if (left != NULL &&
        !write_retained(payload, size, count, retention, gone, retained, (uint8_t *)PyBytes_AsString(left))) {
        PyErr_SetString(PyExc_RuntimeError, "the records have changed while they were read");
        Py_DECREF(left);
        return NULL;
    }
    return left;
}

static PyObject *retain(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct key_table table;
    struct retention retention = {0};
    struct retained retained;
    const uint8_t *payload;
    size_t size;
    int32_t count;
    if (!has_arguments(given, 8)) {
        return NULL;
    }
    retention.drops_tombstones = arguments[6] == Py_True;
    retention.sets_horizon = arguments[7] != Py_None;
    if (!read_table(arguments[0], arguments[1], &views, &table) ||
        !view(&views, arguments[2], PyBUF_SIMPLE, &payload, &size) || !as_record_count(arguments[3], size, &count) ||
        !as_int64(arguments[4], &retention.shift) || !as_int64(arguments[5], &retention.latest_delta) ||
        (retention.sets_horizon && !as_int64(arguments[7], &retention.timestamp_shift))) {
        return leave_to_plain_form(&views);
    }
    uint8_t *gone = PyMem_Malloc((size_t)count + 1);
    if (gone == NULL) {
        release_views(&views);
        return PyErr_NoMemory();
    }
    if (!measure_retained(&table, payload, size, count, &retention, gone, &retained)) {
        PyMem_Free(gone);
        return leave_to_plain_form(&views);
    }
    PyObject *left = written_payload(payload, size, count, &retention, gone, &retained);
    PyMem_Free(gone);
    release_views(&views);
    if (left == NULL) {
        return NULL;
    }
    return Py_BuildValue("(iNLN)", retained.records, PyBool_FromLong(retained.has_tombstones),
                         (long long)retained.max_timestamp_delta, left);
}

/* ---------------------------------------------------------------- the module */
#define FUNCTION(name, function) {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION("add_hashes", add_hashes),
    FUNCTION("append_records", append_records),
    FUNCTION("append_rows", append_rows),
    FUNCTION("close_syncs", close_syncs),
    FUNCTION("copy_keys", copy_keys),
    FUNCTION("crc32c", crc32c_of),
    FUNCTION("filter_pages", filter_pages),
    FUNCTION("find_record", find_record_of),
    FUNCTION("hash_key", hash_key_),
    FUNCTION("match_header", match_header),
    FUNCTION("match_keys", match_keys),
    FUNCTION("note_keys", note_keys_),
    FUNCTION("open_syncs", open_syncs),
    FUNCTION("plain_records", plain_records),
    FUNCTION("produce_answers", produce_answers),
    FUNCTION("read_produce", read_produce),
    FUNCTION("retain", retain),
    FUNCTION("sort_hashes", sort_hashes),
    FUNCTION("submit_sync", submit_sync),
    FUNCTION("take_synced", take_synced),
    FUNCTION("wait_synced", wait_synced),
    FUNCTION("walk_records", walk_records_of),
    {NULL, NULL, 0, NULL},
};

static int add_names(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "VERSION", WALK_VERSION) != 0 ||
        PyModule_AddIntConstant(module, "HEADERS", PY_VERSION_HEX & ~0xffff) != 0) {
        return -1;
    }
    if (!has_crc32c() && PyObject_SetAttrString(module, "crc32c", Py_None) != 0) {
        return -1;
    }
    return add_codec(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_names},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,  .m_name = "_lowtide_walk", .m_doc = "The compiled form of the walk over record batches.",
    .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__lowtide_walk(void);

PyMODINIT_FUNC PyInit__lowtide_walk(void)
{
    return PyModuleDef_Init(&definition);
}
