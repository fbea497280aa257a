/* The functions of the module that are not in module.c, and its type `Codec`; `__init__.py` documents them. */

#ifndef LOWTIDE_FUNCTIONS_H
#define LOWTIDE_FUNCTIONS_H

#include "arguments.h"

/* Adds the type `Codec` to the module; returns -1 with an exception if that fails. */
int add_codec(PyObject *module);

PyObject *plain_records(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

PyObject *read_produce(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *produce_answers(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

PyObject *crc32c_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *walk_records_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *find_record_of(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

PyObject *match_keys(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *match_header(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

PyObject *add_hashes(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *sort_hashes(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *filter_pages(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

PyObject *open_syncs(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *submit_sync(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *take_synced(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *wait_synced(PyObject *module, PyObject *const *arguments, Py_ssize_t given);
PyObject *close_syncs(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

#endif
