/* Produce from bytes, and its answers to bytes. */

#ifndef LOWTIDE_PRODUCES_H
#define LOWTIDE_PRODUCES_H

#include "arguments.h"

/* `read_produce(types, buffer, start, end, frame_max, is_one)` of the module. */
PyObject *read_produce(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `produce_answers(version, correlation_ids, topic, partition, base_offsets, log_append_time_ms, log_start_offset)` of the module. */
PyObject *produce_answers(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

#endif
