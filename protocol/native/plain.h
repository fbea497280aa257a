/* The records of a batch that a broker writes itself: no headers, all of one time. */

#ifndef LOWTIDE_PLAIN_H
#define LOWTIDE_PLAIN_H

#include "arguments.h"

/* `plain_records(head, records)` of the module. */
PyObject *plain_records(PyObject *module, PyObject *const *arguments, Py_ssize_t given);

#endif
