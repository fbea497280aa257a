/* What members of classic groups ask when a rebalance is due. */

#ifndef LOWTIDE_JOINS_H
#define LOWTIDE_JOINS_H

#include "arguments.h"

/* `read_join(buffer, start, stop)` of the module. */
PyObject *read_join(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `join_answer(version, correlation_id, generation, protocol_type, protocol_name, leader, skips_assignment, member_id, members)` of the
   module. */
PyObject *join_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `read_sync(buffer, start, stop)` of the module. */
PyObject *read_sync(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `sync_answer(version, correlation_id, protocol_type, protocol_name, assignment)` of the module. */
PyObject *sync_answer(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

#endif
