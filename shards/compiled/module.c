/* The extension module `shards.compiled._loops`: the hot loops, each with a form in Python that does the same. It
 * imports nothing: the classes whose objects it reads are given to the constructors of the loops. So it is below
 * everything.
 *
 * It is used under the GIL alone (a free-threaded Python that imports it switches the GIL on), and has no global
 * state: two interpreters have two modules.
 */
#include "module.h"

#define INTERFACE 5 /* of `shards.compiled`, which does not use a module with another one */

#ifndef LOOPS_SOURCES
#define LOOPS_SOURCES "" /* checksum of the sources; the build hook passes it, a test compares it */
#endif

PyDoc_STRVAR(crc32c_doc,
"crc32c(data, value=0, use_instruction=True, /)\n--\n\n"
"CRC-32C as the loops calculate it, for tests.");

static PyObject *
module_crc32c(PyObject *module, PyObject *arguments)
{
    Py_buffer data;
    unsigned int value = 0;
    int use_instruction = 1;
    Crc tables;
    const Crc *crc = &((State *)PyModule_GetState(module))->crc;
    if (!PyArg_ParseTuple(arguments, "y*|Ip:crc32c", &data, &value, &use_instruction)) {
        return NULL;
    }
    if (!use_instruction) {
        crc_prepare(&tables, 0);
        crc = &tables;
    }
    value = crc32c(crc, value, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(value);
}

PyDoc_STRVAR(decode_records_doc,
"decode_records(body, count, columns, base_offset, lsn, append_time_us, min_timestamp_us, max_timestamp_us, record, /)"
"\n--\n\n"
"The records of a batch's body, see `shards.format.record_decoder`; None if it has to be decoded in Python.");

PyDoc_STRVAR(encode_binary_doc,
"encode_binary(items, /)\n--\n\n"
"The buffers of a binary column, see `shards.format.columns`; None if they have to be encoded in Python.");

PyDoc_STRVAR(size_of_items_doc,
"size_of_items(items, /)\n--\n\n"
"The sum of the items' sizes; None unless they are a list or tuple of bytes.");

PyDoc_STRVAR(read_packets_doc,
"read_packets(data, at, limit, has_properties, publish, puback, properties, packets, /)\n--\n\n"
"Adds usual PUBLISH and PUBACK packets to a list, see `broker_adapter.mqtt_codec.decoder`; returns where it stopped.");

PyDoc_STRVAR(publish_template_doc,
"publish_template(first, topic, payload, has_properties, expiry_interval_s, rest, /)\n--\n\n"
"The common part of PUBLISH packets, see `broker_adapter.mqtt_codec.publish_template`.");

static int
module_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
    crc_prepare(&state->crc, 1);
    if ((state->add_chunk = PyUnicode_InternFromString("add_chunk")) == NULL ||
        (state->add_to_index = PyUnicode_InternFromString("add_to_index")) == NULL ||
        (state->forget_runs = PyUnicode_InternFromString("forget_runs")) == NULL ||
        (state->number = PyUnicode_InternFromString("number")) == NULL ||
        (state->touched = PyUnicode_InternFromString("touched")) == NULL) {
        return -1;
    }
    PyObject *append_loop = PyType_FromModuleAndSpec(module, &append_loop_spec, NULL);
    int result = append_loop == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)append_loop);
    Py_XDECREF(append_loop);
#ifdef __linux__
    PyObject *direct_writer = PyType_FromModuleAndSpec(module, &direct_writer_spec, NULL);
    if (direct_writer == NULL || PyModule_AddType(module, (PyTypeObject *)direct_writer) < 0) {
        result = -1;
    }
    Py_XDECREF(direct_writer);
#endif
    state->publish_template = (PyTypeObject *)PyType_FromModuleAndSpec(module, &publish_template_spec, NULL);
    if (result < 0 || state->publish_template == NULL ||
        PyModule_AddStringConstant(module, "CRC32C", state->crc.kind) < 0 ||
        PyModule_AddStringConstant(module, "SOURCES", LOOPS_SOURCES) < 0 ||
        PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) {
        return -1;
    }
    return 0;
}

static void
module_free(void *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->add_chunk);
    Py_CLEAR(state->add_to_index);
    Py_CLEAR(state->forget_runs);
    Py_CLEAR(state->number);
    Py_CLEAR(state->touched);
    Py_CLEAR(state->publish_template);
}

static PyMethodDef module_methods[] = {
    {"crc32c", module_crc32c, METH_VARARGS, crc32c_doc},
    {"decode_records", (PyCFunction)(void (*)(void))decode_records, METH_FASTCALL, decode_records_doc},
    {"encode_binary", encode_binary, METH_O, encode_binary_doc},
    {"size_of_items", size_of_items, METH_O, size_of_items_doc},
    {"read_packets", (PyCFunction)(void (*)(void))read_packets, METH_FASTCALL, read_packets_doc},
    {"publish_template", (PyCFunction)(void (*)(void))publish_template, METH_FASTCALL, publish_template_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shards.compiled._loops",
    .m_doc = "Hot loops in C; see `shards.compiled`.",
    .m_size = sizeof(State),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__loops(void)
{
    return PyModuleDef_Init(&module_definition);
}
