/* Finds the records with some keys or a header, and adds keys to the filter of a segment. */

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

/* Returns 1 if the record has one of the keys, 0 if not, and -1 with an exception. Bit n of `lengths` is set if a key
   has n bytes, modulo 64. */
static int has_key(const struct record *record, PyObject *keys, uint64_t lengths)
{
    if (record->key_size < 0 || (lengths >> (record->key_size & 63) & 1) == 0) {
        return 0;
    }
    PyObject *key = PyBytes_FromStringAndSize((const char *)record->key, record->key_size);
    if (key == NULL) {
        return -1;
    }
    int found = PySet_Contains(keys, key);
    Py_DECREF(key);
    return found;
}

PyObject *match_keys(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    const uint8_t *payload;
    size_t size;
    int32_t count;
    int64_t lengths;
    if (!has_arguments(given, 4)) {
        return NULL;
    }
    if (!view(&views, arguments[0], PyBUF_SIMPLE, &payload, &size) || !as_record_count(arguments[1], size, &count) ||
        !PyAnySet_Check(arguments[2]) || !as_int64(arguments[3], &lengths)) {
        return leave_to_plain_form(&views);
    }
    PyObject *found = PyList_New(0);
    const uint8_t *at = payload, *end = payload + size;
    bool sound = found != NULL;
    for (int32_t number = 0; sound && number < count; number++) {
        struct record record;
        sound = read_record(&at, end, &record) && record.offset_delta >= 0;
        int has = sound ? has_key(&record, arguments[2], (uint64_t)lengths) : 0;
        if (has < 0 || (has > 0 && !(append_number(found, record.offset_delta) &&
                                     append_number(found, record.timestamp_delta)))) {
            Py_DECREF(found);
            release_views(&views);
            return NULL;
        }
    }
    if (!sound || at != end) {
        Py_XDECREF(found);
        return leave_to_plain_form(&views);
    }
    release_views(&views);
    return found;
}

static bool is_same(const uint8_t *bytes, int32_t size, const uint8_t *wanted, int64_t wanted_size)
{
    return size == wanted_size && (size <= 0 || memcmp(bytes, wanted, (size_t)size) == 0);
}

static bool has_header(const struct record *record, const uint8_t *end, const uint8_t *name, size_t name_size,
                       const uint8_t *content, int64_t content_size)
{
    const uint8_t *at = record->headers;
    for (int32_t number = 0; number < record->header_count; number++) {
        const uint8_t *one, *other;
        int32_t one_size, other_size;
        if (!read_header(&at, end, &one, &one_size, &other, &other_size)) {
            return false; /* read_record has read them all */
        }
        if (is_same(one, one_size, name, (int64_t)name_size) && is_same(other, other_size, content, content_size)) {
            return true;
        }
    }
    return false;
}

PyObject *match_header(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    const uint8_t *payload, *name, *content = NULL;
    size_t size, name_size, content_size = 0;
    int32_t count;
    if (!has_arguments(given, 4)) {
        return NULL;
    }
    bool is_null = arguments[3] == Py_None;
    if (!view(&views, arguments[0], PyBUF_SIMPLE, &payload, &size) || !as_record_count(arguments[1], size, &count) ||
        !view(&views, arguments[2], PyBUF_SIMPLE, &name, &name_size) ||
        (!is_null && !view(&views, arguments[3], PyBUF_SIMPLE, &content, &content_size))) {
        return leave_to_plain_form(&views);
    }
    PyObject *found = PyList_New(0);
    const uint8_t *at = payload, *end = payload + size;
    bool sound = found != NULL;
    for (int32_t number = 0; sound && number < count; number++) {
        struct record record;
        sound = read_record(&at, end, &record) && record.offset_delta >= 0;
        if (sound && has_header(&record, at, name, name_size, content, is_null ? -1 : (int64_t)content_size) &&
            !(append_number(found, record.offset_delta) && append_number(found, record.timestamp_delta))) {
            Py_DECREF(found);
            release_views(&views);
            return NULL;
        }
    }
    if (!sound || at != end) {
        Py_XDECREF(found);
        return leave_to_plain_form(&views);
    }
    release_views(&views);
    return found;
}

/* A block of the filter: 480 bits, of which a key sets six. */
#define BLOCK_BYTES 60
#define BLOCK_BITS (8 * BLOCK_BYTES)
#define KEY_BITS 6

static void add_key(uint8_t *filter, uint64_t mask, uint64_t hash)
{
    uint8_t *block = filter + (hash & mask) * BLOCK_BYTES;
    uint64_t mixed = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
    for (int number = 0; number < KEY_BITS; number++) {
        uint64_t bit = (mixed >> (64 - 9 * (number + 1)) & 511) * BLOCK_BITS >> 9;
        block[bit >> 3] |= (uint8_t)(1u << (bit & 7));
    }
}

PyObject *add_keys(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct key_table secret;
    const uint8_t *filter, *secret_bytes, *payload;
    size_t filter_size, secret_size, size;
    int32_t count;
    if (!has_arguments(given, 4)) {
        return NULL;
    }
    if (!view(&views, arguments[0], PyBUF_WRITABLE, &filter, &filter_size) ||
        !view(&views, arguments[1], PyBUF_SIMPLE, &secret_bytes, &secret_size) ||
        secret_size != sizeof secret.secret || !view(&views, arguments[2], PyBUF_SIMPLE, &payload, &size) ||
        !as_record_count(arguments[3], size, &count)) {
        return leave_to_plain_form(&views);
    }
    uint64_t blocks = filter_size / BLOCK_BYTES;
    if (filter_size % BLOCK_BYTES != 0 || blocks == 0 || (blocks & (blocks - 1)) != 0) {
        return leave_to_plain_form(&views);
    }
    memcpy(secret.secret, secret_bytes, secret_size);
    const uint8_t *at = payload, *end = payload + size;
    for (int32_t number = 0; number < count; number++) {
        struct record record;
        if (!read_record(&at, end, &record)) {
            return leave_to_plain_form(&views);
        }
        if (record.key_size >= 0) {
            uint64_t hash, check;
            hash_key(&secret, record.key, (size_t)record.key_size, &hash, &check);
            add_key((uint8_t *)(uintptr_t)filter, blocks - 1, hash);
        }
    }
    release_views(&views);
    return PyBool_FromLong(at == end);
}
