/* Fetch from bytes, and its answer to bytes: see fetches.h. */

#include "fetches.h"

#include "fetch.h"
#include "requests.h"

#include <string.h>

/* ---------------------------------------------------------------- requests */
static PyObject *row_of(const struct fetched_partition *row, PyObject *topic)
{
    PyObject *made = PyTuple_New(7);
    if (made != NULL &&
        (!put_item(made, 0, Py_NewRef(topic)) || !put_number(made, 1, row->partition) || !put_number(made, 2, row->leader_epoch) ||
         !put_number(made, 3, row->offset) || !put_number(made, 4, row->last_epoch) || !put_number(made, 5, row->log_start) ||
         !put_number(made, 6, row->bytes_max))) {
        Py_CLEAR(made);
    }
    return made;
}

/* Rows of one topic share its name. */
static PyObject *rows_of(const struct small_fetch *fetch)
{
    PyObject *rows = PyTuple_New(fetch->count), *topic = NULL;
    for (Py_ssize_t number = 0; rows != NULL && number < fetch->count; number++) {
        const struct fetched_partition *row = &fetch->rows[number];
        if (number == 0 || row->topic.bytes != row[-1].topic.bytes) {
            Py_XDECREF(topic);
            topic = topic_or_id(&row->topic, fetch->version >= FETCH_TOPIC_IDS_SINCE);
        }
        if (topic == NULL || !put_item(rows, number, row_of(row, topic))) {
            Py_CLEAR(rows);
        }
    }
    Py_XDECREF(topic);
    return rows;
}

PyObject *read_fetch(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct small_fetch fetch;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_small_fetch(request.bytes, request.size, &fetch)) {
        return leave_to_plain_form(&views);
    }
    PyObject *read = PyTuple_New(13);
    if (read != NULL &&
        (!put_number(read, 0, fetch.version) || !put_number(read, 1, fetch.correlation_id) || !put_item(read, 2, text_of(&fetch.client)) ||
         !put_number(read, 3, fetch.replica) || !put_number(read, 4, fetch.broker_epoch) || !put_number(read, 5, fetch.wait_ms) ||
         !put_number(read, 6, fetch.bytes_min) || !put_number(read, 7, fetch.bytes_max) ||
         !put_item(read, 8, PyBool_FromLong(fetch.is_committed_only)) || !put_number(read, 9, fetch.session) ||
         !put_number(read, 10, fetch.session_epoch) || !put_item(read, 11, text_of(&fetch.rack)) || !put_item(read, 12, rows_of(&fetch)))) {
        Py_CLEAR(read);
    }
    release_views(&views);
    return read;
}

/* ---------------------------------------------------------------- answers */
/* The bytes are the object's. False, perhaps with an exception, for what isn't a topic as the version names them. */
static bool as_topic(PyObject *object, bool is_id, struct text *topic)
{
    Py_ssize_t size = -1;
    if (object == NULL || (is_id ? !PyBytes_Check(object) : !PyUnicode_Check(object))) {
        return false;
    }
    topic->bytes = is_id ? (const uint8_t *)PyBytes_AsString(object) : (const uint8_t *)PyUnicode_AsUTF8AndSize(object, &size);
    size = is_id ? PyBytes_Size(object) : size;
    topic->size = (int32_t)size;
    return topic->bytes != NULL && (is_id ? size == FETCH_TOPIC_ID_BYTES : size <= INT16_MAX);
}

static bool is_same(const struct text *one, const struct text *other)
{
    return one->size == other->size && memcmp(one->bytes, other->bytes, (size_t)one->size) == 0;
}

static bool as_row(PyObject *object, bool is_id, struct text *topic, struct answered_partition *row)
{
    return object != NULL && as_topic(item(object, 0), is_id, topic) && as_int32(item(object, 1), &row->partition) &&
           as_int64(item(object, 2), &row->high_watermark) && as_int64(item(object, 3), &row->last_stable) &&
           as_int64(item(object, 4), &row->log_start) && as_int32(item(object, 5), &row->records) && row->records >= 0;
}

static bool as_rows(PyObject *rows, struct small_fetched *fetched)
{
    if (!PyTuple_Check(rows) || PyTuple_Size(rows) > FETCH_ROWS_MAX) {
        return false;
    }
    fetched->topic_count = 0;
    fetched->row_count = (int32_t)PyTuple_Size(rows);
    for (int32_t number = 0; number < fetched->row_count; number++) {
        struct text topic;
        if (!as_row(item(rows, number), fetched->version >= FETCH_TOPIC_IDS_SINCE, &topic, &fetched->rows[number])) {
            return false;
        }
        if (number > 0 && is_same(&fetched->topics[fetched->topic_count - 1].topic, &topic)) {
            fetched->topics[fetched->topic_count - 1].count++;
        } else {
            fetched->topics[fetched->topic_count++] = (struct answered_topic){.topic = topic, .first = number, .count = 1};
        }
    }
    return true;
}

/* The bytes before, between and behind the records. */
static PyObject *pieces_of(const uint8_t *bytes, size_t size, const size_t *cuts, size_t count)
{
    PyObject *pieces = PyTuple_New((Py_ssize_t)count + 1);
    size_t start = 0;
    for (size_t number = 0; pieces != NULL && number <= count; number++) {
        size_t end = number < count ? cuts[number] : size;
        if (!put_item(pieces, (Py_ssize_t)number, PyBytes_FromStringAndSize((const char *)bytes + start, (Py_ssize_t)(end - start)))) {
            Py_CLEAR(pieces);
        }
        start = end;
    }
    return pieces;
}

PyObject *fetch_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct small_fetched fetched;
    int32_t version;
    size_t cuts[FETCH_ROWS_MAX], count = 0;
    if (!has_arguments(given, 5)) {
        return NULL;
    }
    if (!as_int32(arguments[0], &version) || version < FETCH_FIRST_VERSION || version > FETCH_LAST_VERSION ||
        !as_int32(arguments[1], &fetched.correlation_id) || !as_int32(arguments[2], &fetched.session)) {
        return leave_to_plain_form(&views);
    }
    fetched.version = (int16_t)version;
    fetched.is_committed_only = arguments[3] == Py_True;
    if (!as_rows(arguments[4], &fetched)) {
        return leave_to_plain_form(&views);
    }
    uint8_t *bytes = PyMem_Malloc(fetched_room(&fetched));
    if (bytes == NULL) {
        return PyErr_NoMemory();
    }
    size_t size = write_fetched(&fetched, bytes, cuts);
    for (int32_t row = 0; row < fetched.row_count; row++) {
        count += fetched.rows[row].records > 0;
    }
    PyObject *pieces = size == 0 ? leave_to_plain_form(&views) : pieces_of(bytes, size, cuts, count);
    PyMem_Free(bytes);
    return pieces;
}
