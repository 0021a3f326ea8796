/* The buffers of a binary column: the form in C of `shards.format.columns.binary_in_python`, which is the one to read
 * first. Both do the same; a test compares them.
 *
 * Whatever is not a list or tuple of plain bytes, or too long for a column, gives None: the form in Python says what is
 * wrong with it, or encodes it.
 */
#include "module.h"

/* The sizes of all items together; -1 if an item is not plain bytes, or they are more than `most`. */
static int64_t
sum_of_sizes(PyObject *const *items, Py_ssize_t count, int64_t most)
{
    int64_t sum = 0;
    for (Py_ssize_t index = 0; index < count; index++) {
        if (!PyBytes_CheckExact(items[index])) {
            return -1;
        }
        sum += PyBytes_GET_SIZE(items[index]);
        if (sum > most) {
            return -1;
        }
    }
    return sum;
}

static inline int
is_plain_sequence(PyObject *items)
{
    return PyList_CheckExact(items) || PyTuple_CheckExact(items);
}

PyObject *
size_of_items(PyObject *Py_UNUSED(module), PyObject *items)
{
    if (!is_plain_sequence(items)) {
        Py_RETURN_NONE;
    }
    const int64_t sum = sum_of_sizes(PySequence_Fast_ITEMS(items), PySequence_Fast_GET_SIZE(items), PY_SSIZE_T_MAX / 2);
    if (sum < 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLongLong(sum);
}

PyObject *
encode_binary(PyObject *Py_UNUSED(module), PyObject *items)
{
    if (!is_plain_sequence(items)) {
        Py_RETURN_NONE;
    }
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    const int64_t data_size = count > INT32_MAX / 8 ? -1 : sum_of_sizes(PySequence_Fast_ITEMS(items), count, INT32_MAX);
    if (data_size < 0) {
        Py_RETURN_NONE;
    }
    const size_t offsets_size = 4 * ((size_t)count + 1), data_at = (offsets_size + 7) & ~(size_t)7;
    const size_t end = data_at + (size_t)data_size, size = (end + 7) & ~(size_t)7;
    PyObject *encoded = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (encoded == NULL) {
        return NULL;
    }
    unsigned char *start = (unsigned char *)PyBytes_AS_STRING(encoded), *data = start + data_at;
    /* Bytes are not seen by the collector, so no code ran that could change the list since its items were counted. */
    PyObject *const *each = PySequence_Fast_ITEMS(items);
    uint32_t offset = 0;
    for (Py_ssize_t index = 0; index < count; index++) {
        const Py_ssize_t item_size = PyBytes_GET_SIZE(each[index]);
        put_u32(start + 4 * index, offset);
        memcpy(data + offset, PyBytes_AS_STRING(each[index]), (size_t)item_size);
        offset += (uint32_t)item_size;
    }
    put_u32(start + 4 * count, offset);
    memset(start + offsets_size, 0, data_at - offsets_size);
    memset(start + end, 0, size - end);
    return encoded;
}
