/* Fetch from bytes, and its answer to bytes. */

#ifndef LOWTIDE_FETCHES_H
#define LOWTIDE_FETCHES_H

#include "arguments.h"

/* `read_fetch(buffer, start, stop)` of the module. */
PyObject *read_fetch(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `fetch_answer(version, correlation_id, session_id, is_read_committed, rows)` of the module. */
PyObject *fetch_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

#endif
