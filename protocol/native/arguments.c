/* Arguments of Python functions: see arguments.h. */

#include "arguments.h"

#include "records.h"

void release_views(struct views *views)
{
    while (views->count > 0) {
        PyBuffer_Release(&views->buffers[--views->count]);
    }
}

bool view(struct views *views, PyObject *object, int flags, const uint8_t **bytes, size_t *size)
{
    if (object == NULL || views->count == VIEWS_MAX ||
        PyObject_GetBuffer(object, &views->buffers[views->count], flags) != 0) {
        return false;
    }
    Py_buffer *buffer = &views->buffers[views->count++];
    *bytes = buffer->buf;
    *size = (size_t)buffer->len;
    return *bytes != NULL || buffer->len == 0;
}

bool as_int64(PyObject *object, int64_t *value)
{
    int overflow = 0;
    if (object == NULL || !PyLong_Check(object)) {
        return false;
    }
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0;
}

bool as_int32(PyObject *object, int32_t *value)
{
    int64_t wide;
    if (!as_int64(object, &wide) || wide < INT32_MIN || wide > INT32_MAX) {
        return false;
    }
    *value = (int32_t)wide;
    return true;
}

PyObject *item(PyObject *tuple, Py_ssize_t number)
{
    if (!PyTuple_Check(tuple) || number >= PyTuple_Size(tuple)) {
        return NULL;
    }
    return PyTuple_GetItem(tuple, number);
}

PyObject *leave_to_plain_form(struct views *views)
{
    release_views(views);
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

bool has_arguments(Py_ssize_t given, Py_ssize_t expected)
{
    if (given != expected) {
        PyErr_Format(PyExc_TypeError, "%zd arguments instead of %zd", given, expected);
        return false;
    }
    return true;
}

bool as_record_count(PyObject *object, size_t size, int32_t *count)
{
    return as_int32(object, count) && *count >= 0 && (size_t)*count <= size / SMALLEST_RECORD_BYTES;
}

bool put_item(PyObject *tuple, Py_ssize_t place, PyObject *value)
{
    return value != NULL && PyTuple_SetItem(tuple, place, value) == 0;
}

bool put_number(PyObject *tuple, Py_ssize_t place, int64_t number)
{
    return put_item(tuple, place, PyLong_FromLongLong(number));
}

bool view_request(struct views *views, PyObject *const *arguments, struct request *request)
{
    int64_t start, stop;
    size_t size;
    if (!as_int64(arguments[1], &start) || !as_int64(arguments[2], &stop) ||
        !view(views, arguments[0], PyBUF_SIMPLE, &request->bytes, &size) || start < 0 || stop < start ||
        (uint64_t)stop > size) {
        return false;
    }
    request->bytes += start;
    request->start = (size_t)start;
    request->size = (size_t)(stop - start);
    return true;
}

PyObject *make_object(PyObject *type, PyObject **values, size_t count)
{
    bool is_complete = true;
    for (size_t number = 0; number < count; number++) {
        is_complete = is_complete && values[number] != NULL;
    }
    PyObject *made = is_complete ? PyObject_Vectorcall(type, values, count, NULL) : NULL;
    for (size_t number = 0; number < count; number++) {
        Py_XDECREF(values[number]);
    }
    return made;
}
