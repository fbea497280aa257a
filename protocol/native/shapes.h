/* The shape of a message at one version: a tree of fields, read from the tuples of `compiled_codec.py`. No API is known
   here.

   Decoding and encoding accept and write exactly what the generated Python does. Where bytes or objects don't fit the
   shape, both return NULL, with or without an exception. The caller then calls the generated Python, which names the
   fault. */

#ifndef LOWTIDE_SHAPES_H
#define LOWTIDE_SHAPES_H

#include "arguments.h"

#include <stddef.h>

/* Fields of one struct, and tags of one section that are known: Kafka's largest message has less than thirty. */
#define FIELDS_MAX 64

/* Levels of structs and arrays; Kafka's messages have at most nine. It bounds the stack of decoding and encoding. */
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

/* Returns the message that fills `bytes[start:end]` and has at most `rows_max` rows. `bytes` are those of `buffer`. */
PyObject *decode_shape(const struct shape *shape, PyObject *buffer, const uint8_t *bytes, size_t start, size_t end,
                       int64_t rows_max);

/* Returns the bytes of the message. */
PyObject *encode_shape(const struct shape *shape, PyObject *message);

/* Returns the message as a list of parts; records of more than a few bytes are a part of their own. A frame has
   the size and header of a response before it. */
PyObject *encode_parts(const struct shape *shape, PyObject *message);
PyObject *encode_frame(const struct shape *shape, PyObject *message, int32_t correlation_id, bool is_flexible);

#endif
