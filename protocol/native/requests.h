/* Requests that are usual enough to be read, and answered, without an object for each of their parts. */

#ifndef LOWTIDE_REQUESTS_H
#define LOWTIDE_REQUESTS_H

#include "arguments.h"
#include "fields.h"

/* The bytes of a request, `buffer[start:stop]`, and where they begin. */
struct request {
    const uint8_t *bytes;
    size_t start, size;
};

/* Reads the arguments `buffer, start, stop`. False if they are no such thing. */
bool view_request(struct views *views, PyObject *const *arguments, struct request *request);

/* Puts a new reference, or a new number, into a new tuple; false if there is none. */
bool put_item(PyObject *tuple, Py_ssize_t place, PyObject *value);
bool put_number(PyObject *tuple, Py_ssize_t place, int64_t number);

/* A string, or None: null with an exception where there is no memory. */
PyObject *text_of(const struct text *text);

/* A topic as its request names it: the bytes of its id, or its name. */
PyObject *topic_or_id(const struct text *topic, bool is_id);

/* `read_head(buffer, start, stop, is_flexible)` of the module. */
PyObject *read_head(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `read_produce(buffer, start, stop)` of the module. */
PyObject *read_produce(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `produce_answer(version, correlation_id, topic, partition, base_offset, log_append_time_ms, log_start_offset)` of the module. */
PyObject *produce_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `read_run(buffer, start, end, frame_max)` of the module. */
PyObject *read_run(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `read_round(buffer, start, end)` of the module. */
PyObject *read_round(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `run_answer(version, correlation_ids, topic, partition, base_offsets, log_append_time_ms, log_start_offset)` of the module. */
PyObject *run_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `read_delete(buffer, start, stop)` of the module. */
PyObject *read_delete(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

#endif
