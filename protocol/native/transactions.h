/* What producers of transactions ask. */

#ifndef LOWTIDE_TRANSACTIONS_H
#define LOWTIDE_TRANSACTIONS_H

#include "arguments.h"

/* `read_added_partitions(buffer, start, stop)` of the module. */
PyObject *read_added_partitions_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `read_added_offsets(buffer, start, stop)` of the module. */
PyObject *read_added_offsets_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `read_transactional_commit(buffer, start, stop)` of the module. */
PyObject *read_transactional_commit_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `read_end(buffer, start, stop)` of the module. */
PyObject *read_end_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

#endif
