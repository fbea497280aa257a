/* Decodes and encodes mutated frames by the shapes of all messages: a module that `fuzz_codec.py` builds with gcc's
   sanitizers.

   `fuzz(shape, frames, executions, seed)` mutates one of the frames for each execution and decodes it. An accepted
   message must be encoded, and its bytes must be accepted and encoded alike. Inputs are allocated at their exact size.
   Returns how many were accepted. */

#include "shapes.h"

#include "fuzzing.h"
#include "head.h"

#define ENCODED_EVERY 4

static void splice(uint8_t *bytes, size_t size)
{
    size_t length = 1 + next() % 8, from = next() % size, to = next() % size;
    length = length > size - from ? size - from : length;
    length = length > size - to ? size - to : length;
    memmove(bytes + to, bytes + from, length);
}

static void check_encoding(const struct shape *shape, PyObject *message)
{
    PyObject *bytes = encode_shape(shape, message), *parts = encode_frame(shape, message, 7, next() % 2);
    CHECK(bytes != NULL && parts != NULL && PyErr_Occurred() == NULL);
    size_t size = (size_t)PyBytes_Size(bytes);
    PyObject *again = decode_shape(shape, bytes, (const uint8_t *)PyBytes_AsString(bytes), 0, size, INT64_MAX);
    CHECK(again != NULL && PyErr_Occurred() == NULL);
    PyObject *other = encode_shape(shape, again);
    CHECK(other != NULL && (size_t)PyBytes_Size(other) == size);
    CHECK(memcmp(PyBytes_AsString(other), PyBytes_AsString(bytes), size) == 0);
    Py_DECREF(other);
    Py_DECREF(again);
    Py_DECREF(parts);
    Py_DECREF(bytes);
}

static bool execute(const struct shape *shape, PyObject *frame)
{
    static uint8_t changed[1 << 16];
    struct request_head head;
    size_t size = (size_t)PyBytes_Size(frame);
    CHECK(size <= sizeof changed);
    memcpy(changed, PyBytes_AsString(frame), size);
    if (size > 0) {
        if (next() % 4 == 0) {
            splice(changed, size);
        }
        size = mutate(changed, size);
    }
    uint8_t *input = copy(changed, size);
    PyObject *view = PyMemoryView_FromMemory((char *)input, (Py_ssize_t)size, PyBUF_READ);
    CHECK(view != NULL);
    PyObject *message = decode_shape(shape, view, input, 0, size, next() % 4 ? INT64_MAX : (int64_t)(next() % 16));
    CHECK(message == NULL || PyErr_Occurred() == NULL);
    PyErr_Clear();
    if (message != NULL && next() % ENCODED_EVERY == 0) {
        check_encoding(shape, message);
    }
    CHECK(!read_request_head(input, size, next() % 2, &head) || head.size <= size);
    Py_XDECREF(message);
    Py_DECREF(view);
    free(input);
    return message != NULL;
}

static PyObject *fuzz(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    struct shape shape;
    int64_t executions, seed;
    if (!has_arguments(given, 4) || !as_int64(arguments[2], &executions) || !as_int64(arguments[3], &seed) ||
        !PyList_Check(arguments[1]) || PyList_Size(arguments[1]) == 0) {
        return NULL;
    }
    state = (uint64_t)seed * 2654435761u + 88172645463325252u;
    long accepted = -1;
    if (read_shape(arguments[0], &shape)) {
        accepted = 0;
        for (int64_t number = 0; number < executions; number++) {
            size_t place = next() % (size_t)PyList_Size(arguments[1]);
            accepted += execute(&shape, PyList_GetItem(arguments[1], (Py_ssize_t)place));
        }
    }
    free_shape(&shape);
    return accepted < 0 ? NULL : PyLong_FromLong(accepted);
}

static PyMethodDef functions[] = {
    {"fuzz", (PyCFunction)(void (*)(void))fuzz, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {.m_name = "fuzz_codec", .m_methods = functions};

PyMODINIT_FUNC PyInit_fuzz_codec(void)
{
    return PyModule_Create(&definition);
}
