/* A thread that syncs files and needs no Python: `__init__.py` says what each function does. */

#ifndef LOWTIDE_SYNCS_H
#define LOWTIDE_SYNCS_H

#include "arguments.h"

PyObject *open_syncs(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *submit_sync(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *take_synced(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *wait_synced(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *close_syncs(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

#endif
