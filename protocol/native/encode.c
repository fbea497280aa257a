/* Encodes messages, see shapes.h. */

#include "shapes.h"

#include "fields.h"

#include <stdlib.h>

#define FIRST_BYTES 1024
#define TEXT_BYTES_MAX 32767

/* Records of up to this size are copied, which costs less than a separate part. */
#define COPIED_BYTES_MAX (16 << 10)

#define NULL_STRUCT 0xff
#define PRESENT_STRUCT 1

struct writing {
    uint8_t first[FIRST_BYTES]; /* enough for most messages */
    uint8_t *bytes;
    size_t size, room;
    PyObject *parts; /* a list; NULL to encode as bytes */
};

static bool write_field(struct writing *writing, const struct shape *shape, PyObject *value);

/* Returns space for `size` more bytes; NULL without memory. */
static uint8_t *extend(struct writing *writing, size_t size)
{
    if (size > writing->room - writing->size) {
        if (size > PY_SSIZE_T_MAX / 4) {
            return NULL;
        }
        size_t room = 2 * (writing->room + size);
        uint8_t *bytes = writing->bytes == writing->first ? PyMem_Malloc(room) : PyMem_Realloc(writing->bytes, room);
        if (bytes == NULL) {
            return NULL;
        }
        if (writing->bytes == writing->first) {
            memcpy(bytes, writing->first, writing->size);
        }
        writing->bytes = bytes;
        writing->room = room;
    }
    writing->size += size;
    return writing->bytes + writing->size - size;
}

static bool write_number(struct writing *writing, uint64_t value, unsigned bytes)
{
    uint8_t *at = extend(writing, bytes);
    if (at != NULL) {
        put(at, value, bytes);
    }
    return at != NULL;
}

static bool write_varint(struct writing *writing, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) {
        if (!write_number(writing, (value & 0x7f) | 0x80, 1)) {
            return false;
        }
    }
    return write_number(writing, value, 1);
}

/* A count, or -1 for null. */
static bool write_count(struct writing *writing, const struct shape *shape, Py_ssize_t count)
{
    if (shape->is_compact) {
        return count < INT32_MAX && write_varint(writing, (uint64_t)(count + 1));
    }
    bool is_text = shape->kind == TEXT;
    return count <= (is_text ? INT16_MAX : INT32_MAX) && write_number(writing, (uint64_t)count, is_text ? 2 : 4);
}

static bool write_bytes(struct writing *writing, const struct shape *shape, const void *bytes, Py_ssize_t size)
{
    if (!write_count(writing, shape, size)) {
        return false;
    }
    uint8_t *at = extend(writing, (size_t)size);
    if (at != NULL && size > 0) {
        memcpy(at, bytes, (size_t)size);
    }
    return at != NULL;
}

/* Adds the written bytes to the parts. */
static bool end_part(struct writing *writing)
{
    PyObject *part = PyBytes_FromStringAndSize((const char *)writing->bytes, (Py_ssize_t)writing->size);
    bool is_added = part != NULL && PyList_Append(writing->parts, part) == 0;
    Py_XDECREF(part);
    writing->size = 0;
    return is_added;
}

static bool write_records_as_part(struct writing *writing, const struct shape *shape, PyObject *records)
{
    Py_ssize_t size = PyObject_Size(records);
    if (size < 0 || !write_count(writing, shape, size)) {
        return false;
    }
    return size == 0 || (end_part(writing) && PyList_Append(writing->parts, records) == 0);
}

static bool write_blob(struct writing *writing, const struct shape *shape, PyObject *value)
{
    bool is_bytes = PyBytes_Check(value), is_bytearray = PyByteArray_Check(value);
    if (shape->kind == RECORDS && writing->parts != NULL &&
        (!(is_bytes || is_bytearray) || PyObject_Size(value) > COPIED_BYTES_MAX)) {
        return write_records_as_part(writing, shape, value);
    }
    if (is_bytes) {
        return write_bytes(writing, shape, PyBytes_AsString(value), PyBytes_Size(value));
    }
    if (is_bytearray) {
        return write_bytes(writing, shape, PyByteArray_AsString(value), PyByteArray_Size(value));
    }
    Py_buffer buffer;
    if (PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE) != 0) {
        return false;
    }
    bool is_written = write_bytes(writing, shape, buffer.buf, buffer.len);
    PyBuffer_Release(&buffer);
    return is_written;
}

static bool write_text(struct writing *writing, const struct shape *shape, PyObject *value)
{
    Py_ssize_t size;
    const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &size) : NULL;
    return text != NULL && size <= TEXT_BYTES_MAX && write_bytes(writing, shape, text, size);
}

static bool write_rows(struct writing *writing, const struct shape *shape, PyObject *rows)
{
    bool is_list = PyList_Check(rows);
    if (!is_list && !PyTuple_Check(rows)) {
        return false;
    }
    Py_ssize_t count = is_list ? PyList_Size(rows) : PyTuple_Size(rows);
    if (!write_count(writing, shape, count)) {
        return false;
    }
    for (Py_ssize_t number = 0; number < count; number++) {
        /* Reading an attribute may run code that changes the list. */
        PyObject *row = is_list ? PyList_GetItem(rows, number) : PyTuple_GetItem(rows, number);
        if (row == NULL) {
            return false;
        }
        Py_INCREF(row);
        bool is_written = write_field(writing, shape->fields, row);
        Py_DECREF(row);
        if (!is_written) {
            return false;
        }
    }
    return true;
}

/* Returns 1 if a tagged field is omitted, 0 if it is written, -1 with an exception. */
static int is_absent(const struct tag *tag, PyObject *value)
{
    if (value == tag->absent) {
        return 1;
    }
    if (tag->is_absent == Py_None) {
        return PyObject_RichCompareBool(value, tag->absent, Py_EQ);
    }
    PyObject *decided = PyObject_CallFunctionObjArgs(tag->is_absent, value, NULL);
    int absent = decided == NULL ? -1 : PyObject_IsTrue(decided);
    Py_XDECREF(decided);
    return absent;
}

/* Writes the content, and then moves its size before it. */
static bool write_tagged(struct writing *writing, const struct tag *tag, PyObject *value)
{
    PyObject *parts = writing->parts;
    if (!write_varint(writing, tag->number)) {
        return false;
    }
    size_t start = writing->size;
    writing->parts = NULL; /* no message has records in a tagged field */
    bool is_written = write_field(writing, &tag->content, value);
    writing->parts = parts;
    if (!is_written) {
        return false;
    }
    size_t size = writing->size - start;
    if (size > INT32_MAX || !write_varint(writing, size)) {
        return false;
    }
    uint8_t prefix[5];
    size_t prefix_size = writing->size - start - size;
    memcpy(prefix, writing->bytes + start + size, prefix_size);
    memmove(writing->bytes + start + prefix_size, writing->bytes + start, size);
    memcpy(writing->bytes + start, prefix, prefix_size);
    return true;
}

static bool write_section(struct writing *writing, const struct shape *shape, PyObject *message)
{
    PyObject *values[FIELDS_MAX];
    size_t read = 0, count = 0;
    bool is_written = true;
    for (; read < shape->tag_count && is_written; read++) {
        values[read] = PyObject_GetAttr(message, shape->tags[read].name);
        int absent = values[read] == NULL ? -1 : is_absent(&shape->tags[read], values[read]);
        if (absent == 1) {
            Py_CLEAR(values[read]);
        }
        count += absent == 0;
        is_written = absent >= 0;
    }
    is_written = is_written && write_varint(writing, count);
    for (size_t number = 0; number < read; number++) {
        if (is_written && values[number] != NULL) {
            is_written = write_tagged(writing, &shape->tags[number], values[number]);
        }
        Py_XDECREF(values[number]);
    }
    return is_written;
}

static bool write_struct(struct writing *writing, const struct shape *shape, PyObject *message)
{
    if (shape->is_nullable && !write_number(writing, PRESENT_STRUCT, 1)) {
        return false;
    }
    for (size_t number = 0; number < shape->field_count; number++) {
        PyObject *value = PyObject_GetAttr(message, PyTuple_GetItem(shape->names, (Py_ssize_t)number));
        bool is_written = value != NULL && write_field(writing, &shape->fields[number], value);
        Py_XDECREF(value);
        if (!is_written) {
            return false;
        }
    }
    return !shape->has_tags || write_section(writing, shape, message);
}

static bool write_integer(struct writing *writing, PyObject *value, int64_t low, int64_t high, unsigned bytes)
{
    int64_t number;
    return as_int64(value, &number) && number >= low && number <= high &&
           write_number(writing, (uint64_t)number, bytes);
}

static bool write_fixed(struct writing *writing, const struct shape *shape, PyObject *value)
{
    switch (shape->kind) {
    case INT8:
        return write_integer(writing, value, INT8_MIN, INT8_MAX, 1);
    case BOOL: {
        int is_true = PyObject_IsTrue(value);
        return is_true >= 0 && write_number(writing, (uint64_t)is_true, 1);
    }
    case INT16:
        return write_integer(writing, value, INT16_MIN, INT16_MAX, 2);
    case UINT16:
        return write_integer(writing, value, 0, UINT16_MAX, 2);
    case INT32:
        return write_integer(writing, value, INT32_MIN, INT32_MAX, 4);
    case INT64:
        return write_integer(writing, value, INT64_MIN, INT64_MAX, 8);
    case FLOAT64: {
        double number = PyFloat_AsDouble(value);
        uint64_t bits;
        memcpy(&bits, &number, sizeof bits);
        return PyErr_Occurred() == NULL && write_number(writing, bits, 8);
    }
    default: {
        uint8_t *at = PyBytes_Check(value) && PyBytes_Size(value) == 16 ? extend(writing, 16) : NULL;
        if (at != NULL) {
            memcpy(at, PyBytes_AsString(value), 16);
        }
        return at != NULL;
    }
    }
}

static bool write_null(struct writing *writing, const struct shape *shape)
{
    return shape->kind == STRUCT ? write_number(writing, NULL_STRUCT, 1) : write_count(writing, shape, -1);
}

static bool write_field(struct writing *writing, const struct shape *shape, PyObject *value)
{
    if (value == Py_None && shape->is_nullable) {
        return write_null(writing, shape);
    }
    switch (shape->kind) {
    case TEXT:
        return write_text(writing, shape, value);
    case BYTES:
    case RECORDS:
        return write_blob(writing, shape, value);
    case ARRAY:
        return write_rows(writing, shape, value);
    case STRUCT:
        return write_struct(writing, shape, value);
    default:
        return write_fixed(writing, shape, value);
    }
}

static void begin(struct writing *writing, PyObject *parts)
{
    writing->bytes = writing->first;
    writing->room = FIRST_BYTES;
    writing->size = 0;
    writing->parts = parts;
}

static void end(struct writing *writing)
{
    if (writing->bytes != writing->first) {
        PyMem_Free(writing->bytes);
    }
}

PyObject *encode_shape(const struct shape *shape, PyObject *message)
{
    struct writing writing;
    begin(&writing, NULL);
    PyObject *bytes = NULL;
    if (write_field(&writing, shape, message)) {
        bytes = PyBytes_FromStringAndSize((const char *)writing.bytes, (Py_ssize_t)writing.size);
    }
    end(&writing);
    return bytes;
}

/* Writes the size of a frame into its first part, which no other code has seen. */
static bool put_frame_size(PyObject *parts)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t number = 0; number < PyList_Size(parts); number++) {
        Py_ssize_t size = PyObject_Size(PyList_GetItem(parts, number));
        if (size < 0) {
            return false;
        }
        total += size;
    }
    put((uint8_t *)PyBytes_AsString(PyList_GetItem(parts, 0)), (uint64_t)(total - 4), 4);
    return total - 4 <= INT32_MAX;
}

PyObject *encode_parts(const struct shape *shape, PyObject *message)
{
    struct writing writing;
    PyObject *parts = PyList_New(0);
    if (parts == NULL) {
        return NULL;
    }
    begin(&writing, parts);
    bool is_written = write_field(&writing, shape, message) && (writing.size == 0 || end_part(&writing));
    end(&writing);
    if (!is_written) {
        Py_CLEAR(parts);
    }
    return parts;
}

PyObject *encode_frame(const struct shape *shape, PyObject *message, int32_t correlation_id, bool is_flexible)
{
    struct writing writing;
    PyObject *parts = PyList_New(0);
    if (parts == NULL) {
        return NULL;
    }
    begin(&writing, parts);
    bool is_written = write_number(&writing, 0, 4) && write_number(&writing, (uint32_t)correlation_id, 4) &&
                      (!is_flexible || write_number(&writing, 0, 1)) && write_field(&writing, shape, message) &&
                      (writing.size == 0 || end_part(&writing)) && put_frame_size(parts);
    end(&writing);
    if (!is_written) {
        Py_CLEAR(parts);
    }
    return parts;
}
