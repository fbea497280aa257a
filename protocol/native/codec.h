/* `Codec`, a type of the module: a message at one version, decoded and encoded by its shape. */

#ifndef LOWTIDE_CODEC_H
#define LOWTIDE_CODEC_H

#include "arguments.h"

/* Adds the type to the module; -1 with an exception. */
int add_codec(PyObject *module);

#endif
