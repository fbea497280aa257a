/* Small requests from bytes, and their answers to bytes: see requests.h. */

#include "requests.h"

#include "delete.h"
#include "head.h"
#include "produce.h"
#include "runs.h"

bool put_item(PyObject *tuple, Py_ssize_t place, PyObject *value)
{
    return value != NULL && PyTuple_SetItem(tuple, place, value) == 0;
}

bool put_number(PyObject *tuple, Py_ssize_t place, int64_t number)
{
    return put_item(tuple, place, PyLong_FromLongLong(number));
}

PyObject *text_of(const struct text *text)
{
    return text->size < 0 ? Py_NewRef(Py_None) : PyUnicode_DecodeUTF8((const char *)text->bytes, text->size, NULL);
}

PyObject *topic_or_id(const struct text *topic, bool is_id)
{
    return is_id ? PyBytes_FromStringAndSize((const char *)topic->bytes, topic->size) : text_of(topic);
}

bool view_request(struct views *views, PyObject *const *arguments, struct request *request)
{
    int64_t start, stop;
    size_t size;
    if (!as_int64(arguments[1], &start) || !as_int64(arguments[2], &stop) ||
        !view(views, arguments[0], PyBUF_SIMPLE, &request->bytes, &size) || start < 0 || stop < start || (uint64_t)stop > size) {
        return false;
    }
    request->bytes += start;
    request->start = (size_t)start;
    request->size = (size_t)(stop - start);
    return true;
}

PyObject *read_head(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct request_head head;
    if (!has_arguments(given, 4)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_request_head(request.bytes, request.size, arguments[3] == Py_True, &head)) {
        return leave_to_plain_form(&views);
    }
    PyObject *read = PyTuple_New(2);
    if (read != NULL &&
        (!put_item(read, 0, head.client_id_size < 0 ? Py_NewRef(Py_None)
                                               : PyUnicode_DecodeUTF8((const char *)head.client_id, head.client_id_size, NULL)) ||
         !put_number(read, 1, (int64_t)(request.start + head.size)))) {
        Py_DECREF(read);
        read = NULL;
    }
    release_views(&views);
    return read;
}

/* The fields of a `ValidatedBatch`, in its order, up to its tail, which is empty. */
static PyObject *batch_fields(const struct small_batch *batch)
{
    PyObject *fields = PyTuple_New(11);
    if (fields == NULL) {
        return NULL;
    }
    if (!put_number(fields, 0, (int64_t)batch->size) || !put_number(fields, 1, batch->last_offset_delta) ||
        !put_number(fields, 2, batch->record_count) || !put_number(fields, 3, batch->max_timestamp) ||
        !put_number(fields, 4, batch->offset_delta_of_max_timestamp) || !put_number(fields, 5, batch->base_timestamp) ||
        !put_number(fields, 6, batch->producer_id) || !put_number(fields, 7, batch->producer_epoch) ||
        !put_number(fields, 8, batch->base_sequence) || !put_number(fields, 9, batch->attributes) ||
        !put_item(fields, 10, PyTuple_New(0))) {
        Py_DECREF(fields);
        return NULL;
    }
    return fields;
}

static PyObject *topic_of(const struct small_produce *produce)
{
    if (produce->version >= TOPIC_IDS_SINCE) {
        return PyBytes_FromStringAndSize((const char *)produce->topic, TOPIC_ID_BYTES);
    }
    return PyUnicode_DecodeUTF8((const char *)produce->topic, (Py_ssize_t)produce->topic_size, NULL);
}

PyObject *read_produce(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct small_produce produce;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_small_produce(request.bytes, request.size, &produce)) {
        return leave_to_plain_form(&views);
    }
    PyObject *read = PyTuple_New(11);
    if (read != NULL &&
        (!put_number(read, 0, produce.version) || !put_number(read, 1, produce.correlation_id) || !put_number(read, 2, produce.acks) ||
         !put_number(read, 3, produce.timeout_ms) || !put_item(read, 4, topic_of(&produce)) || !put_number(read, 5, produce.partition) ||
         !put_number(read, 6, (int64_t)request.start + (produce.batch.start - request.bytes)) || !put_number(read, 7, produce.batch.crc) ||
         !put_number(read, 8, produce.batch.min_timestamp) || !put_item(read, 9, batch_fields(&produce.batch)) ||
         !put_item(read, 10, text_of(&produce.transactional_id)))) {
        Py_DECREF(read);
        read = NULL;
    }
    release_views(&views);
    return read;
}

/* Requests that are alike, in the order in which they are answered. */
struct alike {
    size_t count;
    const struct small_produce *requests[ROUND_MAX];
};

/* Of each batch: where it begins in the buffer, its checksum, and its fields. */
static PyObject *batches_of(const struct alike *alike, const struct request *request)
{
    PyObject *batches = PyTuple_New((Py_ssize_t)alike->count);
    for (size_t number = 0; batches != NULL && number < alike->count; number++) {
        const struct small_batch *batch = &alike->requests[number]->batch;
        PyObject *row = PyTuple_New(3);
        if (row == NULL || !put_number(row, 0, (int64_t)request->start + (batch->start - request->bytes)) ||
            !put_number(row, 1, batch->crc) || !put_item(row, 2, batch_fields(batch))) {
            Py_XDECREF(row);
            Py_CLEAR(batches);
        } else {
            PyTuple_SetItem(batches, (Py_ssize_t)number, row);
        }
    }
    return batches;
}

static PyObject *correlation_ids_of(const struct alike *alike)
{
    PyObject *ids = PyTuple_New((Py_ssize_t)alike->count);
    for (size_t number = 0; ids != NULL && number < alike->count; number++) {
        if (!put_number(ids, (Py_ssize_t)number, alike->requests[number]->correlation_id)) {
            Py_CLEAR(ids);
        }
    }
    return ids;
}

/* What the module returns of them. `where` is its fourth item, a reference that is handed over. */
static PyObject *read_together(const struct alike *alike, const struct request *request, PyObject *where)
{
    const struct small_produce *first = alike->requests[0];
    int64_t earliest = INT64_MAX, latest = INT64_MIN;
    size_t largest = 0, total = 0;
    for (size_t number = 0; number < alike->count; number++) {
        const struct small_batch *batch = &alike->requests[number]->batch;
        earliest = batch->min_timestamp < earliest ? batch->min_timestamp : earliest;
        latest = batch->max_timestamp > latest ? batch->max_timestamp : latest;
        largest = batch->size > largest ? batch->size : largest;
        total += batch->size;
    }
    PyObject *read = PyTuple_New(12);
    if (read == NULL) {
        Py_XDECREF(where);
    } else if (!put_item(read, 3, where) || !put_number(read, 0, first->version) || !put_item(read, 1, correlation_ids_of(alike)) ||
               !put_number(read, 2, first->acks) || !put_item(read, 4, topic_of(first)) || !put_number(read, 5, first->partition) ||
               !put_number(read, 6, earliest) || !put_number(read, 7, latest) || !put_number(read, 8, (int64_t)largest) ||
               !put_number(read, 9, (int64_t)total) || !put_item(read, 10, batches_of(alike, request)) ||
               !put_number(read, 11, first->timeout_ms)) {
        Py_CLEAR(read);
    }
    return read;
}

PyObject *read_run(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct produce_run run;
    int64_t frame_max;
    if (!has_arguments(given, 4)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !as_int64(arguments[3], &frame_max) || frame_max < 0 ||
        !read_produce_run(request.bytes, request.size, (size_t)frame_max, &run)) {
        return leave_to_plain_form(&views);
    }
    struct alike alike = {.count = run.count};
    for (size_t number = 0; number < run.count; number++) {
        alike.requests[number] = &run.requests[number];
    }
    PyObject *read = read_together(&alike, &request, PyLong_FromLongLong((int64_t)(request.start + run.size)));
    release_views(&views);
    return read;
}

static PyObject *read_group(const struct produce_round *round, const struct produce_group *group, const struct request *request)
{
    struct alike alike = {.count = group->count};
    PyObject *members = PyTuple_New((Py_ssize_t)group->count);
    for (size_t number = 0; number < group->count; number++) {
        alike.requests[number] = &round->requests[group->members[number]];
        if (members != NULL && !put_number(members, (Py_ssize_t)number, group->members[number])) {
            Py_CLEAR(members);
        }
    }
    return read_together(&alike, request, members);
}

PyObject *read_round(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct produce_round round;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_produce_round(request.bytes, request.size, &round)) {
        return leave_to_plain_form(&views);
    }
    PyObject *groups = PyList_New(0);
    for (size_t number = 0; groups != NULL && number < round.group_count; number++) {
        if (round.groups[number].count > 1) {
            PyObject *group = read_group(&round, &round.groups[number], &request);
            if (group == NULL || PyList_Append(groups, group) != 0) {
                Py_CLEAR(groups);
            }
            Py_XDECREF(group);
        }
    }
    release_views(&views);
    return groups;
}

/* The bytes of a name in ASCII, or of an id: the object's. */
static bool as_topic(PyObject *object, int16_t version, struct produced *produced)
{
    Py_ssize_t size = 0;
    if (version >= TOPIC_IDS_SINCE) {
        if (!PyBytes_Check(object)) {
            return false;
        }
        size = PyBytes_Size(object);
        produced->topic = (const uint8_t *)PyBytes_AsString(object);
    } else if (PyUnicode_Check(object)) {
        produced->topic = (const uint8_t *)PyUnicode_AsUTF8AndSize(object, &size);
    } else {
        return false;
    }
    produced->topic_size = (size_t)size;
    return produced->topic != NULL;
}

/* Reads version, topic, partition, time and log start; what is set for each answer is left 0. */
static bool as_produced(PyObject *const *arguments, struct produced *produced)
{
    int32_t version;
    *produced = (struct produced){.version = 0};
    if (!as_int32(arguments[0], &version) || version < 0 || version > INT16_MAX || !as_topic(arguments[2], (int16_t)version, produced) ||
        !as_int32(arguments[3], &produced->partition) || !as_int64(arguments[5], &produced->log_append_time_ms) ||
        !as_int64(arguments[6], &produced->log_start_offset)) {
        return false;
    }
    produced->version = (int16_t)version;
    return true;
}

PyObject *produce_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct produced produced;
    size_t size;
    if (!has_arguments(given, 7)) {
        return NULL;
    }
    if (!as_produced(arguments, &produced) || !as_int32(arguments[1], &produced.correlation_id) ||
        !as_int64(arguments[4], &produced.base_offset) || (size = produced_size(&produced)) == 0) {
        return leave_to_plain_form(&views);
    }
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (answer != NULL) {
        write_produced(&produced, (uint8_t *)PyBytes_AsString(answer));
    }
    return answer;
}

PyObject *run_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct produced produced;
    size_t size;
    if (!has_arguments(given, 7)) {
        return NULL;
    }
    PyObject *ids = arguments[1], *offsets = arguments[4];
    if (!PyTuple_Check(ids) || !PyTuple_Check(offsets) || PyTuple_Size(ids) != PyTuple_Size(offsets) || PyTuple_Size(ids) > ROUND_MAX ||
        !as_produced(arguments, &produced) || (size = produced_size(&produced)) == 0) {
        return leave_to_plain_form(&views);
    }
    Py_ssize_t count = PyTuple_Size(ids);
    PyObject *answer = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)size);
    if (answer == NULL) {
        return NULL;
    }
    uint8_t *at = (uint8_t *)PyBytes_AsString(answer);
    for (Py_ssize_t number = 0; number < count; number++, at += size) {
        if (!as_int32(item(ids, number), &produced.correlation_id) || !as_int64(item(offsets, number), &produced.base_offset)) {
            Py_DECREF(answer);
            return leave_to_plain_form(&views);
        }
        write_produced(&produced, at);
    }
    return answer;
}

PyObject *read_delete(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct small_delete delete;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_small_delete(request.bytes, request.size, &delete)) {
        return leave_to_plain_form(&views);
    }
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)deleted_size(&delete));
    if (answer != NULL) {
        write_deleted(&delete, (uint8_t *)PyBytes_AsString(answer));
    }
    PyObject *read = PyTuple_New(7);
    if (read == NULL) {
        Py_XDECREF(answer);
    } else if (!put_item(read, 6, answer) ||
               !put_item(read, 0, delete.client_id_size < 0
                                      ? Py_NewRef(Py_None)
                                      : PyUnicode_DecodeUTF8((const char *)delete.client_id, delete.client_id_size, NULL)) ||
               !put_item(read, 1, PyUnicode_DecodeUTF8((const char *)delete.topic, (Py_ssize_t)delete.topic_size, NULL)) ||
               !put_number(read, 2, delete.partition) || !put_number(read, 3, delete.offset) || !put_number(read, 4, delete.timeout_ms) ||
               !put_item(read, 5, PyBool_FromLong(delete.leader_only))) {
        Py_CLEAR(read);
    }
    release_views(&views);
    return read;
}
