/* Reads the descriptions of shapes, see shapes.h. */

#include "shapes.h"

static bool refuse(const char *reason)
{
    PyErr_SetString(PyExc_ValueError, reason);
    return false;
}

static bool as_flag(PyObject *object, bool *flag)
{
    *flag = object == Py_True;
    return object == Py_True || object == Py_False || refuse("a flag of a shape is neither True nor False");
}

static bool read_shape_at(PyObject *description, struct shape *shape, unsigned depth);

static bool read_shapes(PyObject *descriptions, size_t *count, struct shape **shapes, unsigned depth)
{
    if (descriptions == NULL || !PyTuple_Check(descriptions) || PyTuple_Size(descriptions) > FIELDS_MAX) {
        return refuse("the fields of a shape are no tuple, or too many");
    }
    size_t size = (size_t)PyTuple_Size(descriptions);
    *shapes = PyMem_Calloc(size + 1, sizeof **shapes);
    if (*shapes == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (*count = 0; *count < size;) {
        size_t number = (*count)++; /* counted even if it fails, so that it is freed */
        if (!read_shape_at(PyTuple_GetItem(descriptions, (Py_ssize_t)number), &(*shapes)[number], depth + 1)) {
            return false;
        }
    }
    return true;
}

/* (number, name, omitted value, None or a function that decides about other values, content) */
static bool read_tag(PyObject *description, struct tag *tag, unsigned depth)
{
    int64_t number;
    PyObject *name = item(description, 1), *absent = item(description, 2), *is_absent = item(description, 3);
    if (name == NULL || !PyUnicode_Check(name) || absent == NULL || is_absent == NULL ||
        !as_int64(item(description, 0), &number) || number < 0 || number > UINT32_MAX) {
        return refuse("a tag of a shape is incomplete");
    }
    tag->number = (uint32_t)number;
    tag->name = Py_NewRef(name);
    tag->absent = Py_NewRef(absent);
    tag->is_absent = Py_NewRef(is_absent);
    return read_shape_at(item(description, 4), &tag->content, depth + 1);
}

static bool read_tags(PyObject *descriptions, struct shape *shape, unsigned depth)
{
    if (descriptions == Py_None) {
        return true;
    }
    if (descriptions == NULL || !PyTuple_Check(descriptions) || PyTuple_Size(descriptions) > FIELDS_MAX) {
        return refuse("the tags of a shape are no tuple, or too many");
    }
    size_t size = (size_t)PyTuple_Size(descriptions);
    shape->has_tags = true;
    shape->tags = PyMem_Calloc(size + 1, sizeof *shape->tags);
    if (shape->tags == NULL) {
        PyErr_NoMemory();
        return false;
    }
    while (shape->tag_count < size) {
        size_t number = shape->tag_count++;
        if (!read_tag(PyTuple_GetItem(descriptions, (Py_ssize_t)number), &shape->tags[number], depth)) {
            return false;
        }
    }
    return true;
}

static bool are_texts(PyObject *names)
{
    bool are = PyTuple_Check(names);
    for (Py_ssize_t number = 0; are && number < PyTuple_Size(names); number++) {
        are = PyUnicode_Check(PyTuple_GetItem(names, number));
    }
    return are;
}

/* ("o", nullable, class, names, fields, tags or None) */
static bool read_struct(PyObject *description, struct shape *shape, unsigned depth)
{
    PyObject *make = item(description, 2), *names = item(description, 3);
    if (make == NULL || names == NULL || !are_texts(names) || !as_flag(item(description, 1), &shape->is_nullable)) {
        return refuse("a struct of a shape is incomplete");
    }
    shape->make = Py_NewRef(make);
    shape->names = Py_NewRef(names);
    return read_shapes(item(description, 4), &shape->field_count, &shape->fields, depth) &&
           read_tags(item(description, 5), shape, depth) &&
           ((size_t)PyTuple_Size(names) == shape->field_count || refuse("a struct has not one name for each field"));
}

/* ("a", nullable, compact, (element,), fewest bytes of an element) */
static bool read_array(PyObject *description, struct shape *shape, unsigned depth)
{
    int64_t size_min;
    if (!as_int64(item(description, 4), &size_min) || size_min < 1) {
        return refuse("an array of a shape has no size of its elements");
    }
    shape->size_min = (size_t)size_min;
    return read_shapes(item(description, 3), &shape->field_count, &shape->fields, depth) &&
           (shape->field_count == 1 || refuse("an array of a shape has not one element"));
}

static bool read_shape_at(PyObject *description, struct shape *shape, unsigned depth)
{
    *shape = (struct shape){.kind = 0};
    if (depth > DEPTH_MAX) {
        return refuse("a shape is nested too deeply");
    }
    PyObject *kind = description == NULL ? NULL : item(description, 0);
    Py_ssize_t size;
    const char *letter = kind != NULL && PyUnicode_Check(kind) ? PyUnicode_AsUTF8AndSize(kind, &size) : NULL;
    if (letter == NULL || size != 1) {
        PyErr_Clear();
        return refuse("a shape is no tuple that begins with a letter");
    }
    shape->kind = (enum kind) * letter;
    switch (shape->kind) {
    case INT8:
    case BOOL:
    case INT16:
    case UINT16:
    case INT32:
    case INT64:
    case FLOAT64:
    case UUID:
        return true;
    case TEXT:
    case BYTES:
    case RECORDS:
    case ARRAY:
        if (item(description, 2) == NULL || !as_flag(item(description, 1), &shape->is_nullable) ||
            !as_flag(item(description, 2), &shape->is_compact)) {
            return refuse("a shape with a count has two flags");
        }
        return shape->kind != ARRAY || read_array(description, shape, depth);
    case STRUCT:
        return read_struct(description, shape, depth);
    }
    return refuse("a shape of an unknown kind");
}

bool read_shape(PyObject *description, struct shape *shape)
{
    return read_shape_at(description, shape, 0);
}

void free_shape(struct shape *shape)
{
    for (size_t number = 0; number < shape->field_count; number++) {
        free_shape(&shape->fields[number]);
    }
    for (size_t number = 0; number < shape->tag_count; number++) {
        struct tag *tag = &shape->tags[number];
        Py_XDECREF(tag->name);
        Py_XDECREF(tag->absent);
        Py_XDECREF(tag->is_absent);
        free_shape(&tag->content);
    }
    PyMem_Free(shape->fields);
    PyMem_Free(shape->tags);
    Py_XDECREF(shape->make);
    Py_XDECREF(shape->names);
    *shape = (struct shape){.kind = 0};
}
