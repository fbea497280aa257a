/* JoinGroup and SyncGroup from bytes, and their answers to bytes: see joins.h. */

#include "joins.h"

#include "join.h"
#include "requests.h"

/* ---------------------------------------------------------------- requests */
static PyObject *rows_of(const struct named_bytes *rows, int32_t count)
{
    PyObject *made = PyTuple_New(count);
    for (Py_ssize_t number = 0; made != NULL && number < count; number++) {
        PyObject *row = PyTuple_New(2);
        const struct text *content = &rows[number].content;
        if (row == NULL || !put_item(row, 0, text_of(&rows[number].name)) ||
            !put_item(row, 1, PyBytes_FromStringAndSize((const char *)content->bytes, content->size))) {
            Py_XDECREF(row);
            Py_CLEAR(made);
        } else {
            (void)PyTuple_SetItem(made, number, row);
        }
    }
    return made;
}

PyObject *read_join(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct small_join join;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_small_join(request.bytes, request.size, &join)) {
        return leave_to_plain_form(&views);
    }
    PyObject *read = PyTuple_New(10);
    if (read != NULL &&
        (!put_number(read, 0, join.version) || !put_number(read, 1, join.correlation_id) || !put_item(read, 2, text_of(&join.client)) ||
         !put_item(read, 3, text_of(&join.group)) || !put_number(read, 4, join.session_timeout_ms) ||
         !put_number(read, 5, join.rebalance_timeout_ms) || !put_item(read, 6, text_of(&join.member)) ||
         !put_item(read, 7, text_of(&join.instance)) || !put_item(read, 8, text_of(&join.protocol_type)) ||
         !put_item(read, 9, rows_of(join.protocols, join.count)))) {
        Py_CLEAR(read);
    }
    release_views(&views);
    return read;
}

PyObject *read_sync(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct small_sync sync;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_small_sync(request.bytes, request.size, &sync)) {
        return leave_to_plain_form(&views);
    }
    PyObject *read = PyTuple_New(9);
    if (read != NULL &&
        (!put_number(read, 0, sync.version) || !put_number(read, 1, sync.correlation_id) || !put_item(read, 2, text_of(&sync.group)) ||
         !put_number(read, 3, sync.generation) || !put_item(read, 4, text_of(&sync.member)) ||
         !put_item(read, 5, text_of(&sync.instance)) || !put_item(read, 6, text_of(&sync.protocol_type)) ||
         !put_item(read, 7, text_of(&sync.protocol_name)) || !put_item(read, 8, rows_of(sync.assignments, sync.count)))) {
        Py_CLEAR(read);
    }
    release_views(&views);
    return read;
}

/* ---------------------------------------------------------------- answers */
/* The characters are the object's. False, perhaps with an exception, for what isn't text or None. */
static bool as_text(PyObject *object, struct text *text)
{
    Py_ssize_t size = -1;
    *text = (struct text){.size = -1};
    if (object == Py_None) {
        return true;
    }
    if (object == NULL || !PyUnicode_Check(object)) {
        return false;
    }
    text->bytes = (const uint8_t *)PyUnicode_AsUTF8AndSize(object, &size);
    text->size = (int32_t)size;
    return text->bytes != NULL && size <= INT16_MAX;
}

static bool as_bytes(PyObject *object, struct text *content)
{
    if (object == NULL || !PyBytes_Check(object) || PyBytes_Size(object) > CONTENT_BYTES_MAX) {
        return false;
    }
    *content = (struct text){.bytes = (const uint8_t *)PyBytes_AsString(object), .size = (int32_t)PyBytes_Size(object)};
    return true;
}

static bool as_version(PyObject *object, int16_t *version)
{
    int32_t wide;
    if (!as_int32(object, &wide) || wide < 0 || wide > INT16_MAX) {
        return false;
    }
    *version = (int16_t)wide;
    return true;
}

static bool as_members(PyObject *rows, struct joined *joined)
{
    if (!PyTuple_Check(rows) || PyTuple_Size(rows) > MEMBERS_MAX) {
        return false;
    }
    joined->count = (int32_t)PyTuple_Size(rows);
    for (Py_ssize_t number = 0; number < joined->count; number++) {
        PyObject *row = item(rows, number);
        struct joined_member *member = &joined->members[number];
        if (!as_text(item(row, 0), &member->id) || !as_text(item(row, 1), &member->instance) ||
            !as_bytes(item(row, 2), &member->metadata)) {
            return false;
        }
    }
    return true;
}

PyObject *join_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct joined joined;
    size_t size;
    if (!has_arguments(given, 9)) {
        return NULL;
    }
    joined.skips_assignment = arguments[6] == Py_True;
    if (!as_version(arguments[0], &joined.version) || !as_int32(arguments[1], &joined.correlation_id) ||
        !as_int32(arguments[2], &joined.generation) || !as_text(arguments[3], &joined.protocol_type) ||
        !as_text(arguments[4], &joined.protocol_name) || !as_text(arguments[5], &joined.leader) || !as_text(arguments[7], &joined.member) ||
        !as_members(arguments[8], &joined) || (size = joined_size(&joined)) == 0) {
        return leave_to_plain_form(&views);
    }
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (answer != NULL) {
        write_joined(&joined, (uint8_t *)PyBytes_AsString(answer));
    }
    return answer;
}

PyObject *sync_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct synced synced;
    size_t size;
    if (!has_arguments(given, 5)) {
        return NULL;
    }
    if (!as_version(arguments[0], &synced.version) || !as_int32(arguments[1], &synced.correlation_id) ||
        !as_text(arguments[2], &synced.protocol_type) || !as_text(arguments[3], &synced.protocol_name) ||
        !as_bytes(arguments[4], &synced.assignment) || (size = synced_size(&synced)) == 0) {
        return leave_to_plain_form(&views);
    }
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (answer != NULL) {
        write_synced(&synced, (uint8_t *)PyBytes_AsString(answer));
    }
    return answer;
}
