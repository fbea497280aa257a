/* Decodes messages from untrusted bytes, see shapes.h. `primitives.py` has the rules of validity. */

#include "shapes.h"

#include "fields.h"

#define TEXT_BYTES_MAX 32767
#define NULL_STRUCT (-1)
#define PRESENT_STRUCT 1

struct reading {
    const uint8_t *at, *end;
    const uint8_t *bytes; /* the start of the buffer */
    PyObject *buffer;
    PyObject *view;  /* of the buffer, created for the first records */
    PyObject *empty; /* one view for all empty records, because a view has 200 bytes */
    int64_t rows_left;
};

static PyObject *read_field(struct reading *reading, const struct shape *shape);

static size_t left(const struct reading *reading)
{
    return (size_t)(reading->end - reading->at);
}

/* Accepts at most five bytes, and longer forms than necessary, like Kafka. */
static bool read_varint(struct reading *reading, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 35 && reading->at < reading->end; shift += 7) {
        uint8_t byte = *reading->at++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

/* Reads the number of bytes or elements that follow; -1 for the null of a nullable field. */
static bool read_count(struct reading *reading, const struct shape *shape, int64_t *count)
{
    if (shape->is_compact) {
        uint64_t value;
        if (!read_varint(reading, &value)) {
            return false;
        }
        *count = (int64_t)value - 1;
    } else {
        unsigned bytes = shape->kind == TEXT ? 2 : 4;
        if (left(reading) < bytes) {
            return false;
        }
        *count = bytes == 2 ? int16_at(reading->at) : int32_at(reading->at);
        reading->at += bytes;
    }
    return *count >= (shape->is_nullable ? -1 : 0);
}

static PyObject *read_records(struct reading *reading, size_t size)
{
    if (reading->view == NULL) {
        bool is_view = PyMemoryView_Check(reading->buffer);
        reading->view = is_view ? Py_NewRef(reading->buffer) : PyMemoryView_FromObject(reading->buffer);
        if (reading->view == NULL) {
            return NULL;
        }
    }
    Py_ssize_t start = reading->at - reading->bytes;
    reading->at += size;
    if (size > 0) {
        return PySequence_GetSlice(reading->view, start, start + (Py_ssize_t)size);
    }
    if (reading->empty == NULL) {
        reading->empty = PySequence_GetSlice(reading->view, start, start);
    }
    return Py_XNewRef(reading->empty);
}

static PyObject *read_bytes(struct reading *reading, const struct shape *shape)
{
    int64_t count;
    if (!read_count(reading, shape, &count) || count > (int64_t)left(reading) ||
        (shape->kind == TEXT && count > TEXT_BYTES_MAX)) {
        return NULL;
    }
    if (count < 0) {
        return Py_NewRef(Py_None);
    }
    if (shape->kind == RECORDS) {
        return read_records(reading, (size_t)count);
    }
    const char *start = (const char *)reading->at;
    reading->at += count;
    return shape->kind == TEXT ? PyUnicode_DecodeUTF8(start, (Py_ssize_t)count, NULL)
                               : PyBytes_FromStringAndSize(start, (Py_ssize_t)count);
}

static PyObject *read_array_of(struct reading *reading, const struct shape *shape)
{
    int64_t count;
    if (!read_count(reading, shape, &count)) {
        return NULL;
    }
    if (count < 0) {
        return Py_NewRef(Py_None);
    }
    if ((uint64_t)count > left(reading) / shape->size_min || count > reading->rows_left) {
        return NULL;
    }
    reading->rows_left -= count;
    PyObject *rows = PyList_New((Py_ssize_t)count);
    for (int64_t number = 0; rows != NULL && number < count; number++) {
        PyObject *row = read_field(reading, shape->fields);
        if (row == NULL || PyList_SetItem(rows, (Py_ssize_t)number, row) != 0) {
            Py_CLEAR(rows);
        }
    }
    return rows;
}

/* Reads the content of a known tag into a field of the struct. */
static bool read_tagged(struct reading *reading, const struct tag *tag, size_t size, PyObject *made)
{
    struct reading content = *reading;
    content.end = reading->at + size;
    content.view = content.empty = NULL;
    PyObject *value = read_field(&content, &tag->content);
    Py_XDECREF(content.view);
    Py_XDECREF(content.empty);
    if (value == NULL) {
        return false;
    }
    bool is_set = content.at == content.end && PyObject_SetAttr(made, tag->name, value) == 0;
    Py_DECREF(value);
    return is_set;
}

/* Reads a section of tagged fields. Skips unknown tags; if a tag is listed twice, the last entry wins. */
static bool read_section(struct reading *reading, const struct shape *shape, PyObject *made)
{
    uint64_t count, number, size;
    if (!read_varint(reading, &count) || count > TAGS_MAX || (int64_t)count > reading->rows_left) {
        return false;
    }
    for (reading->rows_left -= (int64_t)count; count > 0; count--) {
        if (!read_varint(reading, &number) || !read_varint(reading, &size) || size > left(reading)) {
            return false;
        }
        for (size_t place = 0; place < shape->tag_count; place++) {
            if (shape->tags[place].number == number && !read_tagged(reading, &shape->tags[place], (size_t)size, made)) {
                return false;
            }
        }
        reading->at += size;
    }
    return true;
}

static PyObject *read_struct_of(struct reading *reading, const struct shape *shape)
{
    PyObject *values[FIELDS_MAX];
    size_t count = 0;
    if (shape->is_nullable) {
        if (left(reading) < 1) {
            return NULL;
        }
        int8_t mark = (int8_t)*reading->at++;
        if (mark == NULL_STRUCT) {
            return Py_NewRef(Py_None);
        }
        if (mark != PRESENT_STRUCT) {
            return NULL;
        }
    }
    while (count < shape->field_count && (values[count] = read_field(reading, &shape->fields[count])) != NULL) {
        count++;
    }
    PyObject *made = NULL;
    if (count == shape->field_count) {
        made = PyObject_Vectorcall(shape->make, count > 0 ? values : NULL, 0, count > 0 ? shape->names : NULL);
    }
    while (count > 0) {
        Py_DECREF(values[--count]);
    }
    if (made != NULL && shape->has_tags) {
        if (reading->at < reading->end && *reading->at == 0) {
            reading->at++;
        } else if (!read_section(reading, shape, made)) {
            Py_CLEAR(made);
        }
    }
    return made;
}

static size_t fixed_size(enum kind kind)
{
    switch (kind) {
    case UUID:
        return 16;
    case INT64:
    case FLOAT64:
        return 8;
    case INT32:
        return 4;
    case INT16:
    case UINT16:
        return 2;
    default:
        return 1;
    }
}

static PyObject *read_fixed(struct reading *reading, const struct shape *shape)
{
    size_t size = fixed_size(shape->kind);
    if (left(reading) < size) {
        return NULL;
    }
    const uint8_t *at = reading->at;
    reading->at += size;
    switch (shape->kind) {
    case INT8:
        return PyLong_FromLong((int8_t)*at);
    case BOOL:
        return PyBool_FromLong(*at != 0);
    case INT16:
        return PyLong_FromLong(int16_at(at));
    case UINT16:
        return PyLong_FromLong((uint16_t)int16_at(at));
    case INT32:
        return PyLong_FromLong(int32_at(at));
    case INT64:
        return PyLong_FromLongLong(int64_at(at));
    case FLOAT64: {
        uint64_t bits = number_at(at, 8);
        double value;
        memcpy(&value, &bits, sizeof value);
        return PyFloat_FromDouble(value);
    }
    default:
        return PyBytes_FromStringAndSize((const char *)at, 16);
    }
}

static PyObject *read_field(struct reading *reading, const struct shape *shape)
{
    switch (shape->kind) {
    case TEXT:
    case BYTES:
    case RECORDS:
        return read_bytes(reading, shape);
    case ARRAY:
        return read_array_of(reading, shape);
    case STRUCT:
        return read_struct_of(reading, shape);
    default:
        return read_fixed(reading, shape);
    }
}

PyObject *decode_shape(const struct shape *shape, PyObject *buffer, const uint8_t *bytes, size_t start, size_t end,
                       int64_t rows_max)
{
    struct reading reading = {
        .at = bytes + start, .end = bytes + end, .bytes = bytes, .buffer = buffer, .rows_left = rows_max};
    PyObject *message = read_field(&reading, shape);
    Py_XDECREF(reading.view);
    Py_XDECREF(reading.empty);
    if (message != NULL && reading.at != reading.end) {
        Py_CLEAR(message);
    }
    return message;
}
