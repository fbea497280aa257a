/* Encodes keys and values as the records of a batch that a broker writes itself: one timestamp, no headers. It runs no
   other Python code, so the objects do not change between measuring and writing. */

#include "functions.h"

#include "records.h"

#include <string.h>

/* More than a batch may have, and far below the range of an int32. */
#define PLAIN_BYTES_MAX (1 << 30)

/* Reads a key or value; the size is -1 for None. Returns false for other objects. */
static bool as_content(PyObject *object, const char **bytes, Py_ssize_t *size)
{
    if (object == Py_None) {
        *size = -1;
        return true;
    }
    if (object == NULL || !PyBytes_Check(object)) {
        return false;
    }
    *bytes = PyBytes_AsString(object);
    *size = PyBytes_Size(object);
    return *size <= PLAIN_BYTES_MAX;
}

struct plain_record {
    const char *key, *value;
    Py_ssize_t key_size, value_size;
    size_t body;
};

/* Reads the pair at `number`, which is also the offset delta. */
static bool as_record(PyObject *records, Py_ssize_t number, struct plain_record *record)
{
    PyObject *pair = PyList_GetItem(records, number);
    if (pair == NULL || !PyTuple_Check(pair) || PyTuple_Size(pair) != 2 ||
        !as_content(item(pair, 0), &record->key, &record->key_size) ||
        !as_content(item(pair, 1), &record->value, &record->value_size)) {
        return false;
    }
    /* Attributes, timestamp delta and number of headers are each a zero. */
    record->body = 3 + varint_size(number) + field_size(record->key_size) + field_size(record->value_size);
    return true;
}

static uint8_t *write_plain(uint8_t *at, Py_ssize_t number, const struct plain_record *record)
{
    at = write_varint(at, (int64_t)record->body);
    *at++ = 0;
    *at++ = 0;
    at = write_varint(at, number);
    at = write_field(at, record->key, record->key_size);
    at = write_field(at, record->value, record->value_size);
    *at++ = 0;
    return at;
}

static PyObject *write_all(const char *head, size_t head_size, const struct plain_record *records, Py_ssize_t count,
                           size_t size)
{
    PyObject *written = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (written == NULL) {
        return NULL;
    }
    uint8_t *at = (uint8_t *)PyBytes_AsString(written);
    memcpy(at, head, head_size);
    at += head_size;
    for (Py_ssize_t number = 0; number < count; number++) {
        at = write_plain(at, number, &records[number]);
    }
    return written;
}

PyObject *plain_records(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    const char *head;
    Py_ssize_t head_size;
    if (!has_arguments(given, 2)) {
        return NULL;
    }
    if (!as_content(arguments[0], &head, &head_size) || head_size < 0 || !PyList_Check(arguments[1])) {
        return leave_to_plain_form(&views);
    }
    Py_ssize_t count = PyList_Size(arguments[1]);
    struct plain_record *records = PyMem_Calloc((size_t)count, sizeof *records);
    if (records == NULL) {
        return PyErr_NoMemory();
    }
    size_t size = (size_t)head_size;
    for (Py_ssize_t number = 0; number < count && size <= PLAIN_BYTES_MAX; number++) {
        struct plain_record *record = &records[number];
        if (!as_record(arguments[1], number, record)) {
            size = PLAIN_BYTES_MAX + 1;
            break;
        }
        size += varint_size((int64_t)record->body) + record->body;
    }
    PyObject *written =
        size > PLAIN_BYTES_MAX ? leave_to_plain_form(&views) : write_all(head, (size_t)head_size, records, count, size);
    PyMem_Free(records);
    return written;
}
