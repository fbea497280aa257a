/* Converts groups of Produce requests to objects, and writes their responses. */

#include "functions.h"
#include "produce.h"

/* The classes of a group and its parts; their arguments are in the order of their fields. */
struct types {
    PyObject *group, *received, *batch;
};

static PyObject *topic_of(const struct small_produce *produce)
{
    if (produce->version >= TOPIC_IDS_SINCE) {
        return PyBytes_FromStringAndSize((const char *)produce->topic, TOPIC_ID_BYTES);
    }
    return PyUnicode_DecodeUTF8((const char *)produce->topic, (Py_ssize_t)produce->topic_size, NULL);
}

/* Creates a `ValidatedBatch` with an empty tail, and its start in the buffer. */
static PyObject *received_of(const struct types *types, const struct small_batch *batch, size_t start, bool begins)
{
    PyObject *fields[] = {PyLong_FromSize_t(batch->size),
                          PyLong_FromLong(batch->last_offset_delta),
                          PyLong_FromLong(batch->record_count),
                          PyLong_FromLongLong(batch->max_timestamp),
                          PyLong_FromLong(batch->offset_delta_of_max_timestamp),
                          PyLong_FromLongLong(batch->base_timestamp),
                          PyLong_FromLongLong(batch->producer_id),
                          PyLong_FromLong(batch->producer_epoch),
                          PyLong_FromLong(batch->base_sequence),
                          PyLong_FromLong(batch->attributes),
                          PyTuple_New(0)};
    PyObject *values[] = {make_object(types->batch, fields, sizeof fields / sizeof *fields), PyLong_FromSize_t(start),
                          PyLong_FromUnsignedLong(batch->crc), PyBool_FromLong(begins)};
    return make_object(types->received, values, sizeof values / sizeof *values);
}

static PyObject *group_object(const struct types *types, const struct produce_set *set,
                              const struct produce_group *group, const struct request *request)
{
    const struct small_produce *first = &set->requests[group->members[0]];
    PyObject *ids = PyTuple_New((Py_ssize_t)group->count), *places = PyTuple_New((Py_ssize_t)group->count);
    PyObject *batches = PyList_New((Py_ssize_t)group->count);
    int64_t earliest = first->batch.min_timestamp, latest = first->batch.max_timestamp;
    size_t largest = 0, total = 0;
    for (size_t number = 0; number < group->count && ids != NULL && places != NULL && batches != NULL; number++) {
        const struct small_produce *member = &set->requests[group->members[number]];
        const struct small_batch *batch = &member->batch;
        size_t start = request->start + (size_t)(batch->start - request->bytes);
        PyObject *received = received_of(types, batch, start, group->begins[number]);
        if (received == NULL || PyList_SetItem(batches, (Py_ssize_t)number, received) != 0 ||
            !put_number(ids, (Py_ssize_t)number, member->correlation_id) ||
            !put_number(places, (Py_ssize_t)number, group->members[number])) {
            Py_CLEAR(batches);
        }
        earliest = batch->min_timestamp < earliest ? batch->min_timestamp : earliest;
        latest = batch->max_timestamp > latest ? batch->max_timestamp : latest;
        largest = batch->size > largest ? batch->size : largest;
        total += batch->size;
    }
    const struct text *transactional_id = &first->transactional_id;
    PyObject *values[] = {
        PyLong_FromLong(first->version),
        PyLong_FromLong(first->acks),
        PyLong_FromLong(first->timeout_ms),
        topic_of(first),
        PyLong_FromLong(first->partition),
        transactional_id->size < 0
            ? Py_NewRef(Py_None)
            : PyUnicode_DecodeUTF8((const char *)transactional_id->bytes, transactional_id->size, NULL),
        PyLong_FromLongLong(earliest),
        PyLong_FromLongLong(latest),
        PyLong_FromSize_t(largest),
        PyLong_FromSize_t(total),
        PyLong_FromSize_t(request->start + set->ends[group->members[group->count - 1]]),
        ids,
        places,
        batches,
    };
    return make_object(types->group, values, sizeof values / sizeof *values);
}

PyObject *read_produce(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct produce_set set;
    int64_t frame_max;
    if (!has_arguments(given, 6)) {
        return NULL;
    }
    struct types types = {item(arguments[0], 0), item(arguments[0], 1), item(arguments[0], 2)};
    if (types.batch == NULL || !view_request(&views, arguments + 1, &request) || !as_int64(arguments[4], &frame_max) ||
        frame_max < 0) {
        return leave_to_plain_form(&views);
    }
    read_produce_set(request.bytes, request.size, (size_t)frame_max, arguments[5] == Py_True, &set);
    PyObject *groups = PyList_New((Py_ssize_t)set.group_count);
    for (size_t number = 0; groups != NULL && number < set.group_count; number++) {
        PyObject *group = group_object(&types, &set, &set.groups[number], &request);
        if (group == NULL || PyList_SetItem(groups, (Py_ssize_t)number, group) != 0) {
            Py_CLEAR(groups);
        }
    }
    release_views(&views);
    return groups;
}

/* Reads a name in ASCII, or an id. */
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

PyObject *produce_answers(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct produced produced = {.version = 0};
    int32_t version;
    size_t size;
    if (!has_arguments(given, 7)) {
        return NULL;
    }
    PyObject *ids = arguments[1], *offsets = arguments[4];
    if (!as_int32(arguments[0], &version) || version < 0 || version > INT16_MAX ||
        !as_topic(arguments[2], (int16_t)version, &produced) || !as_int32(arguments[3], &produced.partition) ||
        !as_int64(arguments[5], &produced.log_append_time_ms) || !as_int64(arguments[6], &produced.log_start_offset) ||
        !PyTuple_Check(ids) || !PyTuple_Check(offsets) || PyTuple_Size(ids) != PyTuple_Size(offsets)) {
        return leave_to_plain_form(&views);
    }
    produced.version = (int16_t)version;
    size = produced_size(&produced);
    Py_ssize_t count = PyTuple_Size(ids);
    PyObject *answers = size == 0 ? leave_to_plain_form(&views) : PyList_New(count);
    for (Py_ssize_t number = 0; answers != NULL && answers != Py_None && number < count; number++) {
        PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
        if (answer == NULL || !as_int32(item(ids, number), &produced.correlation_id) ||
            !as_int64(item(offsets, number), &produced.base_offset)) {
            Py_XDECREF(answer);
            Py_DECREF(answers);
            return answer == NULL ? NULL : leave_to_plain_form(&views);
        }
        write_produced(&produced, (uint8_t *)PyBytes_AsString(answer));
        PyList_SetItem(answers, number, answer);
    }
    return answers;
}
