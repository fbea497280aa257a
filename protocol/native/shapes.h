/* The shape of a message at one version: a tree of fields, read from the tuples of `compiler.py`.

   Decoding and encoding accept and write exactly what the generated Python does. If bytes or objects do not fit the
   shape, they return NULL, with or without an exception, and the caller calls the generated Python, which reports the
   error. */

#ifndef LOWTIDE_SHAPES_H
#define LOWTIDE_SHAPES_H

#include "arguments.h"

#include <stddef.h>

/* The maximum number of fields of a struct, and of its known tags: Kafka's largest message has less than thirty. */
#define FIELDS_MAX 64

/* The maximum depth of structs and arrays, which bounds the stack; Kafka's messages have at most nine levels. */
#define DEPTH_MAX 16

/* The maximum number of tagged fields of a section: `SECTION_TAGS_MAX`. */
#define TAGS_MAX 1000

enum kind {
    INT8 = 'b',
    BOOL = '?',
    INT16 = 'h',
    UINT16 = 'H',
    INT32 = 'i',
    INT64 = 'q',
    FLOAT64 = 'd',
    UUID = 'u',
    TEXT = 's',
    BYTES = 'y',
    RECORDS = 'v', /* bytes that are read as a view, and written as they are */
    ARRAY = 'a',
    STRUCT = 'o',
};

struct tag;

struct shape {
    enum kind kind;
    bool is_compact, is_nullable;
    size_t size_min; /* of an array: the minimum size of its element */
    PyObject *make;  /* of a struct: its class, and the names of its fields */
    PyObject *names;
    size_t field_count; /* 1 for an array: its element */
    struct shape *fields;
    bool has_tags;
    size_t tag_count;
    struct tag *tags; /* in ascending order */
};

struct tag {
    uint32_t number;
    PyObject *name;
    PyObject *absent;    /* the omitted value */
    PyObject *is_absent; /* called for a struct that differs from that */
    struct shape content;
};

/* Reads a description; returns false with an exception if it is invalid. Call `free_shape` in any case. */
bool read_shape(PyObject *description, struct shape *shape);
void free_shape(struct shape *shape);

/* Returns the message that fills `bytes[start:end]` and has at most `rows_max` rows. `bytes` are those of `buffer`. */
PyObject *decode_shape(const struct shape *shape, PyObject *buffer, const uint8_t *bytes, size_t start, size_t end,
                       int64_t rows_max);

/* Returns the bytes of the message. */
PyObject *encode_shape(const struct shape *shape, PyObject *message);

/* Returns the message as a list of parts; larger records are separate parts. A frame starts with the size and header of
   a response. */
PyObject *encode_parts(const struct shape *shape, PyObject *message);
PyObject *encode_frame(const struct shape *shape, PyObject *message, int32_t correlation_id, bool is_flexible);

#endif
