/* Requests of transactions from bytes: see transactions.h. */

#include "transactions.h"

#include "groups.h"
#include "requests.h"
#include "transact.h"

/* Puts whose transaction it is into the first places of a new tuple. */
static bool put_transaction(PyObject *tuple, const struct transaction *transaction)
{
    return put_item(tuple, 0, text_of(&transaction->id)) && put_number(tuple, 1, transaction->producer_id) &&
           put_number(tuple, 2, transaction->producer_epoch);
}

static PyObject *done_answer(const struct transaction *transaction)
{
    uint8_t answer[DONE_BYTES_MAX];
    size_t size = write_done(transaction, answer);
    return PyBytes_FromStringAndSize((const char *)answer, (Py_ssize_t)size);
}

static PyObject *partitions_of(const struct added_partitions *added)
{
    PyObject *rows = PyTuple_New(added->count);
    for (Py_ssize_t number = 0; rows != NULL && number < added->count; number++) {
        if (!put_number(rows, number, added->rows[number])) {
            Py_CLEAR(rows);
        }
    }
    return rows;
}

static PyObject *added_answer(const struct added_partitions *added)
{
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)added_size(added));
    if (answer != NULL) {
        write_added(added, (uint8_t *)PyBytes_AsString(answer));
    }
    return answer;
}

PyObject *read_added_partitions_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct added_partitions added;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_added_partitions(request.bytes, request.size, &added)) {
        return leave_to_plain_form(&views);
    }
    PyObject *read = PyTuple_New(7);
    if (read != NULL && (!put_transaction(read, &added.transaction) || !put_item(read, 3, text_of(&added.topic)) ||
                         !put_number(read, 4, added.largest_partition) || !put_item(read, 5, partitions_of(&added)) ||
                         !put_item(read, 6, added_answer(&added)))) {
        Py_CLEAR(read);
    }
    release_views(&views);
    return read;
}

PyObject *read_added_offsets_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct transaction transaction;
    struct text group;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_added_offsets(request.bytes, request.size, &transaction, &group)) {
        return leave_to_plain_form(&views);
    }
    PyObject *read = PyTuple_New(5);
    if (read != NULL &&
        (!put_transaction(read, &transaction) || !put_item(read, 3, text_of(&group)) || !put_item(read, 4, done_answer(&transaction)))) {
        Py_CLEAR(read);
    }
    release_views(&views);
    return read;
}

PyObject *read_transactional_commit_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct transaction transaction;
    struct small_commit commit;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) ||
        !read_transactional_commit(request.bytes, request.size, &transaction, &commit)) {
        return leave_to_plain_form(&views);
    }
    const struct member *member = &commit.member;
    PyObject *read = PyTuple_New(12);
    if (read != NULL && (!put_transaction(read, &transaction) || !put_item(read, 3, text_of(&member->group)) ||
                         !put_number(read, 4, member->generation) || !put_item(read, 5, text_of(&member->id)) ||
                         !put_item(read, 6, text_of(&member->instance)) || !put_number(read, 7, member->version) ||
                         !put_item(read, 8, topic_or_id(&commit.topic, commit.has_topic_id)) ||
                         !put_number(read, 9, commit.largest_partition) ||
                         !put_item(read, 10, rows_of(&commit)) || !put_item(read, 11, committed_answer(&commit)))) {
        Py_CLEAR(read);
    }
    release_views(&views);
    return read;
}

PyObject *read_end_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct views views = {.count = 0};
    struct request request;
    struct transaction transaction;
    bool is_commit;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    if (!view_request(&views, arguments, &request) || !read_end(request.bytes, request.size, &transaction, &is_commit)) {
        return leave_to_plain_form(&views);
    }
    PyObject *read = PyTuple_New(5);
    if (read != NULL && (!put_transaction(read, &transaction) || !put_item(read, 3, PyBool_FromLong(is_commit)) ||
                         !put_item(read, 4, done_answer(&transaction)))) {
        Py_CLEAR(read);
    }
    release_views(&views);
    return read;
}
