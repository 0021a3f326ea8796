/* The loop over the frames of a receive buffer that makes journal entries of them: the form in C of
 * `journal.engine.write.append_loop.PureAppendLoop`, which is the one to read first. Both do the same; a test compares
 * them.
 *
 * What makes it quick is that the state of a shard is read once and kept here (`Run`) as long as the next frame is for
 * the same shard. `store` writes it back into the objects: when the shard changes, before any Python code is called,
 * and at the end. So three rules hold:
 *
 * 1. Anything unusual ends the run at that frame (`break`): an attribute of another type, a number out of range, a
 *    subclass. The caller passes that frame to `Appender.append`, in Python, which decides about it. Nothing was
 *    changed for it.
 * 2. What can fail is done before anything of a frame is changed, or in `store`, which creates all of its objects
 *    first and then writes all of them. So if it fails, the frames since the `store` before were never appended: their
 *    acknowledgements, the position and the lsn are only written there, too. (Their bytes are overwritten by then, so
 *    the caller must not try them again: it ends the connection.)
 * 3. Python code may run in a call, and in every creation of an object (by the garbage collector). So objects are held
 *    by a reference of our own (`Run`), and addresses in a bytearray are taken anew for each frame.
 */
#include "module.h"

/* The layouts of `journal.protocol.frames` (APPEND_HEAD, ACK), `journal.engine.wal.entry` and
 * `shards.format.batch_header`. */
#define FRAME_HEAD_BYTES 40
#define BATCH_HEAD_BYTES 88
#define SMALLEST_FRAME_BYTES (FRAME_HEAD_BYTES + BATCH_HEAD_BYTES)
#define ACK_BYTES 16
#define OP_APPEND 30
#define NO_OFFSET (-1)
#define KIND_APPEND 1
#define NODE_EPOCH 1
#define ACK_DURABLE 2
#define MAX_RECORD_COUNT (1 << 20)
#define MAX_RAW_BYTES (64 << 20)
#define ALL_COLUMNS 127
#define MAX_CODEC 2
/* Of `shards.idempotence.producer_state`. */
#define REMEMBERED_RUNS 64
#define HALF_OF_SEQUENCES ((int64_t)1 << 31)

#define MOST_PENDING 64 /* frames between two calls of `store` */

enum owner { SHARD, SEGMENT, CHUNKS, PRODUCER, OWNERS };

/* The attributes in `__slots__` that the loop reads or writes, by their place in the object: an attribute access by
 * name takes as long as all checks of a frame. */
#define EACH_SLOT(X) \
    X(SHARD_DAMAGE, SHARD, "damage") \
    X(SHARD_GROUP_NUMBER, SHARD, "group_number") \
    X(SHARD_IN_MEMORY_MODE, SHARD, "in_memory_mode") \
    X(SHARD_INDEXED, SHARD, "indexed") \
    X(SHARD_LAST_LSN, SHARD, "last_lsn") \
    X(SHARD_NEXT_OFFSET, SHARD, "next_offset") \
    X(SHARD_PENDING_GROUPS, SHARD, "pending_groups") \
    X(SHARD_PRODUCERS, SHARD, "producers") \
    X(SHARD_PUBLISHED_OFFSET, SHARD, "published_offset") \
    X(SHARD_SEGMENT_LIMIT, SHARD, "segment_limit_bytes") \
    X(SHARD_SEGMENTS, SHARD, "segments") \
    X(SHARD_ID, SHARD, "shard_id") \
    X(SEGMENT_CHUNKS, SEGMENT, "chunks") \
    X(SEGMENT_CLOSED, SEGMENT, "closed") \
    X(SEGMENT_INDEXED_END, SEGMENT, "indexed_end") \
    X(SEGMENT_LAST_LSN, SEGMENT, "last_lsn") \
    X(SEGMENT_NEWEST_APPEND, SEGMENT, "newest_append_us") \
    X(SEGMENT_NEWEST, SEGMENT, "newest_us") \
    X(SEGMENT_NEXT_OFFSET, SEGMENT, "next_offset") \
    X(CHUNKS_CAPACITY, CHUNKS, "capacity") \
    X(CHUNKS_CHUNKS, CHUNKS, "chunks") \
    X(CHUNKS_END, CHUNKS, "end") \
    X(CHUNKS_FILL, CHUNKS, "fill") \
    X(PRODUCER_EPOCH, PRODUCER, "epoch") \
    X(PRODUCER_MEMORY_LOST, PRODUCER, "memory_lost") \
    X(PRODUCER_NEXT_SEQUENCE, PRODUCER, "next_sequence") \
    X(PRODUCER_RUNS, PRODUCER, "runs")

#define SLOT_NUMBER(slot, owner, name) slot,
#define SLOT_NAME(slot, owner, name) {owner, name},
enum slot { EACH_SLOT(SLOT_NUMBER) SLOTS };
static const struct {
    enum owner owner;
    const char *name;
} slot_names[SLOTS] = {EACH_SLOT(SLOT_NAME)};

typedef struct {
    PyObject_HEAD
    /* How far the loop is: before a call the caller sets both, and reads them after it, also after an exception. */
    Py_ssize_t position;
    long long next_lsn;
    int64_t max_frame_bytes;
    PyObject *epochs, *owners;
    PyTypeObject *types[OWNERS];
    Py_ssize_t offsets[SLOTS];
    unsigned char *acks; /* of the frames of the last call that were appended */
    Py_ssize_t acks_size, acks_room;
    const State *state; /* of the module, which the type holds */
} AppendLoop;

/* A frame, decoded. */
typedef struct {
    uint32_t length, correlation, handle, body_crc, count, epoch, sequence;
    int64_t expected, newest_us;
    uint64_t producer_id;
} Frame;

/* One call of `run`: what it was given, and the state of the present shard and producer, ahead of their objects by the
 * frames that are pending. */
typedef struct {
    PyObject *handles, *touched, *group_object, *time_object; /* held until the end of the call */
    int64_t group_number, time_us, sender, room;
    /* Held; NULL if no shard is loaded. */
    PyObject *shard, *segment, *chunks, *chunk;
    int64_t shard_id, next_offset, segment_limit, indexed_end, end, fill, capacity, newest_us, touched_by;
    /* Held; NULL if no producer is loaded. */
    PyObject *producer, *runs;
    uint64_t producer_id;
    int64_t epoch, next_sequence;
    /* The newest of its runs, if there is one, and whether it is to be added to them. */
    int64_t first_offset, first_sequence, length;
    int has_run, run_is_new;
    /* Of the frames that are not stored yet. */
    Py_ssize_t position;
    int64_t next_lsn;
    int pending;
    unsigned char pending_acks[MOST_PENDING * ACK_BYTES];
} Run;

#define SLOT(self, object, slot) (*(PyObject **)((char *)(object) + (self)->offsets[slot]))

/* Whether a value is an int of 64 bits, which is then in `number`. */
static inline int
read_int(PyObject *value, int64_t *number)
{
    int overflow;
    if (value == NULL || !PyLong_CheckExact(value)) {
        return 0;
    }
    *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow;
}

/* The same for a number that is counted up here: so far below the largest that no sum of two runs over. */
static inline int
read_count(PyObject *value, int64_t *number)
{
    return read_int(value, number) && *number >= 0 && *number <= INT64_MAX / 4;
}

static inline void
write_slot(PyObject **slot, PyObject *value)
{
    PyObject *old = *slot;
    Py_INCREF(value);
    *slot = value;
    Py_XDECREF(old);
}

/* Forgets the producer, or all that is loaded. REQUIRES: nothing is pending, or `store` failed: then the call ends. */
static void
drop_producer(Run *run)
{
    Py_CLEAR(run->producer);
    Py_CLEAR(run->runs);
}

static void
drop(Run *run)
{
    drop_producer(run);
    Py_CLEAR(run->shard);
    Py_CLEAR(run->segment);
    Py_CLEAR(run->chunks);
    Py_CLEAR(run->chunk);
}

/* Writes the frames that are not stored into the objects. -1 with an exception if there is no memory: then none of
 * them. */
static int
store(AppendLoop *self, Run *run)
{
    enum { NEXT_OFFSET, LAST_LSN, NEWEST, END, FILL, NEXT_SEQUENCE, NUMBERS };
    PyObject *made[NUMBERS] = {NULL}, *newest_run = NULL;
    int result = -1;
    if (run->pending == 0) {
        return 0;
    }
    const int64_t numbers[NUMBERS] = {run->next_offset, run->next_lsn - 1, run->newest_us, run->end, run->fill,
                                      run->next_sequence};
    const int wanted = run->producer == NULL ? NEXT_SEQUENCE : NUMBERS;
    for (int at = 0; at < wanted; at++) {
        made[at] = PyLong_FromLongLong(numbers[at]);
        if (made[at] == NULL) {
            goto done;
        }
    }
    const Py_ssize_t size = run->pending * ACK_BYTES;
    if (self->acks_room < self->acks_size + size) {
        Py_ssize_t room = 2 * self->acks_room + (Py_ssize_t)sizeof run->pending_acks;
        unsigned char *acks = PyMem_Realloc(self->acks, (size_t)room);
        if (acks == NULL) {
            PyErr_NoMemory();
            goto done;
        }
        self->acks = acks;
        self->acks_room = room;
    }
    if (run->producer != NULL) {
        newest_run = Py_BuildValue("(LLL)", (long long)run->first_offset, (long long)run->first_sequence,
                                   (long long)run->length);
        if (newest_run == NULL) {
            goto done;
        }
        const Py_ssize_t last = PyList_GET_SIZE(run->runs) - 1;
        if (run->run_is_new || last < 0) { /* the latter if Python code has removed all of them */
            if (PyList_Append(run->runs, newest_run) < 0) {
                goto done;
            }
        } else {
            Py_INCREF(newest_run);
            (void)PyList_SetItem(run->runs, last, newest_run); /* of a list, in its range: it cannot fail */
        }
        run->run_is_new = 0;
        write_slot(&SLOT(self, run->producer, PRODUCER_NEXT_SEQUENCE), made[NEXT_SEQUENCE]);
        write_slot(&SLOT(self, run->producer, PRODUCER_MEMORY_LOST), Py_False);
    }
    memcpy(self->acks + self->acks_size, run->pending_acks, (size_t)size);
    self->acks_size += size;
    self->position = run->position;
    self->next_lsn = run->next_lsn;
    run->pending = 0;
    write_slot(&SLOT(self, run->shard, SHARD_NEXT_OFFSET), made[NEXT_OFFSET]);
    write_slot(&SLOT(self, run->shard, SHARD_LAST_LSN), made[LAST_LSN]);
    write_slot(&SLOT(self, run->segment, SEGMENT_NEXT_OFFSET), made[NEXT_OFFSET]);
    write_slot(&SLOT(self, run->segment, SEGMENT_LAST_LSN), made[LAST_LSN]);
    write_slot(&SLOT(self, run->segment, SEGMENT_NEWEST_APPEND), run->time_object);
    write_slot(&SLOT(self, run->segment, SEGMENT_NEWEST), made[NEWEST]);
    write_slot(&SLOT(self, run->chunks, CHUNKS_END), made[END]);
    write_slot(&SLOT(self, run->chunks, CHUNKS_FILL), made[FILL]);
    result = 0;
done:
    Py_XDECREF(newest_run);
    for (int at = 0; at < wanted; at++) {
        Py_XDECREF(made[at]);
    }
    return result;
}

/* Loads a shard that takes plain batches. 0 if it does not, or is unusual. REQUIRES: nothing is loaded. */
static int
load(const AppendLoop *self, Run *run, PyObject *shard)
{
    int64_t last = -1;
    if (!Py_IS_TYPE(shard, self->types[SHARD]) || SLOT(self, shard, SHARD_IN_MEMORY_MODE) != Py_False ||
        SLOT(self, shard, SHARD_INDEXED) != Py_False) {
        return 0;
    }
    PyObject *damage = SLOT(self, shard, SHARD_DAMAGE), *segments = SLOT(self, shard, SHARD_SEGMENTS);
    if (damage == NULL || !PyUnicode_CheckExact(damage) || PyUnicode_GET_LENGTH(damage) != 0 || segments == NULL ||
        !PyList_CheckExact(segments) || (last = PyList_GET_SIZE(segments) - 1) < 0) {
        return 0;
    }
    PyObject *segment = PyList_GET_ITEM(segments, last);
    if (!Py_IS_TYPE(segment, self->types[SEGMENT]) || SLOT(self, segment, SEGMENT_CLOSED) != Py_False) {
        return 0;
    }
    PyObject *chunks = SLOT(self, segment, SEGMENT_CHUNKS);
    if (chunks == NULL || !Py_IS_TYPE(chunks, self->types[CHUNKS])) {
        return 0;
    }
    PyObject *buffers = SLOT(self, chunks, CHUNKS_CHUNKS), *chunk = NULL;
    if (buffers == NULL || !PyList_CheckExact(buffers)) {
        return 0;
    }
    if (PyList_GET_SIZE(buffers) > 0) {
        chunk = PyList_GET_ITEM(buffers, PyList_GET_SIZE(buffers) - 1);
        if (!PyByteArray_CheckExact(chunk)) {
            return 0;
        }
    }
    if (!read_count(SLOT(self, shard, SHARD_ID), &run->shard_id) ||
        !read_count(SLOT(self, shard, SHARD_NEXT_OFFSET), &run->next_offset) ||
        !read_count(SLOT(self, shard, SHARD_SEGMENT_LIMIT), &run->segment_limit) ||
        !read_int(SLOT(self, shard, SHARD_GROUP_NUMBER), &run->touched_by) ||
        !read_count(SLOT(self, segment, SEGMENT_INDEXED_END), &run->indexed_end) ||
        !read_int(SLOT(self, segment, SEGMENT_NEWEST), &run->newest_us) ||
        !read_count(SLOT(self, chunks, CHUNKS_END), &run->end) ||
        !read_count(SLOT(self, chunks, CHUNKS_FILL), &run->fill) ||
        !read_count(SLOT(self, chunks, CHUNKS_CAPACITY), &run->capacity)) {
        return 0;
    }
    run->shard = Py_NewRef(shard);
    run->segment = Py_NewRef(segment);
    run->chunks = Py_NewRef(chunks);
    run->chunk = Py_XNewRef(chunk);
    return 1;
}

/* The value of an id in a dict of our own types; borrowed. NULL with an exception, or without one if there is none. */
static PyObject *
look_up(PyObject *dict, uint64_t id)
{
    PyObject *key = PyLong_FromUnsignedLongLong(id), *found = NULL;
    if (key != NULL) {
        found = PyDict_GetItemWithError(dict, key);
        Py_DECREF(key);
    }
    return found;
}

/* Loads a producer of the loaded shard. -1 with an exception, 0 if this connection may not append for it, or it is
 * unusual. REQUIRES: a shard is loaded, and no producer. */
static int
load_producer(const AppendLoop *self, Run *run, uint64_t id)
{
    int64_t owner, newest_epoch;
    PyObject *producers = SLOT(self, run->shard, SHARD_PRODUCERS), *value;
    if (producers == NULL || !PyDict_CheckExact(producers)) {
        return 0;
    }
    if ((value = look_up(self->owners, id)) == NULL || !read_int(value, &owner) || owner != run->sender ||
        (value = look_up(self->epochs, id)) == NULL || !read_int(value, &newest_epoch) ||
        (value = look_up(producers, id)) == NULL || !Py_IS_TYPE(value, self->types[PRODUCER])) {
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *producer = value, *runs = SLOT(self, producer, PRODUCER_RUNS);
    if (runs == NULL || !PyList_CheckExact(runs) || !read_int(SLOT(self, producer, PRODUCER_EPOCH), &run->epoch) ||
        run->epoch != newest_epoch || !read_count(SLOT(self, producer, PRODUCER_NEXT_SEQUENCE), &run->next_sequence)) {
        return 0;
    }
    run->run_is_new = 0;
    run->has_run = PyList_GET_SIZE(runs) > 0;
    if (run->has_run) {
        PyObject *newest = PyList_GET_ITEM(runs, PyList_GET_SIZE(runs) - 1);
        if (!PyTuple_CheckExact(newest) || PyTuple_GET_SIZE(newest) != 3 ||
            !read_count(PyTuple_GET_ITEM(newest, 0), &run->first_offset) ||
            !read_count(PyTuple_GET_ITEM(newest, 1), &run->first_sequence) ||
            !read_count(PyTuple_GET_ITEM(newest, 2), &run->length)) {
            return 0;
        }
    }
    run->producer = Py_NewRef(producer);
    run->runs = Py_NewRef(runs);
    run->producer_id = id;
    return 1;
}

/* `Group.touch`, done at once or not at all. -1 with an exception, 0 if the shard is unusual. */
static int
touch(const AppendLoop *self, Run *run)
{
    int64_t groups;
    if (!read_count(SLOT(self, run->shard, SHARD_PENDING_GROUPS), &groups)) {
        return 0;
    }
    PyObject *more = PyLong_FromLongLong(groups + 1);
    if (more == NULL || PyList_Append(run->touched, run->shard) < 0) {
        Py_XDECREF(more);
        return -1;
    }
    write_slot(&SLOT(self, run->shard, SHARD_PENDING_GROUPS), more);
    write_slot(&SLOT(self, run->shard, SHARD_GROUP_NUMBER), run->group_object);
    Py_DECREF(more);
    run->touched_by = run->group_number;
    return 1;
}

/* Calls a method with up to two arguments, of which the references are taken, and forgets all that is loaded: it may
 * have changed. -1 with an exception. */
static int
call(AppendLoop *self, Run *run, PyObject *object, PyObject *name, PyObject *first, PyObject *second)
{
    PyObject *result = NULL, *arguments[] = {object, first, second};
    if (first != NULL && store(self, run) == 0) {
        result = PyObject_VectorcallMethod(name, arguments, second == NULL ? 2 : 3, NULL);
    }
    Py_XDECREF(first);
    Py_XDECREF(second);
    drop(run);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Decodes the frame at the beginning of the data. 0 if it is no complete APPEND frame with a valid batch. */
static inline int
decode(const AppendLoop *self, const unsigned char *data, int64_t size, int64_t room, Frame *frame)
{
    const unsigned char *batch = data + FRAME_HEAD_BYTES;
    frame->length = get_u32(data);
    if (get_u16(data + 4) != OP_APPEND || frame->length < SMALLEST_FRAME_BYTES || (int64_t)frame->length > size ||
        (int64_t)frame->length > room || (int64_t)frame->length > self->max_frame_bytes) {
        return 0;
    }
    frame->correlation = get_u32(data + 8);
    frame->handle = get_u32(data + 12);
    frame->expected = (int64_t)get_u64(data + 20);
    frame->body_crc = get_u32(batch + 32);
    frame->count = get_u32(batch + 44);
    frame->epoch = get_u32(batch + 52);
    frame->producer_id = get_u64(batch + 56);
    frame->sequence = get_u32(batch + 64);
    frame->newest_us = (int64_t)get_u64(batch + 80);
    const uint32_t body_size = get_u32(batch + 36), raw_size = get_u32(batch + 40);
    const uint16_t columns = get_u16(batch + 48);
    const uint8_t codec = batch[50], flags = batch[51];
    const uint32_t reserved = get_u32(batch + 68);
    const uint64_t oldest_us = get_u64(batch + 72);
    return body_size == frame->length - SMALLEST_FRAME_BYTES && (body_size & 7) == 0 && frame->count > 0 &&
           frame->count <= MAX_RECORD_COUNT && raw_size >= frame->count * 4 && raw_size <= MAX_RAW_BYTES &&
           flags == 0 && reserved == 0 && columns > 0 && columns <= ALL_COLUMNS && codec <= MAX_CODEC &&
           (codec != 0 || body_size == raw_size) && frame->newest_us >= 0 && oldest_us <= (uint64_t)frame->newest_us &&
           crc32c(&self->state->crc, 0, batch + 36, frame->length - FRAME_HEAD_BYTES - 36) == frame->body_crc;
}

/* Overwrites the head of a frame with the header of an entry and the stamp of the batch, and adds both to the state.
 * What it needs was checked, so it cannot fail. */
static inline void
append(const AppendLoop *self, Run *run, const Frame *frame, unsigned char *data)
{
    const Crc *crc = &self->state->crc;
    unsigned char *ack = run->pending_acks + run->pending * ACK_BYTES, *batch = data + FRAME_HEAD_BYTES;
    const uint32_t size = frame->length - FRAME_HEAD_BYTES;

    put_u32(data, frame->length);
    put_u32(data + 8, frame->body_crc);
    put_u16(data + 12, 0);
    data[14] = KIND_APPEND;
    data[15] = 0;
    put_u32(data + 16, NODE_EPOCH);
    put_u32(data + 20, 0);
    put_u64(data + 24, (uint64_t)run->next_lsn);
    put_u64(data + 32, (uint64_t)run->shard_id);
    put_u32(data + 4, crc32c(crc, frame->length, data + 8, FRAME_HEAD_BYTES - 8));
    memcpy(batch, "JRB1", 4);
    put_u64(batch + 8, (uint64_t)run->next_offset);
    put_u64(batch + 16, (uint64_t)run->next_lsn);
    put_u64(batch + 24, (uint64_t)run->time_us);
    put_u32(batch + 4, crc32c(crc, 0, batch + 8, 24));
    memcpy(PyByteArray_AS_STRING(run->chunk) + run->fill, batch, size);

    /* Durable even if level memory was requested: an acknowledgement before the fsync would name an offset that is
     * assigned to another record after a crash. */
    put_u32(ack, frame->correlation);
    ack[4] = ACK_DURABLE;
    ack[5] = 0;
    put_u16(ack + 6, 0);
    put_u64(ack + 8, (uint64_t)run->next_offset);

    run->fill += size;
    run->end += size;
    run->next_offset += frame->count;
    run->next_lsn++;
    run->newest_us = frame->newest_us > run->newest_us ? frame->newest_us : run->newest_us;
    run->position += frame->length;
    run->room -= frame->length;
    run->pending++;
}

/* Counts a frame for the loaded producer, as `ProducerState.accept` does. -1 with an exception, 0 if its oldest runs
 * have to be forgotten first. */
static int
accept(AppendLoop *self, Run *run, const Frame *frame, int may_forget)
{
    if (run->has_run && run->next_offset - run->first_offset == run->length &&
        run->length < HALF_OF_SEQUENCES - (int64_t)frame->count) {
        run->length += frame->count;
    } else {
        if (store(self, run) < 0) { /* It adds one run at a time. */
            return -1;
        }
        if (may_forget && PyList_GET_SIZE(run->runs) >= REMEMBERED_RUNS) {
            return 0;
        }
        run->first_offset = run->next_offset;
        run->first_sequence = frame->sequence;
        run->length = frame->count;
        run->has_run = run->run_is_new = 1;
    }
    run->next_sequence = (frame->sequence + frame->count) & 0xFFFFFFFF;
    return 1;
}

/* Loads shard and producer of a frame unless they are loaded. -1 with an exception, 0 if the frame is not for this
 * loop. */
static int
load_for(AppendLoop *self, Run *run, const Frame *frame)
{
    PyObject *shard = PySequence_Fast_GET_ITEM(run->handles, (Py_ssize_t)frame->handle);
    int result = 1;
    if (shard != run->shard) {
        Py_INCREF(shard); /* `store` may run Python code, which may change the handles. */
        result = store(self, run);
        if (result == 0) {
            drop(run);
            result = load(self, run, shard);
        }
        Py_DECREF(shard);
    }
    if (result == 1 && frame->producer_id != (run->producer == NULL ? 0 : run->producer_id)) {
        result = store(self, run) < 0 ? -1 : 1;
        if (result == 1) {
            drop_producer(run);
            result = frame->producer_id == 0 ? 1 : load_producer(self, run, frame->producer_id);
        }
    }
    return result;
}

/* Appends the plain batches from `run->position` on; -1 with an exception. The caller stores what is pending at the
 * end. */
static int
append_all(AppendLoop *self, Run *run, unsigned char *data, Py_ssize_t end)
{
    enum { ADD_TO_INDEX = 1, ADD_CHUNK = 2, FORGET_RUNS = 4 };
    int called = 0; /* for this frame: what has not helped once will not help again */
    Frame frame;
    while (end - run->position >= SMALLEST_FRAME_BYTES) {
        if (!decode(self, data + run->position, end - run->position, run->room, &frame) ||
            frame.handle >= (size_t)PySequence_Fast_GET_SIZE(run->handles)) {
            break;
        }
        int result = run->pending == MOST_PENDING ? store(self, run) : 0;
        if (result < 0 || (result = load_for(self, run, &frame)) <= 0) {
            return result;
        }
        const int64_t size = frame.length - FRAME_HEAD_BYTES;
        if ((frame.expected != NO_OFFSET && frame.expected != run->next_offset) || run->end >= run->segment_limit ||
            (frame.producer_id != 0 && (frame.sequence != run->next_sequence || frame.epoch != run->epoch))) {
            break;
        }
        if (run->touched_by != run->group_number && (result = touch(self, run)) <= 0) {
            return result;
        }
        /* After a call everything is loaded anew, and the frame is decoded again. */
        if (run->end >= run->indexed_end) {
            if (called & ADD_TO_INDEX) {
                break;
            }
            called |= ADD_TO_INDEX;
            PyObject *lsn = PyLong_FromLongLong(run->next_lsn);
            if (call(self, run, run->segment, self->state->add_to_index, lsn, NULL) < 0) {
                return -1;
            }
            continue;
        }
        if (size > run->capacity - run->fill) {
            if (called & ADD_CHUNK) {
                break;
            }
            called |= ADD_CHUNK;
            if (call(self, run, run->chunks, self->state->add_chunk, PyLong_FromLongLong(size), NULL) < 0) {
                return -1;
            }
            continue;
        }
        if (run->chunk == NULL || size > PyByteArray_GET_SIZE(run->chunk) - run->fill) {
            break;
        }
        if (frame.producer_id != 0) {
            result = accept(self, run, &frame, !(called & FORGET_RUNS));
            if (result < 0) {
                return -1;
            }
            if (result == 0) {
                PyObject *published = SLOT(self, run->shard, SHARD_PUBLISHED_OFFSET);
                const Py_ssize_t most = PyList_GET_SIZE(run->runs) - REMEMBERED_RUNS + 1;
                if (published == NULL) {
                    break;
                }
                called |= FORGET_RUNS;
                if (call(self, run, run->producer, self->state->forget_runs, PyLong_FromSsize_t(most),
                         Py_NewRef(published)) < 0) {
                    return -1;
                }
                continue;
            }
        }
        append(self, run, &frame, data + run->position);
        called = 0;
    }
    return 0;
}

PyDoc_STRVAR(run_doc,
"run(view, end, handles, sender, group, room_bytes, time_us, /)\n--\n\n"
"Append the plain batches of ``view[position:end]``, up to the first other frame.");

static PyObject *
append_loop_run(AppendLoop *self, PyObject *const *arguments, Py_ssize_t count)
{
    enum { VIEW, END, HANDLES, SENDER, GROUP, ROOM, TIME, ARGUMENTS };
    self->acks_size = 0;
    if (count != ARGUMENTS) {
        return PyErr_Format(PyExc_TypeError, "run takes %d arguments, not %zd", ARGUMENTS, count);
    }
    Py_buffer view = {0};
    Run run; /* Not all of it: only what is read before it is written. */
    memset(&run, 0, offsetof(Run, pending_acks));
    int result = -1;
    const Py_ssize_t end = PyLong_AsSsize_t(arguments[END]);
    run.sender = PyLong_AsLongLong(arguments[SENDER]);
    run.room = PyLong_AsLongLong(arguments[ROOM]);
    run.time_us = PyLong_AsLongLong(arguments[TIME]);
    run.time_object = arguments[TIME];
    run.position = self->position;
    run.next_lsn = self->next_lsn;
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[VIEW], &view, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    if (!PyLong_CheckExact(run.time_object) || run.time_us < 0 || run.next_lsn < 0 || run.position < 0 ||
        run.position > end || end > view.len) {
        PyErr_SetString(PyExc_ValueError, "times and lsns are not negative, and frames lie in the view");
        goto done;
    }
    run.handles = PySequence_Fast(arguments[HANDLES], "handles are a sequence of shards");
    run.touched = PyObject_GetAttr(arguments[GROUP], self->state->touched);
    run.group_object = PyObject_GetAttr(arguments[GROUP], self->state->number);
    if (run.handles == NULL || run.touched == NULL || run.group_object == NULL) {
        goto done;
    }
    if (!PyList_CheckExact(run.touched) || !read_int(run.group_object, &run.group_number)) {
        PyErr_SetString(PyExc_TypeError, "a group has a number, and a list of shards that it touches");
        goto done;
    }
    result = append_all(self, &run, view.buf, end);
    if (result == 0) {
        result = store(self, &run);
    }
done:
    drop(&run);
    Py_XDECREF(run.handles);
    Py_XDECREF(run.touched);
    Py_XDECREF(run.group_object);
    PyBuffer_Release(&view);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
append_loop_acks(AppendLoop *self, void *Py_UNUSED(closure))
{
    return PyBytes_FromStringAndSize((const char *)self->acks, self->acks_size);
}

/* The place of an attribute in the objects of a type; -1 with an exception if it is not in its `__slots__` as an
 * object. */
static Py_ssize_t
slot_offset(PyTypeObject *type, const char *name)
{
    Py_ssize_t offset = -1;
    PyObject *interned = PyUnicode_InternFromString(name), *found = NULL;
    if (interned != NULL) {
        found = PyObject_GetAttr((PyObject *)type, interned);
        Py_DECREF(interned);
    }
    if (found == NULL) {
        return -1;
    }
    if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == T_OBJECT_EX && member->flags == 0 && PyType_IsSubtype(type, PyDescr_TYPE(found))) {
            offset = member->offset;
        }
    }
    if (offset < 0) {
        PyErr_Format(PyExc_TypeError, "%s.%s is not in __slots__", type->tp_name, name);
    }
    Py_DECREF(found);
    return offset;
}

static PyObject *
append_loop_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *epochs, *owners, *types[OWNERS];
    long long max_frame_bytes;
    if ((keywords != NULL && PyDict_GET_SIZE(keywords) > 0) ||
        !PyArg_ParseTuple(arguments, "O!O!LO!O!O!O!:AppendLoop", &PyDict_Type, &epochs, &PyDict_Type, &owners,
                          &max_frame_bytes, &PyType_Type, &types[SHARD], &PyType_Type, &types[SEGMENT],
                          &PyType_Type, &types[CHUNKS], &PyType_Type, &types[PRODUCER])) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "AppendLoop takes no keyword arguments");
    }
    AppendLoop *self = (AppendLoop *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = PyType_GetModuleState(type);
    self->max_frame_bytes = max_frame_bytes;
    self->epochs = Py_NewRef(epochs);
    self->owners = Py_NewRef(owners);
    for (int owner = 0; owner < OWNERS; owner++) {
        self->types[owner] = (PyTypeObject *)Py_NewRef(types[owner]);
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        self->offsets[slot] = slot_offset(self->types[slot_names[slot].owner], slot_names[slot].name);
        if (self->offsets[slot] < 0) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static void
append_loop_dealloc(AppendLoop *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->acks);
    Py_XDECREF(self->epochs);
    Py_XDECREF(self->owners);
    for (int owner = 0; owner < OWNERS; owner++) {
        Py_XDECREF(self->types[owner]);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef append_loop_members[] = {
    {"position", T_PYSSIZET, offsetof(AppendLoop, position), 0, "Position of the first frame that was not appended."},
    {"next_lsn", T_LONGLONG, offsetof(AppendLoop, next_lsn), 0, "lsn of the next batch."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef append_loop_getters[] = {
    {"acks", (getter)append_loop_acks, NULL, "Packed acknowledgements of what the last call has appended.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef append_loop_methods[] = {
    {"run", (PyCFunction)(void (*)(void))append_loop_run, METH_FASTCALL, run_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot append_loop_slots[] = {
    {Py_tp_doc, "AppendLoop(epochs, owners, max_frame_bytes, shard, segment, chunks, producer, /)\n--\n\n"
                "The loop over the frames of a receive buffer, see `journal.engine.write.append_loop`."},
    {Py_tp_new, append_loop_new},
    {Py_tp_dealloc, append_loop_dealloc},
    {Py_tp_members, append_loop_members},
    {Py_tp_getset, append_loop_getters},
    {Py_tp_methods, append_loop_methods},
    {0, NULL},
};

/* No part in garbage collection: dicts of numbers and classes do not refer to it, so it is in no circle. */
PyType_Spec append_loop_spec = {
    .name = "shards.compiled._loops.AppendLoop",
    .basicsize = sizeof(AppendLoop),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = append_loop_slots,
};
