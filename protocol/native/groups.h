/* What members of groups ask often, and the records of the offsets that they commit. */

#ifndef LOWTIDE_GROUPS_H
#define LOWTIDE_GROUPS_H

#include "arguments.h"
#include "commit.h"

/* What was read, as Python has it: null with an exception where there is no memory. */
PyObject *rows_of(const struct small_commit *commit);
PyObject *committed_answer(const struct small_commit *commit);

/* `read_commit(buffer, start, stop)` of the module. */
PyObject *read_commit(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `read_heartbeat(buffer, start, stop)` of the module. */
PyObject *read_heartbeat(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

/* `offset_records(key_start, value_end, rows)` of the module. */
PyObject *offset_records(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

#endif
