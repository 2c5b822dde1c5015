/* Reads an assigned partition's records into light messages, on confluent-kafka's own consumer.
 *
 * `Reader` lets Python make a consumer with this file in `plugin.library.paths`, and is told its
 * `rd_kafka_t`. `take_over` forwards a partition's queue to one of our own, as librdkafka allows,
 * until `give_back`. `read` empties ours, and copies each record into a `Message`, so nothing of
 * librdkafka's lives on. All else stays in the consumer's queue, where confluent-kafka's `poll`
 * serves it: rebalances, errors of the client, statistics, credentials.
 *
 * Who may touch what:
 * - The interpreter lock guards queues and sources. One thread at a time reads; `close` waits for
 *   it.
 * - librdkafka's threads only wake who waits. They do while they hold a queue's lock.
 *
 * A child of fork() has none of librdkafka's threads: what is its parent's is left as it is.
 */
#include "librdkafka.h"

#define FUNCTIONS(X)                                                                               \
    X(int, conf_interceptor_add_on_conf_destroy,                                                   \
      (rd_kafka_conf_t *, const char *, on_conf_destroy_t *, void *))                              \
    X(int, conf_interceptor_add_on_new, (rd_kafka_conf_t *, const char *, on_new_t *, void *))     \
    X(int, interceptor_add_on_destroy, (rd_kafka_t *, const char *, on_destroy_t *, void *))       \
    X(int, conf_get, (const rd_kafka_conf_t *, const char *, char *, size_t *))                    \
    X(void, conf_set_error_cb, (rd_kafka_conf_t *, error_cb_t *))                                  \
    X(int, type, (const rd_kafka_t *))                                                             \
    X(const char *, topic_name, (const rd_kafka_topic_t *))                                        \
    X(rd_kafka_queue_t *, queue_new, (rd_kafka_t *))                                               \
    X(rd_kafka_queue_t *, queue_get_consumer, (rd_kafka_t *))                                      \
    X(rd_kafka_queue_t *, queue_get_partition, (rd_kafka_t *, const char *, int32_t))              \
    X(void, queue_forward, (rd_kafka_queue_t *, rd_kafka_queue_t *))                               \
    X(void, queue_cb_event_enable, (rd_kafka_queue_t *, on_event_t *, void *))                     \
    X(void, queue_destroy, (rd_kafka_queue_t *))                                                   \
    X(ssize_t, consume_batch_queue, (rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t))      \
    X(void, message_destroy, (rd_kafka_message_t *))                                               \
    X(int, message_headers, (const rd_kafka_message_t *, rd_kafka_headers_t **))                   \
    X(int, header_get_all,                                                                         \
      (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))                \
    X(int64_t, message_timestamp, (const rd_kafka_message_t *, int *))                             \
    X(int32_t, message_leader_epoch, (const rd_kafka_message_t *))                                 \
    X(const char *, message_errstr, (const rd_kafka_message_t *))

FUNCTIONS(DECLARE)

enum { CHUNK = 64, CLOSE_MAX_MS = 10000 };
enum { REDUCED = 10, LATENCY = 8 }; /* number of a reduced message's fields, and place of one */

/* ---- Message --------------------------------------------------------------------------------- */

PyTypeObject *message_type;
static PyObject *message_class; /* confluent_kafka.Message */

static void Message_dealloc(Message *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_XDECREF(self->topic);
    Py_XDECREF(self->key);
    Py_XDECREF(self->value);
    Py_XDECREF(self->error);
    Py_XDECREF(self->headers);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

#define FIELD(name)                                                                                \
    static PyObject *Message_##name(Message *self, PyObject *Py_UNUSED(none)) {                    \
        return Py_NewRef(self->name ? self->name : Py_None);                                       \
    }                                                                                              \
    SETTER(name)
#define SETTER(name)                                                                               \
    static PyObject *Message_set_##name(Message *self, PyObject *value) {                          \
        PyObject *former = self->name;                                                             \
        self->name = Py_NewRef(value);                                                             \
        Py_XDECREF(former);                                                                        \
        Py_RETURN_NONE;                                                                            \
    }
FIELD(topic)
FIELD(key)
FIELD(value)
FIELD(error)
SETTER(headers)

/* The same list each time, as of confluent-kafka's: an application may change it. */
static PyObject *Message_headers(Message *self, PyObject *Py_UNUSED(none)) {
    if (self->headers == Py_True) { /* As confluent-kafka says it. */
        PyErr_SetString(PyExc_SystemError, "the name of a header is not UTF-8");
        return NULL;
    }
    if (self->headers && PyTuple_CheckExact(self->headers)) {
        PyObject *list = PySequence_List(self->headers);
        if (!list) return NULL;
        Py_DECREF(self->headers);
        self->headers = list;
    }
    return Py_NewRef(self->headers ? self->headers : Py_None);
}

#define GETTER(name, made)                                                                         \
    static PyObject *Message_##name(Message *self, PyObject *none) {                         \
        return (void)self, (void)none, made;                                                       \
    }
GETTER(partition, PyLong_FromLong(self->partition))
GETTER(offset, PyLong_FromLongLong(self->offset))
GETTER(timestamp, Py_BuildValue("iL", self->timestamp_type, self->timestamp))
GETTER(leader_epoch, self->epoch < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(self->epoch))
GETTER(latency, Py_NewRef(Py_None))        /* of producers */
GETTER(delivery_count, Py_NewRef(Py_None)) /* of share groups */

static Py_ssize_t Message_length(Message *self) {
    return self->value && self->value != Py_None ? PyObject_Size(self->value) : 0;
}

/* content_bytes(messages) -> bytes of the keys and values that they came with; None: some are of
 * another type. */
static PyObject *Message_content_bytes(PyObject *Py_UNUSED(none), PyObject *list) {
    long long bytes = 0;
    for (Py_ssize_t i = 0, size = PyList_Size(list); i < size; i++) {
        PyObject *each = PyList_GetItem(list, i);
        if (Py_TYPE(each) != message_type) Py_RETURN_NONE;
        bytes += ((Message *)each)->content_size;
    }
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(bytes);
}

/* Pickled, it becomes confluent-kafka's. */
static PyObject *Message_reduce(Message *self, PyObject *none) {
    return Py_BuildValue("O(NiLNNNNNdi)", message_class, Message_topic(self, none),
                         (int)self->partition, (long long)self->offset, Message_key(self, none),
                         Message_value(self, none), Message_headers(self, none),
                         Message_error(self, none), Message_timestamp(self, none), -1.0,
                         (int)self->epoch);
}

/* Compares what `Message_reduce` gives of each, but for the latency, which only producers know.
 * 1: equal, 0: not, -1: an exception. confluent-kafka's may give more behind it. */
static int compare_reduced(PyObject *one, PyObject *other) {
    int equal = 1;
    for (Py_ssize_t i = 0; equal == 1 && i < REDUCED; i++)
        if (i != LATENCY)
            equal = PyObject_RichCompareBool(PyTuple_GetItem(one, i), PyTuple_GetItem(other, i),
                                             Py_EQ);
    return equal;
}

/* By what they say, as confluent-kafka's compares. So it has no hash either. */
static PyObject *Message_compare(PyObject *self, PyObject *other, int how) {
    PyObject *class = (PyObject *)Py_TYPE(other);
    bool is_message = class == (PyObject *)message_type || class == message_class;
    if (!is_message || (how != Py_EQ && how != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
    PyObject *one = PyObject_CallMethod(self, "__reduce__", NULL);
    PyObject *two = one ? PyObject_CallMethod(other, "__reduce__", NULL) : NULL;
    int equal = two ? compare_reduced(PyTuple_GetItem(one, 1), PyTuple_GetItem(two, 1)) : -1;
    Py_XDECREF(one);
    Py_XDECREF(two);
    return equal < 0 ? NULL : PyBool_FromLong(equal == (how == Py_EQ));
}

/* So it passes for confluent-kafka's where an application asks isinstance(). */
static PyObject *Message_get_class(Message *Py_UNUSED(self), void *Py_UNUSED(unused)) {
    return Py_NewRef(message_class);
}

#define METHOD(name) {#name, (PyCFunction)Message_##name, METH_NOARGS, NULL}
#define SET(name) {"set_" #name, (PyCFunction)Message_set_##name, METH_O, NULL}
static PyMethodDef message_methods[] = {
    METHOD(topic), METHOD(partition), METHOD(offset), METHOD(key), METHOD(value), METHOD(headers),
    METHOD(error), METHOD(timestamp), METHOD(leader_epoch), METHOD(latency),
    METHOD(delivery_count), SET(topic), SET(key), SET(value), SET(headers), SET(error),
    {"deserialized_key", (PyCFunction)Message_key, METH_NOARGS, NULL},
    {"deserialized_value", (PyCFunction)Message_value, METH_NOARGS, NULL},
    {"content_bytes", (PyCFunction)Message_content_bytes, METH_O | METH_STATIC, NULL},
    {"columns", (PyCFunction)Message_columns, METH_VARARGS | METH_STATIC, NULL},
    {"pack", (PyCFunction)Message_pack, METH_VARARGS | METH_STATIC, NULL},
    {"packable", (PyCFunction)Message_packable, METH_VARARGS | METH_STATIC, NULL},
    {"unpack", (PyCFunction)Message_unpack, METH_VARARGS | METH_STATIC, NULL},
    {"__reduce__", (PyCFunction)Message_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef message_fields[] = {
    {"__class__", (getter)Message_get_class, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot message_slots[] = {
    {Py_tp_dealloc, Message_dealloc}, {Py_tp_methods, message_methods},
    {Py_tp_getset, message_fields}, {Py_sq_length, Message_length},
    {Py_tp_richcompare, Message_compare}, {0, NULL},
};
/* No garbage collection: so thousands of them wake no collector. */
static PyType_Spec message_spec = {NAME ".Message", sizeof(Message), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                   message_slots};

static bool copy(const void *bytes, size_t size, PyObject **made) {
    *made = bytes ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size) : NULL;
    return *made || !bytes;
}

/* Returns a message of a record. Its topic and headers are shared with its neighbours. */
static PyObject *new_message(const rd_kafka_message_t *record, PyObject *topic, PyObject *headers) {
    Message *made = PyObject_New(Message, message_type);
    if (!made) return NULL;
    int type;
    made->topic = Py_NewRef(topic);
    made->value = made->error = NULL;
    made->headers = headers ? Py_NewRef(headers) : NULL;
    made->offset = record->offset;
    made->timestamp = k_message_timestamp(record, &type);
    made->timestamp_type = type;
    made->content_size = (int64_t)(record->key_len + record->len);
    made->partition = record->partition;
    made->epoch = k_message_leader_epoch(record);
    if (!copy(record->key, record->key_len, &made->key) ||
        !copy(record->payload, record->len, &made->value))
        Py_CLEAR(made);
    return (PyObject *)made;
}

/* Returns headers as a tuple of pairs; True if a name is not UTF-8. */
static PyObject *new_headers(const rd_kafka_headers_t *headers) {
    const char *name;
    const void *value;
    size_t size, count = 0;
    while (!k_header_get_all(headers, count, &name, &value, &size)) count++;
    PyObject *made = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; made && i < count; i++) {
        k_header_get_all(headers, i, &name, &value, &size);
        PyObject *text = PyUnicode_FromString(name);
        if (!text && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
            Py_DECREF(made);
            return Py_NewRef(Py_True);
        }
        PyObject *bytes = value ? PyBytes_FromStringAndSize(value, (Py_ssize_t)size)
                                : Py_NewRef(Py_None);
        PyObject *pair = text && bytes ? PyTuple_Pack(2, text, bytes) : NULL;
        Py_XDECREF(text);
        Py_XDECREF(bytes);
        if (!pair || PyTuple_SetItem(made, (Py_ssize_t)i, pair)) Py_CLEAR(made);
    }
    return made;
}

/* ---- the reader, and what librdkafka calls --------------------------------------------------- */

typedef struct source_s { /* the queue of a partition that is taken over */
    struct source_s *next;
    struct reader_s *reader;
    rd_kafka_queue_t *queue;
    atomic_bool is_loose; /* it has got something, so it is forwarded no more */
    int32_t partition;
    char topic[];
} source_t;

typedef struct trouble_s { /* an error of the client, to be told by Python */
    struct trouble_s *next;
    int code;
    char text[];
} trouble_t;

typedef struct reader_s { /* freed when both Python and librdkafka have left it */
    PyThread_type_lock alarm; /* open: there is news. Who waits closes it again */
    atomic_bool is_awake;     /* whether the alarm is open, or being opened */
    atomic_bool has_loose;    /* a source became loose */
    atomic_int users;
    unsigned generation;
    _Atomic(rd_kafka_t *) rk; /* NULL: closed */
    rd_kafka_queue_t *own, *consumers;
    source_t *sources;
    trouble_t *troubles, **last_trouble; /* of who reads */
} reader_t;

typedef struct {
    PyObject_HEAD
    reader_t *reader;
    bool is_busy, is_closing;
} Reader;

static _Thread_local reader_t *expected, *taking;
static _Atomic(error_cb_t *) told_error; /* confluent-kafka's, one for all clients */

static bool is_parents(const reader_t *reader) { return reader->generation != generation; }

static void drop_troubles(reader_t *reader) {
    for (trouble_t *next; reader->troubles; reader->troubles = next) {
        next = reader->troubles->next;
        free(reader->troubles);
    }
    reader->last_trouble = &reader->troubles;
}

static void leave(reader_t *reader) {
    if (is_parents(reader) || atomic_fetch_sub(&reader->users, 1) > 1) return;
    PyThread_free_lock(reader->alarm);
    drop_troubles(reader);
    free(reader);
}

static void wake(rd_kafka_t *Py_UNUSED(rk), void *opaque) {
    reader_t *reader = opaque;
    if (!atomic_exchange(&reader->is_awake, true)) PyThread_release_lock(reader->alarm);
}

/* Trap 270: librdkafka ends the forwarding of a partition's queue when it stops to read it, in its
 * own time, and does not begin it again. What comes then waits in that queue, unseen. */
static void on_loose(rd_kafka_t *rk, void *opaque) {
    source_t *source = opaque;
    source->is_loose = true;
    source->reader->has_loose = true;
    wake(rk, source->reader);
}

/* Trap 277: librdkafka puts an error of a partition that is gone into the partition's queue, and
 * calls back for it when it is read there. confluent-kafka's callback ends the process outside its
 * own calls, for it holds no thread state then. */
static void on_error(rd_kafka_t *rk, int code, const char *text, void *opaque) {
    if (!taking || taking->rk != rk) {
        told_error(rk, code, text, opaque);
        return;
    }
    trouble_t *trouble = malloc(sizeof *trouble + strlen(text) + 1);
    if (!trouble) return;
    trouble->next = NULL;
    trouble->code = code;
    strcpy(trouble->text, text);
    *taking->last_trouble = trouble;
    taking->last_trouble = &trouble->next;
}

static bool take_errors(const rd_kafka_conf_t *conf) {
    char text[32] = "";
    size_t size = sizeof text;
    void *found = NULL;
    if (k_conf_get(conf, "error_cb", text, &size) || sscanf(text, "%p", &found) != 1) return false;
    if (found != (void *)on_error) told_error = (error_cb_t *)found;
    k_conf_set_error_cb((rd_kafka_conf_t *)conf, on_error); /* It is the client's own by now. */
    return true;
}

static void release_queue(rd_kafka_queue_t *queue) {
    if (!queue) return;
    k_queue_cb_event_enable(queue, NULL, NULL);
    k_queue_destroy(queue);
}

/* Trap 278: as librdkafka frees a partition, it empties the queue that the partition's is forwarded
 * to. So who has given a partition up must not forward it any more. */
static void drop_source(source_t **place) {
    source_t *source = *place;
    *place = source->next;
    k_queue_forward(source->queue, NULL);
    release_queue(source->queue); /* Behind this, `on_loose` is called no more. */
    free(source);
}

static void release(reader_t *reader) {
    if (!atomic_exchange(&reader->rk, NULL)) return;
    while (reader->sources) drop_source(&reader->sources);
    release_queue(reader->own);
    release_queue(reader->consumers);
}

/* Who closes the consumer without the reader: its messages would let librdkafka wait for ever. */
static int on_destroy(rd_kafka_t *Py_UNUSED(rk), void *opaque) {
    release(opaque);
    return 0;
}

static int on_conf_destroy(void *opaque) {
    leave(opaque);
    return 0;
}

static int on_new(rd_kafka_t *rk, const rd_kafka_conf_t *conf, void *opaque,
                  char *Py_UNUSED(error), size_t Py_UNUSED(size)) {
    reader_t *reader = opaque;
    if (reader != expected || reader->rk || k_type(rk) != RD_KAFKA_CONSUMER) return 0;
    if (!take_errors(conf) || k_interceptor_add_on_destroy(rk, NAME, on_destroy, reader)) return 0;
    reader->rk = rk;
    return 0;
}

bool expects_reader(void) { return expected; }

int begin_reader(rd_kafka_conf_t *conf) {
    reader_t *reader = expected;
    atomic_fetch_add(&reader->users, 1);
    if (k_conf_interceptor_add_on_conf_destroy(conf, NAME, on_conf_destroy, reader)) leave(reader);
    else k_conf_interceptor_add_on_new(conf, NAME, on_new, reader); /* Fails: `rk` stays NULL. */
    return 0;
}

/* ---- Reader ---------------------------------------------------------------------------------- */

static reader_t *new_reader(void) {
    reader_t *reader = calloc(1, sizeof *reader);
    if (reader && (reader->alarm = PyThread_allocate_lock())) {
        PyThread_acquire_lock(reader->alarm, WAIT_LOCK);
        reader->users = 1;
        reader->generation = generation;
        drop_troubles(reader);
        return reader;
    }
    free(reader);
    return NULL;
}

/* Reader(make): calls make(), which makes a consumer with this plugin. Does not refer to it. */
static PyObject *Reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *make;
    static char *names[] = {"make", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &make)) return NULL;
    Reader *self = PyObject_New(Reader, type);
    if (!self) return NULL;
    memset(&self->reader, 0, sizeof *self - offsetof(Reader, reader));
    reader_t *reader = self->reader = new_reader(), *outer = expected;
    if (!reader) {
        Py_DECREF((PyObject *)self);
        return PyErr_NoMemory();
    }
    expected = reader;
    PyObject *consumer = PyObject_CallNoArgs(make);
    expected = outer;
    if (consumer && reader->rk) { /* `on_new` comes before there is a consumer's queue. */
        reader->own = k_queue_new(reader->rk);
        reader->consumers = k_queue_get_consumer(reader->rk);
        k_queue_cb_event_enable(reader->own, wake, reader);
        k_queue_cb_event_enable(reader->consumers, wake, reader);
    }
    if (!consumer) Py_CLEAR(self);
    Py_XDECREF(consumer);
    return (PyObject *)self;
}

static void Reader_dealloc(Reader *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->reader) {
        if (!is_parents(self->reader)) release(self->reader);
        leave(self->reader);
    }
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static bool begin_call(Reader *self) {
    const char *flaw = NULL;
    if (is_parents(self->reader) || !self->reader->rk) flaw = "the reader is closed";
    else if (self->is_busy || self->is_closing) flaw = "another thread reads, or closes the reader";
    if (flaw) PyErr_SetString(PyExc_RuntimeError, flaw);
    else self->is_busy = true;
    return !flaw;
}

/* Lets go of a partition's queue, if it is taken over. */
static void drop_partition(reader_t *reader, const char *topic, int partition) {
    for (source_t **place = &reader->sources; *place; place = &(*place)->next)
        if ((*place)->partition == partition && !strcmp((*place)->topic, topic)) {
            drop_source(place);
            return;
        }
}

/* take_over(topic, partition): reads the partition from now on. Call it before each assignment. */
static PyObject *Reader_take_over(Reader *self, PyObject *args) {
    const char *topic;
    int partition;
    if (!PyArg_ParseTuple(args, "si", &topic, &partition) || !begin_call(self)) return NULL;
    self->is_busy = false;
    reader_t *reader = self->reader;
    rd_kafka_queue_t *queue = k_queue_get_partition(reader->rk, topic, partition);
    if (!queue) return PyErr_Format(PyExc_RuntimeError, "%s[%d] has no queue", topic, partition);
    source_t *source = calloc(1, sizeof *source + strlen(topic) + 1);
    if (!source) {
        k_queue_destroy(queue);
        return PyErr_NoMemory();
    }
    drop_partition(reader, topic, partition);
    source->partition = partition;
    strcpy(source->topic, topic);
    source->queue = queue;
    source->reader = reader;
    source->next = reader->sources;
    reader->sources = source;
    /* In this order: what comes in between is forwarded, too. */
    k_queue_cb_event_enable(queue, on_loose, source);
    k_queue_forward(queue, reader->own);
    Py_RETURN_NONE;
}

/* give_back(topic, partition): reads the partition no more. To be called as it is given up. */
static PyObject *Reader_give_back(Reader *self, PyObject *args) {
    const char *topic;
    int partition;
    if (!PyArg_ParseTuple(args, "si", &topic, &partition) || !begin_call(self)) return NULL;
    self->is_busy = false;
    drop_partition(self->reader, topic, partition);
    Py_RETURN_NONE;
}

/* wait(ms): until something came since it was called last, for `read` or confluent-kafka's poll. */
static PyObject *Reader_wait(Reader *self, PyObject *number) {
    long ms = PyLong_AsLong(number);
    if (PyErr_Occurred() || !begin_call(self)) return NULL;
    reader_t *reader = self->reader;
    Py_BEGIN_ALLOW_THREADS
    /* What comes behind this is seen by the read that follows, if it wakes nobody. */
    if (PyThread_acquire_lock_timed(reader->alarm, ms * 1000, 0) == PY_LOCK_ACQUIRED)
        reader->is_awake = false;
    Py_END_ALLOW_THREADS
    self->is_busy = false;
    Py_RETURN_NONE;
}

/* close(): reads no more. Must be called before the consumer is closed. */
static PyObject *Reader_close(Reader *self, PyObject *Py_UNUSED(none)) {
    reader_t *reader = self->reader;
    self->is_closing = true;
    if (is_parents(reader)) Py_RETURN_NONE;
    wake(NULL, reader);
    for (int ms = 0; self->is_busy && ms < CLOSE_MAX_MS; ms++) {
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        Py_END_ALLOW_THREADS
    }
    if (self->is_busy) return PyErr_Format(PyExc_RuntimeError, "another thread still reads");
    release(reader);
    Py_RETURN_NONE;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct { /* some records, taken together: few enough to stay in the processor's cache */
    rd_kafka_message_t *records[CHUNK + 1]; /* from 1 on; 0: the last one before, or NULL */
    rd_kafka_headers_t *headers[CHUNK + 1]; /* NULL: none */
    ssize_t count;
} chunk_t;

typedef struct { /* neighbours in one partition, on their way to Python */
    PyObject *topic, *messages, *runs, *headers;
    int partition;
    bool are_readable;
    long long bytes;
    ssize_t run;
} part_t;

static bool are_alike(const rd_kafka_headers_t *a, const rd_kafka_headers_t *b) {
    if (!a || !b) return a == b;
    for (size_t i = 0;; i++) {
        const char *name_a, *name_b;
        const void *value_a, *value_b;
        size_t size_a, size_b;
        int end_a = k_header_get_all(a, i, &name_a, &value_a, &size_a);
        int end_b = k_header_get_all(b, i, &name_b, &value_b, &size_b);
        if (end_a || end_b) return end_a && end_b;
        if (!value_a != !value_b || size_a != size_b || strcmp(name_a, name_b)) return false;
        if (size_a && value_a && memcmp(value_a, value_b, size_a)) return false;
    }
}

static void destroy(rd_kafka_message_t *record) {
    if (record) k_message_destroy(record);
}

/* Takes the next records, and destroys those before but the last one. */
static void take(reader_t *reader, chunk_t *chunk, size_t limit) {
    for (ssize_t i = 0; i < chunk->count; i++) destroy(chunk->records[i]);
    if (chunk->count > 0) {
        chunk->records[0] = chunk->records[chunk->count];
        chunk->headers[0] = chunk->headers[chunk->count];
    }
    if (atomic_exchange(&reader->has_loose, false))
        for (source_t *source = reader->sources; source; source = source->next)
            if (atomic_exchange(&source->is_loose, false))
                k_queue_forward(source->queue, reader->own);
    taking = reader;
    chunk->count = k_consume_batch_queue(reader->own, 0, chunk->records + 1, limit);
    taking = NULL;
    if (chunk->count < 0) chunk->count = 0;
    for (ssize_t i = 1; i <= chunk->count; i++)
        if (chunk->records[i]->err || k_message_headers(chunk->records[i], &chunk->headers[i]))
            chunk->headers[i] = NULL;
}

static bool append_new(PyObject *list, PyObject *made) { /* takes `made` over */
    bool done = made && !PyList_Append(list, made);
    Py_XDECREF(made);
    return done;
}

/* Appends (code, text, topic, partition, offset) of an event. */
static bool add_event(PyObject *events, const rd_kafka_message_t *event) {
    const char *topic = event->rkt ? k_topic_name(event->rkt) : NULL;
    return append_new(events, Py_BuildValue("isziL", event->err, k_message_errstr(event), topic,
                                            event->partition, event->offset));
}

static bool end_run(part_t *part) {
    if (!part->run) return true;
    PyObject *headers = part->headers ? part->headers : Py_None;
    bool done = append_new(part->runs, Py_BuildValue("On", headers, part->run));
    part->run = 0;
    return done;
}

/* Appends (topic, partition, messages, runs, bytes of values) to `parts`, if that is not NULL, and
 * drops the part. runs: (headers, number) of neighbours; None if some headers can't be read. */
static bool end_part(part_t *part, PyObject *parts) {
    bool done = !parts || !part->topic ||
                (end_run(part) &&
                 append_new(parts, Py_BuildValue("OiOOL", part->topic, part->partition,
                                                 part->messages,
                                                 part->are_readable ? part->runs : Py_None,
                                                 part->bytes)));
    Py_XDECREF(part->topic);
    Py_XDECREF(part->messages);
    Py_XDECREF(part->runs);
    Py_XDECREF(part->headers);
    *part = (part_t){.are_readable = true};
    return done;
}

static bool begin_part(part_t *part, PyObject *topic, int partition) { /* takes `topic` over */
    *part = (part_t){topic, PyList_New(0), PyList_New(0), NULL, partition, true, 0, 0};
    return part->messages && part->runs;
}

static bool add_records(const chunk_t *chunk, part_t *part, PyObject *parts, PyObject *events) {
    const rd_kafka_topic_t *last = NULL;
    for (ssize_t i = 1; i <= chunk->count; i++) {
        const rd_kafka_message_t *record = chunk->records[i];
        if (record->err) {
            /* Trap 303: a record without headers behind it would look like the one in front. */
            if (!add_event(events, record) || !end_run(part)) return false;
            continue;
        }
        if (record->rkt != last || record->partition != part->partition) {
            PyObject *topic = PyUnicode_InternFromString(k_topic_name(last = record->rkt));
            if (!topic) return false;
            if (topic == part->topic && record->partition == part->partition) Py_DECREF(topic);
            else if (!end_part(part, parts) || !begin_part(part, topic, record->partition))
                return false;
        }
        if (!part->run || !are_alike(chunk->headers[i - 1], chunk->headers[i])) {
            if (!end_run(part)) return false;
            Py_CLEAR(part->headers);
            if (chunk->headers[i] && !(part->headers = new_headers(chunk->headers[i]))) return false;
            if (part->headers == Py_True) part->are_readable = false;
        }
        if (!append_new(part->messages, new_message(record, part->topic, part->headers)))
            return false;
        part->bytes += (long long)record->len;
        part->run++;
    }
    return true;
}

static bool add_troubles(reader_t *reader, PyObject *events) {
    for (trouble_t *each = reader->troubles; each; each = each->next)
        if (!append_new(events, Py_BuildValue("isziL", each->code, each->text, NULL, -1, -1LL)))
            return false;
    drop_troubles(reader);
    return true;
}

/* read(limit) -> (parts, events): what is there now. */
static PyObject *Reader_read(Reader *self, PyObject *number) {
    long limit = PyLong_AsLong(number);
    if (PyErr_Occurred() || !begin_call(self)) return NULL;
    PyObject *parts = PyList_New(0), *events = PyList_New(0), *found = NULL;
    bool is_fine = parts && events;
    chunk_t chunk = {.count = 0};
    part_t part = {.are_readable = true};
    for (bool is_more = limit > 0; is_fine && is_more; limit -= CHUNK) {
        ssize_t wanted = limit < CHUNK ? limit : CHUNK;
        Py_BEGIN_ALLOW_THREADS
        take(self->reader, &chunk, (size_t)wanted);
        Py_END_ALLOW_THREADS
        is_more = limit > CHUNK && chunk.count == wanted;
        is_fine = add_records(&chunk, &part, parts, events);
    }
    is_fine = end_part(&part, is_fine ? parts : NULL) && is_fine;
    is_fine = is_fine && add_troubles(self->reader, events);
    for (ssize_t i = 0; i <= chunk.count; i++) destroy(chunk.records[i]);
    self->is_busy = false;
    if (is_fine) found = PyTuple_Pack(2, parts, events);
    Py_XDECREF(parts);
    Py_XDECREF(events);
    return found;
}

static PyObject *Reader_is_reading(Reader *self, void *Py_UNUSED(unused)) {
    return PyBool_FromLong(!is_parents(self->reader) && self->reader->rk);
}

static PyMethodDef reader_methods[] = {
    {"close", (PyCFunction)Reader_close, METH_NOARGS, NULL},
    {"give_back", (PyCFunction)Reader_give_back, METH_VARARGS, NULL},
    {"read", (PyCFunction)Reader_read, METH_O, NULL},
    {"take_over", (PyCFunction)Reader_take_over, METH_VARARGS, NULL},
    {"wait", (PyCFunction)Reader_wait, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef reader_fields[] = {
    {"is_reading", (getter)Reader_is_reading, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot reader_slots[] = {
    {Py_tp_new, Reader_new}, {Py_tp_dealloc, Reader_dealloc}, {Py_tp_methods, reader_methods},
    {Py_tp_getset, reader_fields}, {0, NULL},
};
static PyType_Spec reader_spec = {NAME ".Reader", sizeof(Reader), 0, Py_TPFLAGS_DEFAULT,
                                  reader_slots};

/* load_reader(path of confluent-kafka's extension, its Message): as `load`, for this part. */
PyObject *load_reader(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *path, *class;
    if (!PyArg_ParseTuple(args, "OO", &path, &class)) return NULL;
    void *library = find_library(path);
    if (!library) return NULL;
    FUNCTIONS(FIND)
    Py_XDECREF(message_class);
    message_class = Py_NewRef(class);
    Py_RETURN_NONE;
}

bool add_reader(PyObject *module) {
    message_type = (PyTypeObject *)PyType_FromSpec(&message_spec);
    PyTypeObject *reader_type = (PyTypeObject *)PyType_FromSpec(&reader_spec);
    return message_type && reader_type && !PyModule_AddType(module, message_type) &&
           !PyModule_AddType(module, reader_type);
}
