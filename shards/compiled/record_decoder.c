/* The records of a batch's body: the form in C of `shards.format.record_decoder.decode_in_python`, which is the one to
 * read first. Both do the same; a test compares them.
 *
 * The body is taken apart first (`take_apart`). That checks every buffer and every offset against the size of the
 * body, so that what makes objects of them has nothing left to check but the encoding of text. Anything wrong or
 * unusual gives None, and the caller decodes the body in Python, which says what is wrong with it.
 *
 * Parts that are equal to those of the record before (its topic, headers and tags: as a rule all of them) are the same
 * objects. They cannot be changed, so nobody sees that but the memory.
 */
#include "module.h"

/* The columns of `shards.format.columns`, in the order of their buffers. */
#define COLUMN_TIMESTAMP 1
#define COLUMN_TOPIC 2
#define COLUMN_KEY 4
#define COLUMN_VALUE 8
#define COLUMN_HEADERS 16
#define COLUMN_TAGS 32
#define COLUMN_EXPIRES_AT 64

/* The fields of `shards.format.record.StoredRecord`, in their order. */
enum field { OFFSET, LSN, APPEND_TIME, VALUE, KEY, TOPIC, TIMESTAMP, HEADERS, TAGS, EXPIRES_AT, FIELDS };

typedef struct {
    const unsigned char *start;
    Py_ssize_t size, at;
} Cursor;

/* A column of text or bytes: item `n` is in `data`, from offset `n` to offset `n + 1`. */
typedef struct {
    const unsigned char *offsets, *data;
} Items;

/* The columns of a body; NULL where there is none. */
typedef struct {
    const unsigned char *times, *expiries;
    Items topics, keys, values;
    const unsigned char *header_lists, *tag_lists; /* offsets of lists: in what follows, which items are in which */
    Items header_names, header_values, tags;
} Body;

static inline int64_t
offset_at(const unsigned char *offsets, Py_ssize_t index)
{
    return (int32_t)get_u32(offsets + 4 * index);
}

/* Moves over a buffer and its padding. NULL if the body ends before. */
static const unsigned char *
take(Cursor *cursor, int64_t size)
{
    const int64_t padded = (size + 7) & ~(int64_t)7;
    const unsigned char *found = cursor->start + cursor->at;
    if (padded > cursor->size - cursor->at) {
        return NULL;
    }
    cursor->at += (Py_ssize_t)padded;
    return found;
}

/* Takes the offsets of so many items, which begin at 0 and never fall; NULL if they do not. */
static const unsigned char *
take_offsets(Cursor *cursor, int64_t count)
{
    const unsigned char *offsets = take(cursor, 4 * (count + 1));
    if (offsets == NULL || offset_at(offsets, 0) != 0) {
        return NULL;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        if (offset_at(offsets, index + 1) < offset_at(offsets, index)) {
            return NULL;
        }
    }
    return offsets;
}

static int
take_items(Cursor *cursor, int64_t count, Items *items)
{
    items->offsets = take_offsets(cursor, count);
    items->data = items->offsets == NULL ? NULL : take(cursor, offset_at(items->offsets, (Py_ssize_t)count));
    return items->data != NULL;
}

/* Takes times, none of which is negative, and finds the first and the last of them. */
static const unsigned char *
take_times(Cursor *cursor, int64_t count, int64_t *earliest, int64_t *latest)
{
    const unsigned char *times = take(cursor, 8 * count);
    *earliest = INT64_MAX;
    *latest = -1;
    for (Py_ssize_t index = 0; times != NULL && index < count; index++) {
        const int64_t time = (int64_t)get_u64(times + 8 * index);
        if (time < 0) {
            return NULL;
        }
        *earliest = time < *earliest ? time : *earliest;
        *latest = time > *latest ? time : *latest;
    }
    return times;
}

/* Takes all columns, and nothing may be left over. 0 if anything is wrong. */
static int
take_apart(Cursor *cursor, int64_t count, int columns, int64_t min_time, int64_t max_time, Body *body)
{
    int64_t earliest = min_time, latest = min_time, unused;
    if (columns & COLUMN_TIMESTAMP && (body->times = take_times(cursor, count, &earliest, &latest)) == NULL) {
        return 0;
    }
    if ((columns & COLUMN_TOPIC && !take_items(cursor, count, &body->topics)) ||
        (columns & COLUMN_KEY && !take_items(cursor, count, &body->keys)) ||
        (columns & COLUMN_VALUE && !take_items(cursor, count, &body->values))) {
        return 0;
    }
    if (columns & COLUMN_HEADERS) {
        if ((body->header_lists = take_offsets(cursor, count)) == NULL) {
            return 0;
        }
        const int64_t pairs = offset_at(body->header_lists, (Py_ssize_t)count);
        if (!take_items(cursor, pairs, &body->header_names) || !take_items(cursor, pairs, &body->header_values)) {
            return 0;
        }
    }
    if (columns & COLUMN_TAGS &&
        ((body->tag_lists = take_offsets(cursor, count)) == NULL ||
         !take_items(cursor, offset_at(body->tag_lists, (Py_ssize_t)count), &body->tags))) {
        return 0;
    }
    if (columns & COLUMN_EXPIRES_AT && (body->expiries = take_times(cursor, count, &unused, &unused)) == NULL) {
        return 0;
    }
    return cursor->at == cursor->size && earliest == min_time && latest == max_time;
}

static inline Py_ssize_t
size_of(const Items *items, Py_ssize_t index)
{
    return (Py_ssize_t)(offset_at(items->offsets, index + 1) - offset_at(items->offsets, index));
}

static inline const char *
data_of(const Items *items, Py_ssize_t index)
{
    return (const char *)items->data + offset_at(items->offsets, index);
}

static inline int
are_equal(const Items *items, Py_ssize_t one, Py_ssize_t other)
{
    const Py_ssize_t size = size_of(items, one);
    return size == size_of(items, other) && memcmp(data_of(items, one), data_of(items, other), (size_t)size) == 0;
}

static inline PyObject *
bytes_of(const Items *items, Py_ssize_t index)
{
    return PyBytes_FromStringAndSize(data_of(items, index), size_of(items, index));
}

static inline PyObject *
text_of(const Items *items, Py_ssize_t index)
{
    return PyUnicode_DecodeUTF8(data_of(items, index), size_of(items, index), NULL);
}

/* The tuple of a record's texts, or of its pairs of a text and bytes if there are values. `before` is that of the
 * record before, whose items end where these begin. */
static PyObject *
tuple_of(const unsigned char *lists, const Items *texts, const Items *values, Py_ssize_t index, PyObject *before)
{
    const Py_ssize_t first = (Py_ssize_t)offset_at(lists, index), most = PyTuple_GET_SIZE(before);
    const Py_ssize_t count = (Py_ssize_t)offset_at(lists, index + 1) - first;
    Py_ssize_t equal = 0; /* so many items at the beginning are those of the record before */
    while (equal < count && equal < most && are_equal(texts, first - most + equal, first + equal) &&
           (values == NULL || are_equal(values, first - most + equal, first + equal))) {
        equal++;
    }
    if (equal == count && equal == most) {
        return Py_NewRef(before);
    }
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t at = 0; tuple != NULL && at < count; at++) {
        PyObject *item;
        if (at < equal) {
            item = Py_NewRef(PyTuple_GET_ITEM(before, at));
        } else if ((item = text_of(texts, first + at)) != NULL && values != NULL) {
            PyObject *text = item, *value = bytes_of(values, first + at);
            item = value == NULL ? NULL : PyTuple_Pack(2, text, value);
            Py_DECREF(text);
            Py_XDECREF(value);
        }
        if (item == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, at, item);
        }
    }
    return tuple;
}

/* Puts a new object into a field; -1 if it could not be made. */
static inline int
set(PyObject **field, PyObject *value)
{
    PyObject *old = *field;
    if (value == NULL) {
        return -1;
    }
    *field = value;
    Py_XDECREF(old);
    return 0;
}

/* Sets those fields that the columns have, to the values of a record; -1 with an exception. REQUIRES: they have those
 * of the record before, if there is one. */
static int
set_fields(const Body *body, Py_ssize_t index, PyObject **fields)
{
    if (body->values.data != NULL && set(&fields[VALUE], bytes_of(&body->values, index)) < 0) {
        return -1;
    }
    if (body->keys.data != NULL && set(&fields[KEY], bytes_of(&body->keys, index)) < 0) {
        return -1;
    }
    if (body->topics.data != NULL && (index == 0 || !are_equal(&body->topics, index - 1, index)) &&
        set(&fields[TOPIC], text_of(&body->topics, index)) < 0) {
        return -1;
    }
    if (body->times != NULL &&
        set(&fields[TIMESTAMP], PyLong_FromLongLong((int64_t)get_u64(body->times + 8 * index))) < 0) {
        return -1;
    }
    if (body->header_lists != NULL && set(&fields[HEADERS], tuple_of(body->header_lists, &body->header_names,
                                                                     &body->header_values, index,
                                                                     fields[HEADERS])) < 0) {
        return -1;
    }
    if (body->tag_lists != NULL &&
        set(&fields[TAGS], tuple_of(body->tag_lists, &body->tags, NULL, index, fields[TAGS])) < 0) {
        return -1;
    }
    if (body->expiries != NULL &&
        set(&fields[EXPIRES_AT], PyLong_FromLongLong((int64_t)get_u64(body->expiries + 8 * index))) < 0) {
        return -1;
    }
    return 0;
}

static PyObject *
make_records(const Body *body, Py_ssize_t count, uint64_t base_offset, PyObject *type, PyObject **fields)
{
    PyObject *records = PyList_New(count);
    for (Py_ssize_t index = 0; records != NULL && index < count; index++) {
        PyObject *record = NULL;
        if (set(&fields[OFFSET], PyLong_FromUnsignedLongLong(base_offset + (uint64_t)index)) == 0 &&
            set_fields(body, index, fields) == 0) {
            record = PyObject_Vectorcall(type, fields, FIELDS, NULL);
        }
        if (record == NULL) {
            Py_CLEAR(records);
        } else {
            PyList_SET_ITEM(records, index, record);
        }
    }
    return records;
}

PyObject *
decode_records(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t argument_count)
{
    enum { BODY, COUNT, COLUMNS, BASE_OFFSET, LSN_OF_ALL, TIME_OF_ALL, MIN_TIME, MAX_TIME, TYPE, ARGUMENTS };
    if (argument_count != ARGUMENTS) {
        return PyErr_Format(PyExc_TypeError, "decode_records takes %d arguments, not %zd", ARGUMENTS, argument_count);
    }
    const Py_ssize_t count = PyLong_AsSsize_t(arguments[COUNT]);
    const long columns = PyLong_AsLong(arguments[COLUMNS]);
    const unsigned long long base_offset = PyLong_AsUnsignedLongLong(arguments[BASE_OFFSET]);
    const long long min_time = PyLong_AsLongLong(arguments[MIN_TIME]);
    const long long max_time = PyLong_AsLongLong(arguments[MAX_TIME]);
    Py_buffer view;
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[BODY], &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    Body body = {0};
    Cursor cursor = {view.buf, view.len, 0};
    PyObject *records = NULL, *fields[FIELDS] = {NULL};
    /* Each column has at least four bytes for each record. */
    if (count < 1 || count > view.len / 4 || base_offset > UINT64_MAX - (uint64_t)count ||
        !take_apart(&cursor, count, (int)columns, min_time, max_time, &body)) {
        records = Py_NewRef(Py_None);
        goto done;
    }
    fields[LSN] = Py_NewRef(arguments[LSN_OF_ALL]);
    fields[APPEND_TIME] = Py_NewRef(arguments[TIME_OF_ALL]);
    fields[TIMESTAMP] = Py_NewRef(arguments[MIN_TIME]);
    if ((fields[VALUE] = PyBytes_FromStringAndSize(NULL, 0)) == NULL || (fields[TOPIC] = PyUnicode_New(0, 0)) == NULL ||
        (fields[HEADERS] = PyTuple_New(0)) == NULL || (fields[EXPIRES_AT] = PyLong_FromLong(0)) == NULL) {
        goto done;
    }
    fields[KEY] = Py_NewRef(fields[VALUE]);
    fields[TAGS] = Py_NewRef(fields[HEADERS]);
    records = make_records(&body, count, base_offset, arguments[TYPE], fields);
    if (records == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        records = Py_NewRef(Py_None);
    }
done:
    for (int field = 0; field < FIELDS; field++) {
        Py_XDECREF(fields[field]);
    }
    PyBuffer_Release(&view);
    return records;
}
