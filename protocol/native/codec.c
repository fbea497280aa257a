/* The type `Codec`: a message at one version. The generated Python in `plain` handles what does not fit the shape. */

#include "functions.h"

#include "head.h"
#include "shapes.h"

struct codec {
    PyObject_HEAD struct shape shape;
    PyObject *plain;
};

/* Calls the generated Python of this name with the same arguments. */
static PyObject *plainly(struct codec *codec, const char *name, PyObject *const *arguments, Py_ssize_t given)
{
    PyErr_Clear();
    PyObject *function = PyObject_CallFunction(codec->plain, "s", name), *tuple = NULL, *result = NULL;
    if (function != NULL && (tuple = PyTuple_New(given)) != NULL) {
        for (Py_ssize_t number = 0; number < given; number++) {
            PyTuple_SetItem(tuple, number, Py_NewRef(arguments[number]));
        }
        result = PyObject_CallObject(function, tuple);
    }
    Py_XDECREF(tuple);
    Py_XDECREF(function);
    return result;
}

/* `decode(buffer, start, end)`, or `decode(buffer, start, end, rows_max)`. */
static PyObject *decode(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    struct codec *codec = (struct codec *)self;
    struct views views = {.count = 0};
    struct request request;
    int64_t rows_max = INT64_MAX;
    PyObject *message = NULL;
    if (given != 4 && !has_arguments(given, 3)) {
        return NULL;
    }
    if ((given == 3 || as_int64(arguments[3], &rows_max)) && view_request(&views, arguments, &request)) {
        message = decode_shape(&codec->shape, arguments[0], request.bytes - request.start, request.start,
                               request.start + request.size, rows_max);
    }
    release_views(&views);
    return message != NULL ? message : plainly(codec, "decode", arguments, given);
}

/* `read_request(buffer, start, stop, rows_max, is_flexible)`: the message and its client id. */
static PyObject *read_request(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    struct codec *codec = (struct codec *)self;
    struct views views = {.count = 0};
    struct request request;
    struct request_head head;
    int64_t rows_max;
    PyObject *message = NULL, *read = NULL;
    if (!has_arguments(given, 5)) {
        return NULL;
    }
    if (PyBool_Check(arguments[4]) && as_int64(arguments[3], &rows_max) && view_request(&views, arguments, &request) &&
        read_request_head(request.bytes, request.size, arguments[4] == Py_True, &head)) {
        message = decode_shape(&codec->shape, arguments[0], request.bytes - request.start, request.start + head.size,
                               request.start + request.size, rows_max);
    }
    if (message != NULL && (read = PyTuple_New(2)) == NULL) {
        Py_CLEAR(message);
    }
    if (message != NULL) {
        PyObject *client_id = head.client_id_size < 0
                                  ? Py_NewRef(Py_None)
                                  : PyUnicode_DecodeUTF8((const char *)head.client_id, head.client_id_size, NULL);
        PyTuple_SetItem(read, 0, message);
        if (client_id == NULL || PyTuple_SetItem(read, 1, client_id) != 0) {
            Py_CLEAR(read);
        }
    }
    release_views(&views);
    return read != NULL ? read : plainly(codec, "read_request", arguments, given);
}

/* `encode(message)`: its bytes. */
static PyObject *encode(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    struct codec *codec = (struct codec *)self;
    if (!has_arguments(given, 1)) {
        return NULL;
    }
    PyObject *bytes = encode_shape(&codec->shape, arguments[0]);
    return bytes != NULL ? bytes : plainly(codec, "encode", arguments, given);
}

/* `encode_parts(message)`: the same in parts. */
static PyObject *encode_parts_of(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    struct codec *codec = (struct codec *)self;
    if (!has_arguments(given, 1)) {
        return NULL;
    }
    PyObject *parts = encode_parts(&codec->shape, arguments[0]);
    return parts != NULL ? parts : plainly(codec, "encode_parts", arguments, given);
}

/* `encode_frame(correlation_id, message, is_flexible)`: the frame of a response, in parts. */
static PyObject *encode_frame_of(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    struct codec *codec = (struct codec *)self;
    int32_t correlation_id;
    if (!has_arguments(given, 3)) {
        return NULL;
    }
    PyObject *parts = !as_int32(arguments[0], &correlation_id) || !PyBool_Check(arguments[2])
                          ? NULL
                          : encode_frame(&codec->shape, arguments[1], correlation_id, arguments[2] == Py_True);
    return parts != NULL ? parts : plainly(codec, "encode_frame", arguments, given);
}

/* `Codec(shape, plain)` */
static PyObject *new_codec(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    if (named != NULL || PyTuple_Size(arguments) != 2) {
        PyErr_SetString(PyExc_TypeError, "a Codec is made of a shape and a callable");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct codec *codec = (struct codec *)allocate(type, 0);
    if (codec == NULL) {
        return NULL;
    }
    codec->plain = Py_NewRef(item(arguments, 1));
    if (!read_shape(item(arguments, 0), &codec->shape)) {
        Py_DECREF((PyObject *)codec);
        return NULL;
    }
    return (PyObject *)codec;
}

static void free_codec(PyObject *self)
{
    struct codec *codec = (struct codec *)self;
    PyTypeObject *type = Py_TYPE(self);
    free_shape(&codec->shape);
    Py_XDECREF(codec->plain);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF((PyObject *)type);
}

#define METHOD(name, function) {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    METHOD("decode", decode),
    METHOD("encode", encode),
    METHOD("encode_frame", encode_frame_of),
    METHOD("encode_parts", encode_parts_of),
    METHOD("read_request", read_request),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)new_codec},
    {Py_tp_dealloc, (void *)free_codec},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec specification = {
    .name = "_lowtide_walk.Codec",
    .basicsize = sizeof(struct codec),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

int add_codec(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&specification);
    int failed = type == NULL ? -1 : PyModule_AddObjectRef(module, "Codec", type);
    Py_XDECREF(type);
    return failed;
}
