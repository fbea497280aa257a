/* Walks over the records of one batch that copy nothing: for checks and searches. Over a large batch without the interpreter's lock. */

#ifndef LOWTIDE_WALKS_H
#define LOWTIDE_WALKS_H

#include "arguments.h"

/* `walk_records(records, count)` of the module. */
PyObject *walk_records_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `find_record(records, count, timestamp_delta, offset_delta)` of the module. */
PyObject *find_record_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

#endif
