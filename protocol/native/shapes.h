/* The shape of a message at one version, as `compiled_codec.py` describes it: a tree of fields. Nothing here knows an API.

   Decoding and encoding accept and write exactly what the generated Python does. Where something isn't as the shape says, both answer
   NULL, perhaps with an exception: the generated Python then decides, and names the fault. */

#ifndef LOWTIDE_SHAPES_H
#define LOWTIDE_SHAPES_H

#include "arguments.h"

#include <stddef.h>

/* Fields of one struct, and tags of one section that are known: Kafka's largest message has less than thirty. */
#define FIELDS_MAX 64

/* Levels of structs and arrays: Kafka's messages have at most nine. It bounds the stack that decoding and encoding take. */
#define DEPTH_MAX 16

/* Tagged fields of one section that are read: `SECTION_TAGS_MAX`. */
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
    size_t size_min; /* of an array's element: the fewest bytes that it takes */
    PyObject *make;  /* of a struct: its class, and the names of its fields */
    PyObject *names;
    size_t field_count; /* of an array 1: its element */
    struct shape *fields;
    bool has_tags;
    size_t tag_count;
    struct tag *tags; /* in ascending order */
};

struct tag {
    uint32_t number;
    PyObject *name;
    PyObject *absent;    /* the value that isn't written */
    PyObject *is_absent; /* called for a struct that differs from that */
    struct shape content;
};

/* Reads a description. False, with an exception, if it is none; `free_shape` is to be called in any case. */
bool read_shape(PyObject *description, struct shape *shape);
void free_shape(struct shape *shape);

/* The message in `bytes[start:end]`, which it fills, with at most `rows_max` rows; `buffer` is the object whose bytes they are. */
PyObject *decode_shape(const struct shape *shape, PyObject *buffer, const uint8_t *bytes, size_t start, size_t end, int64_t rows_max);

/* The message as bytes. */
PyObject *encode_shape(const struct shape *shape, PyObject *message);

/* The message as a list of parts, in which records are parts of their own, but for a few bytes; and a response with its frame. */
PyObject *encode_parts(const struct shape *shape, PyObject *message);
PyObject *encode_frame(const struct shape *shape, PyObject *message, int32_t correlation_id, bool is_flexible);

#endif
