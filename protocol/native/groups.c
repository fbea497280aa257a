/* Requests of groups' members from bytes, and committed offsets to records: see groups.h. */

#include "groups.h"

#include "commit.h"
#include "fields.h"
#include "requests.h"

#include <string.h>

/* Puts who asks into the first places of a new tuple. */
static bool put_member(PyObject *tuple, const struct member *member)
{
    return put_item(tuple, 0, text_of(&member->group)) && put_number(tuple, 1, member->generation) &&
           put_item(tuple, 2, text_of(&member->id)) && put_item(tuple, 3, text_of(&member->instance));
}

static PyObject *row_of(const struct committed_offset *row)
{
    PyObject *made = PyTuple_New(3);
    if (made != NULL &&
        (!put_number(made, 0, row->partition) || !put_number(made, 1, row->offset) || !put_number(made, 2, row->leader_epoch))) {
        Py_CLEAR(made);
    }
    return made;
}

PyObject *rows_of(const struct small_commit *commit)
{
    PyObject *rows = PyTuple_New(commit->count);
    for (Py_ssize_t number = 0; rows != NULL && number < commit->count; number++) {
        if (!put_item(rows, number, row_of(&commit->rows[number]))) {
            Py_CLEAR(rows);
        }
    }
    return rows;
}

PyObject *committed_answer(const struct small_commit *commit)
{
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)committed_size(commit));
    if (answer != NULL) {
        write_committed(commit, (uint8_t *)PyBytes_AsString(answer));
    }
    return answer;
}

PyObject *read_commit(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct small_commit commit;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_small_commit(request.bytes, request.size, &commit)) {
        return leave_to_plain_form(&views);
    }
    PyObject *read = PyTuple_New(9);
    if (read != NULL && (!put_member(read, &commit.member) || !put_number(read, 4, commit.member.version) ||
                         !put_item(read, 5, topic_or_id(&commit.topic, commit.has_topic_id)) ||
                         !put_number(read, 6, commit.largest_partition) ||
                         !put_item(read, 7, rows_of(&commit)) || !put_item(read, 8, committed_answer(&commit)))) {
        Py_CLEAR(read);
    }
    release_views(&views);
    return read;
}

PyObject *read_heartbeat(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct member member;
    uint8_t answer[HEARTBEAT_ANSWER_BYTES_MAX];
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_small_heartbeat(request.bytes, request.size, &member)) {
        return leave_to_plain_form(&views);
    }
    size_t size = write_alive(&member, answer);
    PyObject *read = PyTuple_New(5);
    if (read != NULL &&
        (!put_member(read, &member) || !put_item(read, 4, PyBytes_FromStringAndSize((const char *)answer, (Py_ssize_t)size)))) {
        Py_CLEAR(read);
    }
    release_views(&views);
    return read;
}

/* ---------------------------------------------------------------- records */
#define OFFSET_VALUE_VERSION 4
#define NO_METADATA 1

/* Key and value of the record of one row; null, with or without an exception, if it has no such numbers. */
static PyObject *record_of(PyObject *key_start, PyObject *value_end, PyObject *row)
{
    int32_t partition, leader_epoch;
    int64_t offset;
    if (row == NULL || !as_int32(item(row, 0), &partition) || !as_int64(item(row, 1), &offset) || !as_int32(item(row, 2), &leader_epoch)) {
        return NULL;
    }
    Py_ssize_t key_size = PyBytes_Size(key_start), value_size = PyBytes_Size(value_end);
    PyObject *record = PyTuple_New(2), *key = PyBytes_FromStringAndSize(NULL, key_size + 4);
    PyObject *value = PyBytes_FromStringAndSize(NULL, value_size + 15);
    if (record == NULL || key == NULL || value == NULL) {
        Py_XDECREF(record);
        Py_XDECREF(key);
        Py_XDECREF(value);
        return NULL;
    }
    uint8_t *at = (uint8_t *)PyBytes_AsString(key);
    memcpy(at, PyBytes_AsString(key_start), (size_t)key_size);
    (void)put(at + key_size, (uint32_t)partition, 4);
    at = put((uint8_t *)PyBytes_AsString(value), OFFSET_VALUE_VERSION, 2);
    at = put(put(at, (uint64_t)offset, 8), (uint32_t)leader_epoch, 4);
    *at++ = NO_METADATA;
    memcpy(at, PyBytes_AsString(value_end), (size_t)value_size);
    (void)PyTuple_SetItem(record, 0, key);
    (void)PyTuple_SetItem(record, 1, value);
    return record;
}

PyObject *offset_records(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!PyBytes_Check(arguments[0]) || !PyBytes_Check(arguments[1]) || !PyTuple_Check(arguments[2])) {
        return leave_to_plain_form(&views);
    }
    Py_ssize_t count = PyTuple_Size(arguments[2]);
    PyObject *records = PyList_New(count);
    if (records == NULL) {
        return NULL;
    }
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *record = record_of(arguments[0], arguments[1], item(arguments[2], number));
        if (record == NULL || PyList_SetItem(records, number, record) != 0) {
            Py_DECREF(records);
            return leave_to_plain_form(&views);
        }
    }
    return records;
}
