/* What the files of the extension module share: its state, which has nothing that changes once the module is there, and
 * how numbers are read and written. */
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
    PyTypeObject *publish_template;
} State;

extern PyType_Spec append_loop_spec, publish_template_spec;
#ifdef __linux__
extern PyType_Spec direct_writer_spec;
#endif
PyObject *decode_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *encode_binary(PyObject *module, PyObject *items);
PyObject *size_of_items(PyObject *module, PyObject *items);
PyObject *read_packets(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *publish_template(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* All formats but MQTT have the lowest byte first, as these machines have. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the loops in C are for machines with the lowest byte first"
#endif

static inline uint16_t get_u16(const unsigned char *at) { uint16_t v; memcpy(&v, at, sizeof v); return v; }
static inline uint32_t get_u32(const unsigned char *at) { uint32_t v; memcpy(&v, at, sizeof v); return v; }
static inline uint64_t get_u64(const unsigned char *at) { uint64_t v; memcpy(&v, at, sizeof v); return v; }
static inline void put_u16(unsigned char *at, uint16_t v) { memcpy(at, &v, sizeof v); }
static inline void put_u32(unsigned char *at, uint32_t v) { memcpy(at, &v, sizeof v); }
static inline void put_u64(unsigned char *at, uint64_t v) { memcpy(at, &v, sizeof v); }

#endif
