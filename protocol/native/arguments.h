/* Checked reading of the arguments of Python functions. */

#ifndef LOWTIDE_ARGUMENTS_H
#define LOWTIDE_ARGUMENTS_H

/* The interface of Python 3.11 and every later one, so that one module serves them all. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/* With headers of Python 3.12 and 3.13 these macros return objects without a reference, which Python 3.11 counts.
   `Py_NewRef(Py_None)` and PyBool_FromLong() are correct on every version; a source that uses a macro does not compile.
 */
#undef Py_RETURN_NONE
#undef Py_RETURN_TRUE
#undef Py_RETURN_FALSE
#undef Py_RETURN_NOTIMPLEMENTED

/* Headers of Python 3.11 decrement inline, even objects that Python 3.12 does not count, such as small numbers. The
   function of the running Python is correct. */
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

/* Exported by every supported Python, and in the stable interface since 3.12. */
#if Py_LIMITED_API < 0x030C0000
PyAPI_FUNC(PyObject *) PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);
#endif

#define VIEWS_MAX 20

/* The buffers in use. */
struct views {
    Py_buffer buffers[VIEWS_MAX];
    int count;
};

/* Adds a buffer; returns false if the object has none of that kind. */
bool view(struct views *views, PyObject *object, int flags, const uint8_t **bytes, size_t *size);
void release_views(struct views *views);

bool as_int64(PyObject *object, int64_t *value);
bool as_int32(PyObject *object, int32_t *value);

/* Reads a number of records; returns false if a payload of `size` bytes cannot have so many. */
bool as_record_count(PyObject *object, size_t size, int32_t *count);

/* The bytes of a request, `buffer[start:stop]`. */
struct request {
    const uint8_t *bytes;
    size_t start, size;
};

/* Reads the arguments `buffer, start, stop`; returns false if they are invalid. */
bool view_request(struct views *views, PyObject *const *arguments, struct request *request);

/* Stores a new reference or a number in a new tuple; returns false if it is NULL. */
bool put_item(PyObject *tuple, Py_ssize_t place, PyObject *value);
bool put_number(PyObject *tuple, Py_ssize_t place, int64_t number);

/* Calls a class and releases the arguments; returns NULL with an exception if one of them is NULL. */
PyObject *make_object(PyObject *type, PyObject **values, size_t count);

/* Returns a borrowed item of a tuple; NULL without an exception if there is none. */
PyObject *item(PyObject *tuple, Py_ssize_t number);

/* Returns false with a TypeError for another number of arguments. */
bool has_arguments(Py_ssize_t given, Py_ssize_t expected);

/* Returns None, so that the plain form decides. */
PyObject *leave_to_plain_form(struct views *views);

#endif
