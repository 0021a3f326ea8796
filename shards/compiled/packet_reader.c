/* PUBLISH and PUBACK packets of MQTT, of which clients send many at a time: the form in C of the loop of
 * `broker_adapter.mqtt_codec.decoder`, which is the one to read first, for packets in which nothing is unusual.
 *
 * It stops before a packet that is unusual, wrong or incomplete, and leaves that one to Python, which says what is
 * wrong with it. Unusual are properties, and a topic that is empty.
 */
#include "module.h"

#define PUBACK 0x40 /* first bytes of packets, without flags */
#define PUBLISH 0x30
#define RETAIN 0x01
#define DUP 0x08
#define NO_QOS 3
#define MAX_VARIABLE_BYTES 4

/* The packet identifier of a PUBLISH, and where its parts are in the received bytes. */
typedef struct {
    const unsigned char *topic, *payload, *stop;
    Py_ssize_t topic_size;
    long packet_id;
} Parts;

static inline long
get_two_bytes(const unsigned char *at)
{
    return at[0] << 8 | at[1];
}

/* Reads the remaining length of a packet; returns the position after it, NULL if Python has to read it. */
static const unsigned char *
read_remaining(const unsigned char *at, const unsigned char *end, Py_ssize_t *remaining)
{
    *remaining = 0;
    for (int index = 0; index < MAX_VARIABLE_BYTES && at < end; index++) {
        const unsigned char byte = *at++;
        *remaining |= (Py_ssize_t)(byte & 0x7F) << 7 * index;
        if (byte < 0x80) {
            return byte == 0 && index > 0 ? NULL : at;
        }
    }
    return NULL;
}

/* Whether a topic has neither wildcards nor control characters, which in UTF-8 are below 0x20, 0x7F, and from C2 80 to
 * C2 9F, and whether it has anything but ASCII. */
static int
is_usual_topic(const unsigned char *topic, Py_ssize_t size, int *is_ascii)
{
    unsigned char before = 0;
    *is_ascii = 1;
    for (Py_ssize_t at = 0; at < size; at++) {
        const unsigned char byte = topic[at];
        if (byte < 0x20 || byte == 0x7F || byte == '+' || byte == '#' || (before == 0xC2 && byte < 0xA0)) {
            return 0;
        }
        *is_ascii &= byte < 0x80;
        before = byte;
    }
    return size > 0;
}

/* Finds the parts of a PUBLISH after its fixed header; false if Python has to read it. */
static int
read_parts(unsigned char first, const unsigned char *at, int has_properties, Parts *parts)
{
    const unsigned char *const stop = parts->stop;
    const int qos = first >> 1 & 3;
    if (qos == NO_QOS || (qos == 0 && first & DUP) || stop - at < 2) {
        return 0;
    }
    parts->topic_size = get_two_bytes(at);
    parts->topic = at + 2;
    if (stop - parts->topic < parts->topic_size + (qos ? 2 : 0) + (has_properties ? 1 : 0)) {
        return 0;
    }
    at = parts->topic + parts->topic_size;
    parts->packet_id = 0;
    if (qos) {
        parts->packet_id = get_two_bytes(at);
        at += 2;
        if (parts->packet_id == 0) {
            return 0;
        }
    }
    if (has_properties && *at++ != 0) {
        return 0;
    }
    parts->payload = at;
    return 1;
}

/* Makes the PUBLISH; `topic` is the text of its topic. */
static PyObject *
make_publish(PyObject *class, PyObject *properties, unsigned char first, const Parts *parts, PyObject *topic)
{
    PyObject *payload = PyBytes_FromStringAndSize((const char *)parts->payload, parts->stop - parts->payload);
    PyObject *qos = PyLong_FromLong(first >> 1 & 3), *packet_id = PyLong_FromLong(parts->packet_id);
    PyObject *packet = NULL;
    if (payload != NULL && qos != NULL && packet_id != NULL) {
        PyObject *const retain = first & RETAIN ? Py_True : Py_False, *const dup = first & DUP ? Py_True : Py_False;
        PyObject *const values[] = {topic, payload, qos, retain, dup, packet_id, properties};
        packet = PyObject_Vectorcall(class, values, sizeof values / sizeof *values, NULL);
    }
    Py_XDECREF(payload);
    Py_XDECREF(qos);
    Py_XDECREF(packet_id);
    return packet;
}

static PyObject *
make_puback(PyObject *class, long packet_id)
{
    PyObject *number = PyLong_FromLong(packet_id);
    if (number == NULL) {
        return NULL;
    }
    PyObject *packet = PyObject_CallOneArg(class, number);
    Py_DECREF(number);
    return packet;
}

/* Takes the text of a topic, which is that of the packet before if their bytes are equal. 0 if Python has to read it,
 * -1 with an exception. */
static int
take_topic(const Parts *parts, const Parts *before, PyObject **topic)
{
    int is_ascii;
    if (*topic != NULL && parts->topic_size == before->topic_size &&
        memcmp(parts->topic, before->topic, (size_t)parts->topic_size) == 0) {
        return 1;
    }
    if (!is_usual_topic(parts->topic, parts->topic_size, &is_ascii)) {
        return 0;
    }
    if (is_ascii) {
        Py_XSETREF(*topic, PyUnicode_New(parts->topic_size, 0x7F));
        if (*topic != NULL) {
            memcpy(PyUnicode_1BYTE_DATA(*topic), parts->topic, (size_t)parts->topic_size);
        }
    } else {
        Py_XSETREF(*topic, PyUnicode_DecodeUTF8((const char *)parts->topic, parts->topic_size, NULL));
        if (*topic == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
            return 0;
        }
    }
    return *topic == NULL ? -1 : 1;
}

PyObject *
read_packets(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    enum { DATA, AT, LIMIT, HAS_PROPERTIES, PUBLISH_CLASS, PUBACK_CLASS, PROPERTIES, PACKETS, ARGUMENTS };
    if (count != ARGUMENTS || !PyBytes_CheckExact(arguments[DATA]) || !PyList_CheckExact(arguments[PACKETS])) {
        PyErr_SetString(PyExc_TypeError, "read_packets() takes bytes, and a list for the packets");
        return NULL;
    }
    const Py_ssize_t size = PyBytes_GET_SIZE(arguments[DATA]), limit = PyLong_AsSsize_t(arguments[LIMIT]);
    const Py_ssize_t begin = PyLong_AsSsize_t(arguments[AT]);
    const int has_properties = PyObject_IsTrue(arguments[HAS_PROPERTIES]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (begin < 0 || begin > size) {
        return PyErr_Format(PyExc_ValueError, "position is %zd, there are %zd bytes", begin, size);
    }
    const unsigned char *const data = (const unsigned char *)PyBytes_AS_STRING(arguments[DATA]);
    const unsigned char *const end = data + size, *at = data + begin;
    Parts before = {0};
    PyObject *topic = NULL, *packet = NULL;
    while (end - at >= 2) {
        const unsigned char first = *at;
        Py_ssize_t remaining;
        Parts parts;
        const unsigned char *const body = read_remaining(at + 1, end, &remaining);
        if (body == NULL || remaining > end - body || body - at + remaining > limit) {
            break;
        }
        parts.stop = body + remaining;
        if (first == PUBACK && remaining == 2 && get_two_bytes(body) != 0) {
            packet = make_puback(arguments[PUBACK_CLASS], get_two_bytes(body));
        } else if ((first & 0xF0) == PUBLISH && read_parts(first, body, has_properties, &parts)) {
            const int taken = take_topic(&parts, &before, &topic);
            if (taken == 0) {
                break;
            }
            packet = taken < 0 ? NULL
                               : make_publish(arguments[PUBLISH_CLASS], arguments[PROPERTIES], first, &parts, topic);
            before = parts;
        } else {
            break;
        }
        if (packet == NULL || PyList_Append(arguments[PACKETS], packet) < 0) {
            Py_XDECREF(packet);
            Py_XDECREF(topic);
            return NULL;
        }
        Py_DECREF(packet);
        at = parts.stop;
    }
    Py_XDECREF(topic);
    return PyLong_FromSsize_t(at - data);
}
