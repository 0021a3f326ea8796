/* What the files of the extension module share: its state, which has nothing that changes once the module is there. */
#ifndef SHARDS_COMPILED_MODULE_H
#define SHARDS_COMPILED_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "crc32c.h"

typedef struct {
    Crc crc;
    /* Interned names of the methods and attributes that loops use. */
    PyObject *add_chunk, *add_to_index, *forget_runs, *number, *touched;
} State;

extern PyType_Spec append_loop_spec;

#endif
