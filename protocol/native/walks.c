/* The checksum of a batch, and walks over its records, for checks and searches. */

#include "functions.h"

#include "crc32c.h"
#include "records.h"

/* Above this size the interpreter's lock is released. */
#define LONG_WALK_BYTES (4 << 20)

/* From this size on a checksum takes longer than it takes to release the interpreter's lock. */
#define LONG_CRC32C_BYTES (32 << 10)

PyObject *crc32c_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    Py_buffer buffer;
    unsigned long crc = 0;
    if (given != 2 && !has_arguments(given, 1)) {
        return NULL;
    }
    if (given == 2) {
        crc = PyLong_AsUnsignedLong(arguments[1]);
        if (PyErr_Occurred()) {
            return NULL;
        }
        if (crc > UINT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "a checksum has 32 bits");
            return NULL;
        }
    }
    if (PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) != 0) {
        return NULL;
    }
    PyThreadState *state = buffer.len >= LONG_CRC32C_BYTES ? PyEval_SaveThread() : NULL;
    uint32_t sum = add_crc32c((uint32_t)crc, buffer.buf, (size_t)buffer.len);
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    PyBuffer_Release(&buffer);
    return PyLong_FromUnsignedLong(sum);
}

PyObject *walk_records_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct walked walked;
    const uint8_t *payload;
    size_t size;
    int32_t count;
    if (!has_arguments(given, 2)) {
        return NULL;
    }
    if (!view(&views, arguments[0], PyBUF_SIMPLE, &payload, &size) || !as_record_count(arguments[1], size, &count)) {
        return leave_to_plain_form(&views);
    }
    PyThreadState *state = size > LONG_WALK_BYTES ? PyEval_SaveThread() : NULL;
    bool sound = walk_records(payload, size, count, &walked);
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    if (!sound) {
        return leave_to_plain_form(&views);
    }
    release_views(&views);
    return Py_BuildValue("(LLiNN)", (long long)walked.min_timestamp_delta, (long long)walked.max_timestamp_delta,
                         walked.max_timestamp_index, PyBool_FromLong(walked.keyless), PyBool_FromLong(walked.in_order));
}

PyObject *find_record_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct found_record found;
    const uint8_t *payload;
    size_t size;
    int32_t count;
    int64_t timestamp_delta, offset_delta;
    if (!has_arguments(given, 4)) {
        return NULL;
    }
    if (!view(&views, arguments[0], PyBUF_SIMPLE, &payload, &size) || !as_record_count(arguments[1], size, &count) ||
        !as_int64(arguments[2], &timestamp_delta) || !as_int64(arguments[3], &offset_delta)) {
        return leave_to_plain_form(&views);
    }
    PyThreadState *state = size > LONG_WALK_BYTES ? PyEval_SaveThread() : NULL;
    bool sound = find_record(payload, size, count, timestamp_delta, offset_delta, &found);
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    if (!sound) {
        return leave_to_plain_form(&views);
    }
    release_views(&views);
    return found.exists ? Py_BuildValue("(iL)", found.offset_delta, (long long)found.timestamp_delta) : PyTuple_New(0);
}
