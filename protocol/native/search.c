/* Finds the records with some keys or a header. */

#include "functions.h"

#include "records.h"

#include <string.h>

/* Appends a number to a list; returns false with an exception. */
static bool append_number(PyObject *list, int64_t number)
{
    PyObject *value = PyLong_FromLongLong((long long)number);
    bool done = value != NULL && PyList_Append(list, value) == 0;
    Py_XDECREF(value);
    return done;
}

/* Returns 1 if a record is wanted, 0 if not, and -1 with an exception. `end` is that of the record. */
typedef int (*record_test)(const struct record *record, const uint8_t *end, const void *wanted);

/* Returns the offset and timestamp deltas of the wanted records of a payload, in one list; None if the plain form has
   to decide about the payload; NULL with an exception. */
static PyObject *match_records(struct views *views, const uint8_t *payload, size_t size, int32_t count,
                               record_test is_wanted, const void *wanted)
{
    PyObject *found = PyList_New(0);
    const uint8_t *at = payload, *end = payload + size;
    bool sound = found != NULL;
    for (int32_t number = 0; sound && number < count; number++) {
        struct record record;
        sound = read_record(&at, end, &record) && record.offset_delta >= 0;
        int is = sound ? is_wanted(&record, at, wanted) : 0;
        if (is < 0 || (is > 0 && !(append_number(found, record.offset_delta) &&
                                   append_number(found, record.timestamp_delta)))) {
            Py_DECREF(found);
            release_views(views);
            return NULL;
        }
    }
    if (!sound || at != end) {
        Py_XDECREF(found);
        return leave_to_plain_form(views);
    }
    release_views(views);
    return found;
}

/* Some keys. Bit n of `lengths` is set if a key has n bytes, modulo 64. */
struct wanted_keys {
    PyObject *keys;
    int64_t lengths;
};

static int has_key(const struct record *record, const uint8_t *end, const void *wanted)
{
    (void)end;
    const struct wanted_keys *keys = wanted;
    if (record->key_size < 0 || ((uint64_t)keys->lengths >> (record->key_size & 63) & 1) == 0) {
        return 0;
    }
    PyObject *key = PyBytes_FromStringAndSize((const char *)record->key, record->key_size);
    if (key == NULL) {
        return -1;
    }
    int found = PySet_Contains(keys->keys, key);
    Py_DECREF(key);
    return found;
}

PyObject *match_keys(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct wanted_keys wanted;
    const uint8_t *payload;
    size_t size;
    int32_t count;
    if (!has_arguments(given, 4)) {
        return NULL;
    }
    wanted.keys = arguments[2];
    if (!view(&views, arguments[0], PyBUF_SIMPLE, &payload, &size) || !as_record_count(arguments[1], size, &count) ||
        !PyAnySet_Check(wanted.keys) || !as_int64(arguments[3], &wanted.lengths)) {
        return leave_to_plain_form(&views);
    }
    return match_records(&views, payload, size, count, has_key, &wanted);
}

/* A header; the size of its content is -1 for null. */
struct wanted_header {
    const uint8_t *name, *content;
    int64_t name_size, content_size;
};

static bool is_same(const uint8_t *bytes, int32_t size, const uint8_t *wanted, int64_t wanted_size)
{
    return size == wanted_size && (size <= 0 || memcmp(bytes, wanted, (size_t)size) == 0);
}

static int has_header(const struct record *record, const uint8_t *end, const void *wanted)
{
    const struct wanted_header *header = wanted;
    const uint8_t *at = record->headers;
    for (int32_t number = 0; number < record->header_count; number++) {
        const uint8_t *name, *content;
        int32_t name_size, content_size;
        if (!read_header(&at, end, &name, &name_size, &content, &content_size)) {
            return 0; /* read_record has read them all */
        }
        if (is_same(name, name_size, header->name, header->name_size) &&
            is_same(content, content_size, header->content, header->content_size)) {
            return 1;
        }
    }
    return 0;
}

PyObject *match_header(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct wanted_header wanted = {.content = NULL};
    const uint8_t *payload;
    size_t size, name_size, content_size = 0;
    int32_t count;
    if (!has_arguments(given, 4)) {
        return NULL;
    }
    bool is_null = arguments[3] == Py_None;
    if (!view(&views, arguments[0], PyBUF_SIMPLE, &payload, &size) || !as_record_count(arguments[1], size, &count) ||
        !view(&views, arguments[2], PyBUF_SIMPLE, &wanted.name, &name_size) ||
        (!is_null && !view(&views, arguments[3], PyBUF_SIMPLE, &wanted.content, &content_size))) {
        return leave_to_plain_form(&views);
    }
    wanted.name_size = (int64_t)name_size;
    wanted.content_size = is_null ? -1 : (int64_t)content_size;
    return match_records(&views, payload, size, count, has_header, &wanted);
}
