/* Writes and syncs a file in another thread that needs no GIL for it: the part in C of `journal.engine.wal.disk`.
 *
 * One thread calls `wait`, and works in it without the GIL. The others are called by the thread of the event loop: it
 * hands a write over, is woken by the second eventfd, and asks for the outcome. Only one write is under way at a time.
 * `wait` returns for everything else, which is handed over by the first eventfd, too.
 */
#define _GNU_SOURCE
#include "module.h"

#ifdef __linux__

#include <errno.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_BUFFERS 1023 /* IOV_MAX is 1024 */

enum stage { NOTHING, HANDED_OVER, DONE };

typedef struct {
    PyObject_HEAD
    int work, results; /* eventfds, which belong to the caller */
    atomic_int stage;  /* says who may use the following fields: the thread of `wait` while it is HANDED_OVER */
    int descriptor, parts, error;
    char is_written;
    long long position;
    Py_ssize_t size;
    double sync_s;
    struct iovec *vectors;
    Py_buffer *buffers;
} DirectWriter;

static void
give_back(DirectWriter *self)
{
    for (int at = 0; at < self->parts; at++) {
        PyBuffer_Release(&self->buffers[at]);
    }
    self->parts = 0;
}

static int
direct_writer_init(DirectWriter *self, PyObject *arguments, PyObject *names)
{
    if (self->vectors != NULL) {
        PyErr_SetString(PyExc_TypeError, "a DirectWriter is initialised once");
        return -1;
    }
    if (names != NULL && PyDict_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "DirectWriter takes no keyword arguments");
        return -1;
    }
    if (!PyArg_ParseTuple(arguments, "ii:DirectWriter", &self->work, &self->results)) {
        return -1;
    }
    self->vectors = PyMem_Calloc(MOST_BUFFERS, sizeof *self->vectors);
    self->buffers = PyMem_Calloc(MOST_BUFFERS, sizeof *self->buffers);
    if (self->vectors == NULL || self->buffers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void
direct_writer_dealloc(DirectWriter *self)
{
    PyTypeObject *type = Py_TYPE(self);
    give_back(self);
    PyMem_Free(self->vectors);
    PyMem_Free(self->buffers);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
is_usable(DirectWriter *self)
{
    if (self->vectors == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the DirectWriter was not initialised");
        return 0;
    }
    return 1;
}

static PyObject *
direct_writer_write(DirectWriter *self, PyObject *arguments)
{
    PyObject *list;
    int descriptor;
    long long position;
    if (!is_usable(self) || !PyArg_ParseTuple(arguments, "iO!L:write", &descriptor, &PyList_Type, &list, &position)) {
        return NULL;
    }
    if (atomic_load(&self->stage) != NOTHING) {
        PyErr_SetString(PyExc_RuntimeError, "another write is under way");
        return NULL;
    }
    const Py_ssize_t count = PyList_GET_SIZE(list);
    if (count > MOST_BUFFERS) {
        Py_RETURN_FALSE;
    }
    self->size = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        /* Getting a buffer may call Python code, which may change the list. */
        PyObject *item = at < PyList_GET_SIZE(list) ? Py_NewRef(PyList_GET_ITEM(list, at)) : NULL;
        const int found = item == NULL ? -1 : PyObject_GetBuffer(item, &self->buffers[at], PyBUF_SIMPLE);
        Py_XDECREF(item);
        if (found < 0) {
            if (item == NULL) {
                PyErr_SetString(PyExc_RuntimeError, "the list has changed");
            }
            give_back(self);
            return NULL;
        }
        self->parts++;
        self->vectors[at].iov_base = self->buffers[at].buf;
        self->vectors[at].iov_len = (size_t)self->buffers[at].len;
        self->size += self->buffers[at].len;
    }
    self->descriptor = descriptor;
    self->position = position;
    atomic_store(&self->stage, HANDED_OVER);
    const uint64_t one = 1;
    /* An eventfd takes it at once: its counter is far from its limit. */
    if (write(self->work, &one, sizeof one) < 0) {
        atomic_store(&self->stage, NOTHING);
        give_back(self);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_TRUE;
}

static double
seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Without the GIL. A write that is not complete is left to the caller, who writes all of it again: nothing of it was
 * synced. A sync that failed is final. */
static void
write_and_sync(DirectWriter *self)
{
    const ssize_t written = pwritev(self->descriptor, self->vectors, self->parts, (off_t)self->position);
    self->is_written = written == (ssize_t)self->size;
    self->error = written < 0 ? errno : 0;
    self->sync_s = 0;
    if (self->is_written) {
        const double began_s = seconds();
        int result;
        do {
            result = fdatasync(self->descriptor);
        } while (result < 0 && errno == EINTR);
        self->error = result < 0 ? errno : 0;
        self->sync_s = seconds() - began_s;
    }
}

static PyObject *
direct_writer_wait(DirectWriter *self, PyObject *Py_UNUSED(ignored))
{
    int error = 0;
    if (!is_usable(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (;;) {
        uint64_t handed_over;
        if (read(self->work, &handed_over, sizeof handed_over) < 0) {
            if (errno == EINTR) {
                /* A signal that this thread got; the thread of the event loop handles it. */
                continue;
            }
            error = errno;
            break;
        }
        if (atomic_load(&self->stage) != HANDED_OVER) {
            break;
        }
        write_and_sync(self);
        atomic_store(&self->stage, DONE);
        const uint64_t one = 1;
        if (write(self->results, &one, sizeof one) < 0) {
            error = errno;
            break;
        }
        if (handed_over > 1) {
            /* There is something else as well. */
            break;
        }
    }
    Py_END_ALLOW_THREADS
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *
direct_writer_outcome(DirectWriter *self, PyObject *Py_UNUSED(ignored))
{
    if (atomic_load(&self->stage) != DONE) {
        Py_RETURN_NONE;
    }
    give_back(self);
    atomic_store(&self->stage, NOTHING);
    return Py_BuildValue("(Oid)", self->is_written ? Py_True : Py_False, self->error, self->sync_s);
}

static PyMethodDef direct_writer_methods[] = {
    {"write", (PyCFunction)direct_writer_write, METH_VARARGS,
     PyDoc_STR("write(descriptor, buffers, position, /)\n--\n\n"
               "Hand over a list of buffers, to be written and synced; False if there are too many.")},
    {"wait", (PyCFunction)direct_writer_wait, METH_NOARGS,
     PyDoc_STR("wait($self, /)\n--\n\nWrite what is handed over, until something else is.")},
    {"outcome", (PyCFunction)direct_writer_outcome, METH_NOARGS,
     PyDoc_STR("outcome($self, /)\n--\n\n"
               "Whether all was written, the number of the error or 0, and the seconds of the sync; None before.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot direct_writer_slots[] = {
    {Py_tp_doc, PyDoc_STR("DirectWriter(work, results, /)\n--\n\nSee `journal.engine.wal.disk`.")},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, direct_writer_init},
    {Py_tp_dealloc, direct_writer_dealloc},
    {Py_tp_methods, direct_writer_methods},
    {0, NULL},
};

PyType_Spec direct_writer_spec = {
    .name = "shards.compiled._loops.DirectWriter",
    .basicsize = sizeof(DirectWriter),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = direct_writer_slots,
};

#endif
