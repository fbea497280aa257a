/* Small requests from bytes, and their answers to bytes: see requests.h. */

#include "requests.h"

#include "head.h"
#include "produce.h"

/* Puts a new reference into a new tuple; false if there is none. */
static bool put(PyObject *tuple, Py_ssize_t place, PyObject *value)
{
    return value != NULL && PyTuple_SetItem(tuple, place, value) == 0;
}

static bool put_number(PyObject *tuple, Py_ssize_t place, int64_t number)
{
    return put(tuple, place, PyLong_FromLongLong(number));
}

/* The bytes of a request, `buffer[start:stop]`, and where they begin. */
struct request {
    const uint8_t *bytes;
    size_t start, size;
};

static bool view_request(struct views *views, PyObject *const *arguments, struct request *request)
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
        (!put(read, 0, head.client_id_size < 0 ? Py_NewRef(Py_None)
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
        !put_number(fields, 8, batch->base_sequence) || !put_number(fields, 9, 0) || !put(fields, 10, PyTuple_New(0))) {
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
    PyObject *read = PyTuple_New(10);
    if (read != NULL &&
        (!put_number(read, 0, produce.version) || !put_number(read, 1, produce.correlation_id) || !put_number(read, 2, produce.acks) ||
         !put_number(read, 3, produce.timeout_ms) || !put(read, 4, topic_of(&produce)) || !put_number(read, 5, produce.partition) ||
         !put_number(read, 6, (int64_t)request.start + (produce.batch.start - request.bytes)) || !put_number(read, 7, produce.batch.crc) ||
         !put_number(read, 8, produce.batch.min_timestamp) || !put(read, 9, batch_fields(&produce.batch)))) {
        Py_DECREF(read);
        read = NULL;
    }
    release_views(&views);
    return read;
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

PyObject *produce_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct produced produced;
    int32_t version;
    if (!has_arguments(given, 7)) {
        return NULL;
    }
    if (!as_int32(arguments[0], &version) || version < 0 || version > INT16_MAX || !as_int32(arguments[1], &produced.correlation_id) ||
        !as_topic(arguments[2], (int16_t)version, &produced) || !as_int32(arguments[3], &produced.partition) ||
        !as_int64(arguments[4], &produced.base_offset) || !as_int64(arguments[5], &produced.log_append_time_ms) ||
        !as_int64(arguments[6], &produced.log_start_offset)) {
        return leave_to_plain_form(&views);
    }
    produced.version = (int16_t)version;
    size_t size = produced_size(&produced);
    if (size == 0) {
        return leave_to_plain_form(&views);
    }
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (answer != NULL) {
        write_produced(&produced, (uint8_t *)PyBytes_AsString(answer));
    }
    return answer;
}
