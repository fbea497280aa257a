/* Arguments of Python functions, read without trusting them. */

#ifndef LOWTIDE_ARGUMENTS_H
#define LOWTIDE_ARGUMENTS_H

/* What Python 3.11 and every later one have: one module serves them all. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/* Headers of Python 3.12 and 3.13 return these objects without a reference for the caller. On 3.11, which counts them,
   each such return loses one. `return Py_NewRef(Py_None)` and PyBool_FromLong() count on every version; a source that
   uses one of these macros does not compile. */
#undef Py_RETURN_NONE
#undef Py_RETURN_TRUE
#undef Py_RETURN_FALSE
#undef Py_RETURN_NOTIMPLEMENTED

/* Headers of Python 3.11 count down inline, also objects that Python 3.12 doesn't count up, such as small numbers. The
   running Python knows which. */
#undef Py_DECREF
#undef Py_XDECREF
#undef Py_CLEAR
#define Py_DECREF(object) Py_DecRef((PyObject *)(object))
#define Py_XDECREF(object) Py_DecRef((PyObject *)(object))
#define Py_CLEAR(object)                                                                                               \
    do {                                                                                                               \
        PyObject *cleared = (PyObject *)(object);                                                                      \
        (object) = NULL;                                                                                               \
        Py_DecRef(cleared);                                                                                            \
    } while (0)

/* Exported by every Python that the module serves, and part of the stable interface from 3.12 on. */
#if Py_LIMITED_API < 0x030C0000
PyAPI_FUNC(PyObject *) PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);
#endif

#define VIEWS_MAX 20

/* The buffers that are in use. */
struct views {
    Py_buffer buffers[VIEWS_MAX];
    int count;
};

/* Adds one; false if the object has none of that kind. */
bool view(struct views *views, PyObject *object, int flags, const uint8_t **bytes, size_t *size);
void release_views(struct views *views);

bool as_int64(PyObject *object, int64_t *value);
bool as_int32(PyObject *object, int32_t *value);

/* A count of records that a payload of `size` bytes has room for. */
bool as_record_count(PyObject *object, size_t size, int32_t *count);

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

/* Calls a class with a few positional arguments, which are given up; NULL with an exception where one is NULL. */
PyObject *make_object(PyObject *type, PyObject **values, size_t count);

/* An item of a tuple, borrowed; NULL, without an error, if there is none. */
PyObject *item(PyObject *tuple, Py_ssize_t number);

/* False, with a TypeError, if they aren't so many. */
bool has_arguments(Py_ssize_t given, Py_ssize_t expected);

/* Answers None: what was asked for isn't plain enough. */
PyObject *leave_to_plain_form(struct views *views);

#endif
