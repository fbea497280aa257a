/* Walks over the records of a batch, for checks and searches. */

#include "functions.h"

#include "records.h"

/* Threads walk over larger batches, and release the interpreter's lock. */
#define LONG_WALK_BYTES (4 << 20)

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
