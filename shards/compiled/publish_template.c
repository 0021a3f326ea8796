/* PUBLISH packets of MQTT with a common part: the form in C of
 * `broker_adapter.mqtt_codec.publish_template.PurePublishTemplate`, which is the one to read first. Both do the same,
 * down to the texts of errors; a test compares them.
 *
 * A packet is first byte, remaining length, topic, packet identifier (not at QoS 0), properties with their length (not
 * in MQTT 3.1.1), payload. It is measured (`measure`), then allocated, then written; what can fail is in the first two.
 */
#include "module.h"

#define MAX_TWO_BYTES 0xFFFF
#define MAX_FOUR_BYTES 0xFFFFFFFFLL
#define MAX_VARIABLE 268435455
#define EXPIRY_INTERVAL 0x02 /* property identifiers, and the sizes of these properties with them */
#define EXPIRY_INTERVAL_BYTES 5
#define TOPIC_ALIAS 0x23
#define TOPIC_ALIAS_BYTES 3
#define DUP 0x08
#define NONE (-1)

typedef struct {
    PyObject_HEAD
    PyObject *topic; /* str, which keeps its bytes */
    PyObject *rest;  /* bytes: its properties but the two above, as they are written */
    PyObject *payload;
    const char *topic_bytes;
    Py_ssize_t topic_size, size; /* the latter of a packet without an alias */
    int64_t expiry_interval;     /* or NONE */
    int first, qos, has_properties;
} PublishTemplate;

/* What differs between packets of a template, and the sizes that follow from it. */
typedef struct {
    int dup, knows_alias;
    int64_t packet_id, expiry_interval, topic_alias; /* the latter two NONE where there is none */
    int64_t properties, remaining;
} Packet;

static inline int
size_of_variable(int64_t value)
{
    return value < 1 << 7 ? 1 : value < 1 << 14 ? 2 : value < 1 << 21 ? 3 : 4;
}

static unsigned char *
write_variable(unsigned char *at, int64_t value)
{
    while (value > 0x7F) {
        *at++ = (unsigned char)((value & 0x7F) | 0x80);
        value >>= 7;
    }
    *at++ = (unsigned char)value;
    return at;
}

static unsigned char *
write_two_bytes(unsigned char *at, int64_t value)
{
    *at++ = (unsigned char)(value >> 8);
    *at++ = (unsigned char)value;
    return at;
}

static unsigned char *
write_bytes(unsigned char *at, const void *data, Py_ssize_t size)
{
    memcpy(at, data, (size_t)size);
    return at + size;
}

/* An int that has so many bytes in a packet. -1 with an exception. */
static int
read_number(PyObject *object, int bytes, int64_t *value)
{
    int overflow;
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (*value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (overflow || *value < 0 || *value > (bytes == 2 ? MAX_TWO_BYTES : MAX_FOUR_BYTES)) {
        PyErr_Format(PyExc_ValueError, "%S does not fit into %d bytes", object, bytes);
        return -1;
    }
    return 0;
}

/* Calculates the sizes of a packet; returns that of the whole packet, or -1 with an exception. */
static Py_ssize_t
measure(const PublishTemplate *self, Packet *packet)
{
    const Py_ssize_t topic_size = packet->topic_alias != NONE && packet->knows_alias ? 0 : self->topic_size;
    packet->remaining = 2 + (int64_t)topic_size + (self->qos ? 2 : 0) + PyBytes_GET_SIZE(self->payload);
    if (self->has_properties) {
        packet->properties = PyBytes_GET_SIZE(self->rest) +
                             (packet->expiry_interval != NONE ? EXPIRY_INTERVAL_BYTES : 0) +
                             (packet->topic_alias != NONE ? TOPIC_ALIAS_BYTES : 0);
        if (packet->properties > MAX_VARIABLE) {
            PyErr_Format(PyExc_ValueError, "%lld is not a variable byte integer, which goes from 0 to %d",
                         (long long)packet->properties, MAX_VARIABLE);
            return -1;
        }
        packet->remaining += size_of_variable(packet->properties) + packet->properties;
    }
    if (packet->remaining > MAX_VARIABLE) {
        PyErr_Format(PyExc_ValueError, "packet has %lld bytes after its fixed header, it must have at most %d",
                     (long long)packet->remaining, MAX_VARIABLE);
        return -1;
    }
    return (Py_ssize_t)(1 + size_of_variable(packet->remaining) + packet->remaining);
}

/* Writes a packet into as many bytes as `measure` says. */
static void
write_packet(const PublishTemplate *self, const Packet *packet, unsigned char *at)
{
    const int leaves_topic_out = packet->topic_alias != NONE && packet->knows_alias;
    *at++ = (unsigned char)(self->first | (self->qos && packet->dup ? DUP : 0));
    at = write_variable(at, packet->remaining);
    at = write_two_bytes(at, leaves_topic_out ? 0 : self->topic_size);
    at = write_bytes(at, self->topic_bytes, leaves_topic_out ? 0 : self->topic_size);
    if (self->qos) {
        at = write_two_bytes(at, packet->packet_id);
    }
    if (self->has_properties) {
        at = write_variable(at, packet->properties);
        if (packet->topic_alias != NONE) {
            *at++ = TOPIC_ALIAS;
            at = write_two_bytes(at, packet->topic_alias);
        }
        if (packet->expiry_interval != NONE) {
            *at++ = EXPIRY_INTERVAL;
            at = write_two_bytes(at, packet->expiry_interval >> 16);
            at = write_two_bytes(at, packet->expiry_interval & 0xFFFF);
        }
        at = write_bytes(at, PyBytes_AS_STRING(self->rest), PyBytes_GET_SIZE(self->rest));
    }
    write_bytes(at, PyBytes_AS_STRING(self->payload), PyBytes_GET_SIZE(self->payload));
}

PyObject *
publish_template(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    enum { FIRST, TOPIC, PAYLOAD, HAS_PROPERTIES, EXPIRY, REST, ARGUMENTS };
    if (count != ARGUMENTS || !PyUnicode_Check(arguments[TOPIC]) || !PyBytes_Check(arguments[PAYLOAD]) ||
        !PyBytes_Check(arguments[REST])) {
        PyErr_SetString(PyExc_TypeError, "a template has a first byte, topic, payload, expiry and properties");
        return NULL;
    }
    const long first = PyLong_AsLong(arguments[FIRST]);
    const int has_properties = PyObject_IsTrue(arguments[HAS_PROPERTIES]);
    Py_ssize_t topic_size;
    const char *topic_bytes = PyErr_Occurred() ? NULL : PyUnicode_AsUTF8AndSize(arguments[TOPIC], &topic_size);
    if (topic_bytes == NULL) {
        return NULL;
    }
    if (topic_size > MAX_TWO_BYTES) {
        return PyErr_Format(PyExc_ValueError, "a string or binary value has %zd bytes, it must have at most %d",
                            topic_size, MAX_TWO_BYTES);
    }
    Packet packet = {.topic_alias = NONE, .expiry_interval = NONE};
    if (has_properties && arguments[EXPIRY] != Py_None &&
        read_number(arguments[EXPIRY], 4, &packet.expiry_interval) < 0) {
        return NULL;
    }
    PyTypeObject *type = ((State *)PyModule_GetState(module))->publish_template;
    PublishTemplate *self = (PublishTemplate *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->topic = Py_NewRef(arguments[TOPIC]);
    self->rest = Py_NewRef(arguments[REST]);
    self->payload = Py_NewRef(arguments[PAYLOAD]);
    self->topic_bytes = topic_bytes;
    self->topic_size = topic_size;
    self->expiry_interval = packet.expiry_interval;
    self->first = (int)first;
    self->qos = (int)(first >> 1 & 3);
    self->has_properties = has_properties;
    self->size = measure(self, &packet);
    if (self->size < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* Reads the keywords of `packet`; -1 with an exception. */
static int
read_keywords(const PublishTemplate *self, PyObject *const *values, PyObject *names, Packet *packet)
{
    PyObject *expiry_interval = Py_None, *topic_alias = Py_None;
    for (Py_ssize_t at = 0; names != NULL && at < PyTuple_GET_SIZE(names); at++) {
        PyObject *name = PyTuple_GET_ITEM(names, at);
        if (PyUnicode_CompareWithASCIIString(name, "dup") == 0) {
            packet->dup = PyObject_IsTrue(values[at]);
        } else if (PyUnicode_CompareWithASCIIString(name, "knows_alias") == 0) {
            packet->knows_alias = PyObject_IsTrue(values[at]);
        } else if (PyUnicode_CompareWithASCIIString(name, "expiry_interval_s") == 0) {
            expiry_interval = values[at];
        } else if (PyUnicode_CompareWithASCIIString(name, "topic_alias") == 0) {
            topic_alias = values[at];
        } else {
            PyErr_Format(PyExc_TypeError, "packet() has no keyword argument '%S'", name);
            return -1;
        }
    }
    if (packet->dup < 0 || packet->knows_alias < 0) {
        return -1;
    }
    if (self->has_properties && expiry_interval != Py_None &&
        read_number(expiry_interval, 4, &packet->expiry_interval) < 0) {
        return -1;
    }
    if (self->has_properties && topic_alias != Py_None && read_number(topic_alias, 2, &packet->topic_alias) < 0) {
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(packet_doc,
"packet($self, packet_id, /, *, dup=False, expiry_interval_s=None, topic_alias=None, knows_alias=False)\n--\n\n"
"The whole packet for one receiver.");

static PyObject *
template_packet(PublishTemplate *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    Packet packet = {.topic_alias = NONE, .expiry_interval = self->expiry_interval};
    if (count != 1) {
        return PyErr_Format(PyExc_TypeError, "packet() takes one positional argument, not %zd", count);
    }
    if (read_keywords(self, arguments + count, names, &packet) < 0) {
        return NULL;
    }
    const Py_ssize_t size = measure(self, &packet);
    if (size < 0) {
        return NULL;
    }
    if (self->qos) {
        int overflow;
        packet.packet_id = PyLong_AsLongLongAndOverflow(arguments[0], &overflow);
        if (packet.packet_id == -1 && PyErr_Occurred()) {
            return NULL;
        }
        if (overflow || packet.packet_id < 1 || packet.packet_id > MAX_TWO_BYTES) {
            return PyErr_Format(PyExc_ValueError, "packet identifier is %S, it must be from 1 to %d", arguments[0],
                                MAX_TWO_BYTES);
        }
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, size);
    if (made != NULL) {
        write_packet(self, &packet, (unsigned char *)PyBytes_AS_STRING(made));
    }
    return made;
}

static void
template_dealloc(PublishTemplate *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->topic);
    Py_XDECREF(self->rest);
    Py_XDECREF(self->payload);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef template_members[] = {
    {"payload", T_OBJECT_EX, offsetof(PublishTemplate, payload), READONLY, "The last part of every packet."},
    {"qos", T_INT, offsetof(PublishTemplate, qos), READONLY, "Quality of service."},
    {"size_bytes", T_PYSSIZET, offsetof(PublishTemplate, size), READONLY, "Length of a packet without an alias."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef template_methods[] = {
    {"packet", (PyCFunction)(void (*)(void))template_packet, METH_FASTCALL | METH_KEYWORDS, packet_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot template_slots[] = {
    {Py_tp_doc, "The common part of PUBLISH packets; made by `publish_template`."},
    {Py_tp_dealloc, template_dealloc},
    {Py_tp_members, template_members},
    {Py_tp_methods, template_methods},
    {0, NULL},
};

/* No part in garbage collection: it refers to bytes and text alone. */
PyType_Spec publish_template_spec = {
    .name = "shards.compiled._loops.PublishTemplate",
    .basicsize = sizeof(PublishTemplate),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = template_slots,
};
