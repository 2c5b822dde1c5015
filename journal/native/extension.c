/* Sends a branch's records and counts their acknowledgements, on confluent-kafka's own handles.
 *
 * One shared object is both a Python extension and a plugin of librdkafka. `Handle` lets Python
 * make a producer with this file in `plugin.library.paths`; librdkafka then calls `conf_init` and
 * `on_new`, which tell the `rd_kafka_t`. `Count.produce` queues a record there with an opaque of
 * NULL. confluent-kafka's own delivery callback passes over such records, so no Python runs for
 * them. `on_acknowledgement` counts them, on librdkafka's threads, without the interpreter lock.
 *
 * librdkafka's functions come from the very library that confluent-kafka has loaded, by its public
 * C API alone. See docs/decisions/0044-records-are-counted-in-c.md.
 *
 * Who may touch what:
 * - The interpreter lock guards `admitted` and what only Python's threads use. `produce` never
 *   gives it up: `close` comes before or behind it, and no Count is freed while it runs.
 * - `client->lock` guards the tables, the list of changes, and what reports fill. No function of
 *   Python is called under it: one may collect garbage, free a Count, and want the lock too.
 *
 * Which offsets are believed is the rule of `producer/core/tally.py`, for all records of a branch:
 * those that Python counts are checked here, too, and only not counted. So one rule, on one side,
 * sees the reports of a partition in their order, whichever way each record took.
 *
 * A child of fork() finds the lock in any state, and has none of librdkafka's threads. There the
 * parent's clients are left as they are: nothing is taken, told or freed.
 */
#include "librdkafka.h"

#define FUNCTIONS(X)                                                                               \
    X(int, conf_interceptor_add_on_conf_destroy,                                                   \
      (rd_kafka_conf_t *, const char *, on_conf_destroy_t *, void *))                              \
    X(int, conf_interceptor_add_on_new, (rd_kafka_conf_t *, const char *, on_new_t *, void *))     \
    X(int, interceptor_add_on_destroy, (rd_kafka_t *, const char *, on_destroy_t *, void *))       \
    X(int, interceptor_add_on_acknowledgement,                                                     \
      (rd_kafka_t *, const char *, on_acknowledgement_t *, void *))                                \
    X(int, type, (const rd_kafka_t *))                                                             \
    X(int, conf_get, (const rd_kafka_conf_t *, const char *, char *, size_t *))                    \
    X(const char *, topic_name, (const rd_kafka_topic_t *))                                        \
    X(int64_t, message_latency, (const rd_kafka_message_t *))                                      \
    X(int, message_headers, (const rd_kafka_message_t *, rd_kafka_headers_t **))                   \
    X(int, header_get_all,                                                                         \
      (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))                \
    X(int, producev, (rd_kafka_t *, ...))

FUNCTIONS(DECLARE)

#define TXID "TxId"
#define TXCTL "TxCtl"
/* As in `producer/core/tally.py`. */
enum { MADE_UP_MAX = 1000000 };
enum { SENT_ANEW = 1000000 }; /* as in `interface.py` */
enum { TXID_SIZE = 16, CONTROL_MAX = 32, KEY_MAX = TXID_SIZE + CONTROL_MAX, TOPIC_MAX = 249 };
enum { SLOTS = 1024 }; /* of a hash table; a full one only gets longer chains */

/* ---- what is counted ------------------------------------------------------------------------- */

typedef struct count_s count_t;

typedef struct place_s { /* a partition that a report of the client named; lives as long as it */
    struct place_s *next;
    int64_t floor;    /* the next branch begins above it; -1: anywhere */
    uint64_t refused; /* number of the refusal that was the last here; 0: there was none */
    count_t *writer;  /* whose span was written last, and which: only a hint */
    size_t span;
    int32_t partition;
    char topic[];
} place_t;

typedef struct {
    place_t *place;
    int64_t begun, seen;        /* first and last offset, whoever counts these records */
    int64_t first, last, count; /* of those that are counted here */
} span_t;

struct count_s { /* the records of one branch */
    count_t *next;            /* in its slot */
    count_t *before, *behind; /* in the list of changes */
    PyObject *object;         /* the Count that this is part of; no reference */
    uint8_t key[KEY_MAX];     /* TxId and TxCtl */
    size_t key_size;
    bool is_listed, is_changed, is_closed, has_failed;
    uint64_t born, born_failures, born_local; /* how many refusals and failures there had been */
    int64_t admitted, reports;
    span_t *spans;
    size_t span_count, span_room;
    int code; /* of the first failure; 0: its offset can't be; or SENT_ANEW */
    int32_t partition;
    int64_t offset;
    char topic[TOPIC_MAX + 1];
};

typedef struct { /* one librdkafka producer; freed when both Python and librdkafka have left it */
    pthread_mutex_t lock;
    atomic_int users;
    unsigned generation;
    _Atomic(rd_kafka_t *) rk; /* NULL: takes no records */
    size_t size;              /* number of counts */
    size_t busy;              /* of those that have taken records; the interpreter lock guards it */
    uint64_t refusals;        /* number of reports at an offset that can't be */
    uint64_t failures;        /* number of reports of an error */
    atomic_uint_fast64_t local; /* of those, the number of librdkafka's own errors */
    int64_t failed_us;        /* when the last one came */
    int64_t retry_us;         /* shortest time to the report of a record that is sent again */
    count_t *counts[SLOTS], *last_count, *first_changed, *last_changed;
    place_t *places[SLOTS], *last_place;
} client_t;

atomic_uint generation;
static _Thread_local client_t *expected; /* the client whose handle this thread makes */
static _Thread_local bool is_producing;  /* whether this thread is within rd_kafka_producev */

static bool is_parents(const client_t *client) { return client->generation != generation; }

static void leave(client_t *client) {
    if (is_parents(client) || atomic_fetch_sub(&client->users, 1) > 1) return;
    for (size_t i = 0; i < SLOTS; i++)
        for (place_t *place = client->places[i], *next; place; place = next) {
            next = place->next;
            free(place);
        }
    pthread_mutex_destroy(&client->lock);
    free(client);
}

static size_t slot_of(const void *bytes, size_t size, uint64_t seed) { /* FNV-1a */
    uint64_t hash = 0xcbf29ce484222325u ^ seed;
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    return (hash ^ hash >> 32) % SLOTS;
}

/* Returns a partition's place, made if there is none; NULL without memory. */
static place_t *place_of(client_t *client, const char *topic, int32_t partition) {
    place_t *place = client->last_place;
    if (place && place->partition == partition && !strcmp(place->topic, topic)) return place;
    size_t size = strlen(topic);
    place_t **slot = &client->places[slot_of(topic, size, (uint32_t)partition)];
    for (place = *slot; place; place = place->next)
        if (place->partition == partition && !strcmp(place->topic, topic))
            return client->last_place = place;
    if (!(place = calloc(1, sizeof *place + size + 1))) return NULL;
    place->floor = -1;
    place->partition = partition;
    memcpy(place->topic, topic, size + 1);
    place->next = *slot;
    return client->last_place = *slot = place;
}

static bool has_key(const count_t *count, const uint8_t *key, size_t size) {
    return count->key_size == size && !memcmp(count->key, key, size);
}

static count_t *find_count(client_t *client, const uint8_t *key, size_t size) {
    count_t *count = client->last_count;
    if (count && has_key(count, key, size)) return count;
    count = client->counts[slot_of(key, size, 0)];
    while (count && !has_key(count, key, size)) count = count->next;
    return client->last_count = count;
}

/* Returns the count that a message belongs to, by its headers; NULL if there is none. */
static count_t *count_of(client_t *client, const rd_kafka_message_t *message) {
    rd_kafka_headers_t *headers;
    const char *name;
    const void *value;
    size_t size;
    uint8_t key[KEY_MAX];
    if (!client->size || k_message_headers(message, &headers)) return NULL;
    if (k_header_get_all(headers, 0, &name, &value, &size)) return NULL;
    if (!value || size != TXID_SIZE || strcmp(name, TXID)) return NULL;
    memcpy(key, value, TXID_SIZE);
    /* The application's own headers come behind these. */
    if (k_header_get_all(headers, 1, &name, &value, &size) || strcmp(name, TXCTL)) size = 0;
    else if (!value || size > CONTROL_MAX) return NULL;
    else memcpy(key + TXID_SIZE, value, size);
    return find_count(client, key, TXID_SIZE + size);
}

static void tell(client_t *client, count_t *count) {
    if (count->is_changed || !count->is_listed) return;
    count->is_changed = true;
    count->before = client->last_changed;
    count->behind = NULL;
    *(count->before ? &count->before->behind : &client->first_changed) = count;
    client->last_changed = count;
}

static void untell(client_t *client, count_t *count) {
    if (!count->is_changed) return;
    count->is_changed = false;
    *(count->before ? &count->before->behind : &client->first_changed) = count->behind;
    *(count->behind ? &count->behind->before : &client->last_changed) = count->before;
}

/* Returns a branch's span of a place; NULL if there is none. */
static span_t *find_span(count_t *count, place_t *place) {
    size_t at = place->span;
    if (place->writer != count || at >= count->span_count || count->spans[at].place != place)
        for (at = 0; at < count->span_count && count->spans[at].place != place;) at++;
    if (at == count->span_count) return NULL;
    place->writer = count;
    place->span = at;
    return &count->spans[at];
}

/* Begins a branch's span of a place, with nothing counted; NULL without memory. */
static span_t *begin_span(count_t *count, place_t *place) {
    if (count->span_count == count->span_room) {
        size_t room = count->span_room ? count->span_room * 2 : 4;
        span_t *larger = realloc(count->spans, room * sizeof *larger);
        if (!larger) return NULL;
        count->spans = larger;
        count->span_room = room;
    }
    span_t *span = &count->spans[count->span_count++];
    *span = (span_t){.place = place};
    return span;
}

static void fail(client_t *client, count_t *count, const rd_kafka_message_t *message, int code) {
    if (count->has_failed) return;
    count->has_failed = true;
    count->code = code;
    count->partition = message->partition;
    count->offset = message->offset;
    snprintf(count->topic, sizeof count->topic, "%s", k_topic_name(message->rkt));
    tell(client, count);
}

static int64_t now_us(void) { /* on librdkafka's clock */
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void note_failure(client_t *client, int code) {
    client->failures++;
    client->failed_us = now_us();
    if (code < 0) client->local++;
}

/* Returns whether a record may lie in the log twice: the rule of `Failures` in the tally. */
static bool may_be_twice(
    const client_t *client, const count_t *count, const rd_kafka_message_t *message) {
    if (count->born_failures == client->failures) return false;
    int64_t latency_us = k_message_latency(message);
    if (latency_us < 0) return true;
    if (latency_us < client->retry_us) return false;
    return count->born_local != client->local || now_us() - latency_us <= client->failed_us;
}

/* ---- what librdkafka calls ------------------------------------------------------------------- */

/* Called for every record of the client, before its delivery report is queued for Python: in the
 * order of the offsets of each partition. */
static int on_acknowledgement(
    rd_kafka_t *Py_UNUSED(rk), rd_kafka_message_t *message, void *opaque) {
    client_t *client = opaque;
    /* Trap 223: librdkafka also reports a record that it refuses within `produce`. */
    if (is_producing) return 0; /* It was not admitted either, and Python tries it again. */
    if (is_parents(client)) return 0; /* What a child purges: nobody would ever unlock. */
    pthread_mutex_lock(&client->lock);
    place_t *place = NULL;
    if (message->err) note_failure(client, message->err);
    else place = place_of(client, k_topic_name(message->rkt), message->partition);
    count_t *count = count_of(client, message);
    span_t *span = count && place ? find_span(count, place) : NULL;
    /* Trap 224: err is 0 for duplicates, and for all of a batch in which several records failed.
     * Neither has a place that can be, so an offset has to rise. */
    bool rises = place && message->partition >= 0 &&
                 message->offset > (span ? span->seen : place->floor);
    if (place && !rises) {
        /* A topic that was deleted and created anew starts at 0: refused once, and then believed.
         * Trap 233: others' records may lie in the same batch, and look as if they rose. */
        place->floor = -1;
        place->refused = ++client->refusals;
        span = NULL;
    } else if (place && count) {
        if (!span && (span = begin_span(count, place)))
            place->floor = span->begun = message->offset;
        if (span) span->seen = message->offset;
    }
    if (count && !message->_private) { /* Else confluent-kafka tells Python, which counts it. */
        if (span) {
            span->last = message->offset;
            if (!span->count++) {
                span->first = message->offset;
                tell(client, count);
            }
        }
        count->reports++;
        if (count->is_closed && count->reports >= count->admitted) tell(client, count);
    }
    if (count && !span && (!message->_private || !message->err))
        fail(client, count, message, message->err);
    else if (span && may_be_twice(client, count, message))
        fail(client, count, message, SENT_ANEW);
    pthread_mutex_unlock(&client->lock);
    return 0;
}

static int on_destroy(rd_kafka_t *Py_UNUSED(rk), void *opaque) {
    ((client_t *)opaque)->rk = NULL;
    return 0;
}

/* Trap 225: reports come behind `on_destroy`, too. This comes last, when no thread is left. */
static int on_conf_destroy(void *opaque) {
    leave(opaque);
    return 0;
}

static int64_t number_of(const rd_kafka_conf_t *conf, const char *name) {
    char text[32];
    size_t size = sizeof text;
    return k_conf_get(conf, name, text, &size) ? 0 : strtoll(text, NULL, 10);
}

/* Returns 3/4 of the pause before a record is sent again, microseconds; 0: it is not known. */
static int64_t retry_us_of(const rd_kafka_conf_t *conf) {
    int64_t first = number_of(conf, "retry.backoff.ms");
    int64_t most = number_of(conf, "retry.backoff.max.ms");
    return (first < most ? first : most) * 750;
}

static int on_new(rd_kafka_t *rk, const rd_kafka_conf_t *conf, void *opaque,
                  char *Py_UNUSED(error), size_t Py_UNUSED(size)) {
    client_t *client = opaque;
    if (client != expected || client->rk || k_type(rk) != RD_KAFKA_PRODUCER) return 0;
    if (k_interceptor_add_on_destroy(rk, NAME, on_destroy, client)) return 0;
    if (k_interceptor_add_on_acknowledgement(rk, NAME, on_acknowledgement, client)) return 0;
    client->retry_us = retry_us_of(conf);
    client->rk = rk;
    return 0;
}

/* Called for each configuration that names this file in `plugin.library.paths`. */
__attribute__((visibility("default"))) int
conf_init(rd_kafka_conf_t *conf, void **Py_UNUSED(opaque), char *Py_UNUSED(error),
          size_t Py_UNUSED(size)) {
    client_t *client = expected;
    if (expects_reader()) return begin_reader(conf);
    if (!client) return 0; /* The setting was copied to a client that is none of ours. */
    atomic_fetch_add(&client->users, 1);
    if (k_conf_interceptor_add_on_conf_destroy(conf, NAME, on_conf_destroy, client)) leave(client);
    else k_conf_interceptor_add_on_new(conf, NAME, on_new, client); /* Fails: `rk` stays NULL. */
    return 0;
}

/* ---- Handle and Count ------------------------------------------------------------------------ */

static PyTypeObject *handle_type, *count_type;

typedef struct {
    PyObject_HEAD
    client_t *client;
    PyObject *producer; /* kept: `client->rk` is its */
} Handle;

typedef struct {
    PyObject_HEAD
    Handle *handle;
    PyObject *owner, *topics; /* topics: a dict with those that records are taken for */
    PyObject *last_topic;     /* one of them */
    const char *last_name;    /* its name */
    count_t count;
} Count;

static void free_object(void *object) {
    PyTypeObject *type = Py_TYPE((PyObject *)object);
    PyObject_GC_Del(object);
    Py_DECREF((PyObject *)type);
}

/* Handle(make): calls make(), which makes a producer with this plugin. */
static PyObject *Handle_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *make;
    static char *names[] = {"make", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &make)) return NULL;
    client_t *client = calloc(1, sizeof *client);
    if (!client || pthread_mutex_init(&client->lock, NULL)) {
        free(client);
        return PyErr_NoMemory();
    }
    client->users = 1;
    client->generation = generation;
    Handle *self = PyObject_GC_New(Handle, type);
    client_t *outer = expected;
    expected = client;
    PyObject *producer = self ? PyObject_CallNoArgs(make) : NULL;
    expected = outer;
    if (!self) {
        leave(client);
        return NULL;
    }
    self->client = client;
    self->producer = producer;
    PyObject_GC_Track((PyObject *)self);
    if (!producer) Py_CLEAR(self);
    return (PyObject *)self;
}

/* Trap 227: the producer refers to the application's callbacks, and these to anything. */
static int Handle_traverse(Handle *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->producer);
    return 0;
}

static int Handle_clear(Handle *self) {
    self->client->rk = NULL;
    Py_CLEAR(self->producer);
    return 0;
}

static void Handle_dealloc(Handle *self) {
    PyObject_GC_UnTrack(self);
    Handle_clear(self);
    leave(self->client);
    free_object(self);
}

/* detach(): takes no more records. Must be called before the producer is closed. */
static PyObject *Handle_detach(Handle *self, PyObject *Py_UNUSED(none)) {
    self->client->rk = NULL;
    Py_RETURN_NONE;
}

/* changed() -> the Counts that have settled, failed, or come to a further partition, once each. */
static PyObject *Handle_changed(Handle *self, PyObject *Py_UNUSED(none)) {
    client_t *client = self->client;
    PyObject *found = PyList_New(0);
    while (found && !is_parents(client)) {
        pthread_mutex_lock(&client->lock);
        count_t *count = client->first_changed;
        if (count) untell(client, count);
        pthread_mutex_unlock(&client->lock);
        if (!count) break;
        if (!PyList_Append(found, count->object)) continue;
        PyErr_Clear(); /* No memory: the others are told, and this one the next time. */
        pthread_mutex_lock(&client->lock);
        tell(client, count);
        pthread_mutex_unlock(&client->lock);
        break;
    }
    return found;
}

/* count(txid, control, topics, owner) -> the Count of a branch; control: its TxCtl, or b"". */
static PyObject *Handle_count(Handle *self, PyObject *args) {
    const char *txid, *control;
    Py_ssize_t txid_size, control_size;
    PyObject *topics, *owner;
    if (!PyArg_ParseTuple(args, "y#y#O!O", &txid, &txid_size, &control, &control_size, &PyDict_Type,
                          &topics, &owner))
        return NULL;
    if (txid_size != TXID_SIZE || control_size > CONTROL_MAX)
        return PyErr_Format(PyExc_ValueError, "a TxId of %zd bytes, a TxCtl of %zd", txid_size,
                            control_size);
    client_t *client = self->client;
    if (is_parents(client) || !client->rk)
        return PyErr_Format(PyExc_RuntimeError, "the producer is detached, or has no plugin");
    Count *made = PyObject_GC_New(Count, count_type);
    if (!made) return NULL;
    memset(&made->handle, 0, sizeof *made - offsetof(Count, handle));
    made->handle = (Handle *)Py_NewRef((PyObject *)self);
    made->owner = Py_NewRef(owner);
    made->topics = Py_NewRef(topics);
    count_t *count = &made->count;
    count->object = (PyObject *)made;
    memcpy(count->key, txid, TXID_SIZE);
    memcpy(count->key + TXID_SIZE, control, (size_t)control_size);
    count->key_size = TXID_SIZE + (size_t)control_size;
    count_t **slot = &client->counts[slot_of(count->key, count->key_size, 0)];
    pthread_mutex_lock(&client->lock);
    count->is_listed = !find_count(client, count->key, count->key_size);
    count->born = client->refusals;
    /* What fails without a broker leaves gaps: from then on whatever is sent again is in doubt. */
    count->born_failures = client->local ? UINT64_MAX : client->failures;
    count->born_local = client->local ? UINT64_MAX : 0;
    if (count->is_listed) {
        count->next = *slot;
        *slot = count;
        client->size++;
    }
    pthread_mutex_unlock(&client->lock);
    PyObject_GC_Track((PyObject *)made);
    if (count->is_listed) return (PyObject *)made;
    Py_DECREF((PyObject *)made);
    return PyErr_Format(PyExc_ValueError, "the branch is counted already");
}

static PyObject *Handle_is_counting(Handle *self, void *Py_UNUSED(unused)) {
    return PyBool_FromLong(self->client->rk && !is_parents(self->client));
}

static PyObject *Handle_size(Handle *self, void *Py_UNUSED(unused)) {
    return PyLong_FromSize_t(self->client->size);
}

static PyObject *Handle_leaves_gaps(Handle *self, void *Py_UNUSED(unused)) {
    return PyBool_FromLong(self->client->local > 0);
}

/* Number of counts that are not retired and have taken records: these settle, and tell nobody. */
static PyObject *Handle_busy(Handle *self, void *Py_UNUSED(unused)) {
    return PyLong_FromSize_t(self->client->busy);
}

static bool lock_unless_parents(Count *self) {
    return !is_parents(self->handle->client) && !pthread_mutex_lock(&self->handle->client->lock);
}

static void unlock(Count *self) { pthread_mutex_unlock(&self->handle->client->lock); }

/* retire(): counts no more. What was counted can still be read. */
static PyObject *Count_retire(Count *self, PyObject *Py_UNUSED(none)) {
    client_t *client = self->handle->client;
    count_t *count = &self->count;
    if (!lock_unless_parents(self)) Py_RETURN_NONE;
    if (count->is_listed) {
        untell(client, count);
        count_t **at = &client->counts[slot_of(count->key, count->key_size, 0)];
        while (*at != count) at = &(*at)->next;
        *at = count->next;
        client->size--;
        if (count->admitted) client->busy--;
        if (client->last_count == count) client->last_count = NULL;
        count->is_listed = false;
    }
    unlock(self);
    Py_RETURN_NONE;
}

static int Count_traverse(Count *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->handle);
    Py_VISIT(self->topics);
    Py_VISIT(self->owner);
    return 0;
}

static void Count_dealloc(Count *self) {
    PyObject_GC_UnTrack(self);
    Py_DECREF(Count_retire(self, NULL));
    free(self->count.spans);
    Py_XDECREF(self->last_topic);
    Py_DECREF(self->topics);
    Py_DECREF(self->owner);
    Py_DECREF((PyObject *)self->handle);
    free_object(self);
}

/* ---- producing: what is refused here is tried again in Python, which raises what is due ------ */

static bool read_topic(Count *self, PyObject *topic) {
    if (topic == self->last_topic) return true;
    Py_ssize_t size;
    if (!PyUnicode_CheckExact(topic) || PyDict_Contains(self->topics, topic) != 1) return false;
    const char *name = PyUnicode_AsUTF8AndSize(topic, &size);
    if (!name || strlen(name) != (size_t)size) return false;
    PyObject *former = self->last_topic;
    self->last_topic = Py_NewRef(topic);
    self->last_name = name;
    Py_XDECREF(former);
    return true;
}

static bool read_content(PyObject *content, const char **bytes, Py_ssize_t *size) {
    *bytes = NULL;
    *size = 0;
    if (content == Py_None) return true;
    if (PyUnicode_CheckExact(content)) {
        *bytes = PyUnicode_AsUTF8AndSize(content, size);
    } else if (PyBytes_CheckExact(content)) {
        *bytes = PyBytes_AsString(content);
        *size = PyBytes_Size(content);
    }
    return *bytes;
}

static bool read_number(PyObject *number, int64_t min, int64_t max, int64_t *read) {
    if (!PyLong_CheckExact(number)) return false;
    *read = PyLong_AsLongLong(number);
    return *read >= min && *read <= max && !(*read == -1 && PyErr_Occurred());
}

/* produce(topic, value, key, partition, timestamp) -> how many it has taken, or 0: not this one. */
static PyObject *Count_produce(Count *self, PyObject *const *args, Py_ssize_t size) {
    const char *value, *key;
    Py_ssize_t value_size, key_size;
    int64_t partition, timestamp;
    client_t *client = self->handle->client;
    count_t *count = &self->count;
    if (size != 5) return PyErr_Format(PyExc_TypeError, "produce takes 5 arguments, not %zd", size);
    if (!read_topic(self, args[0]) || !read_content(args[1], &value, &value_size) ||
        !read_content(args[2], &key, &key_size) ||
        !read_number(args[3], -1, INT32_MAX, &partition) ||
        !read_number(args[4], 0, INT64_MAX, &timestamp)) {
        PyErr_Clear();
        return PyLong_FromLong(0);
    }
    /* Behind the arguments: to compare a topic's name may run Python, and another thread close. */
    rd_kafka_t *rk = client->rk;
    if (count->is_closed || !count->is_listed || !rk || is_parents(client))
        return PyLong_FromLong(0);
    ssize_t control_size = (ssize_t)(count->key_size - TXID_SIZE);
    is_producing = true;
    int error = k_producev(
        rk, V_TOPIC, self->last_name, V_PARTITION, (int32_t)partition, V_MSGFLAGS,
        (int)MSG_F_COPY, V_VALUE, (void *)value, (size_t)value_size, V_KEY, (void *)key,
        (size_t)key_size, V_TIMESTAMP, timestamp, V_HEADER, TXID, (void *)count->key,
        (ssize_t)TXID_SIZE, control_size ? V_HEADER : V_END, TXCTL,
        (void *)(count->key + TXID_SIZE), control_size, V_END);
    is_producing = false;
    if (error) return PyLong_FromLong(0);
    if (!count->admitted++) client->busy++;
    return PyLong_FromLongLong(count->admitted);
}

/* close(): takes no more records, so it settles with the report of the last one. */
static PyObject *Count_close(Count *self, PyObject *Py_UNUSED(none)) {
    if (!lock_unless_parents(self)) Py_RETURN_NONE;
    self->count.is_closed = true;
    if (self->count.reports >= self->count.admitted) tell(self->handle->client, &self->count);
    unlock(self);
    Py_RETURN_NONE;
}

/* ---- what was counted ------------------------------------------------------------------------ */

static PyObject *Count_is_settled(Count *self, void *Py_UNUSED(unused)) {
    if (!lock_unless_parents(self)) Py_RETURN_FALSE;
    bool settled = self->count.is_closed && self->count.reports >= self->count.admitted;
    unlock(self);
    return PyBool_FromLong(settled);
}

static PyObject *Count_reports(Count *self, void *Py_UNUSED(unused)) {
    if (!lock_unless_parents(self)) return PyLong_FromLong(0);
    int64_t reports = self->count.reports;
    unlock(self);
    return PyLong_FromLongLong(reports);
}

static PyObject *Count_unreported(Count *self, void *Py_UNUSED(unused)) {
    if (!lock_unless_parents(self)) return PyLong_FromLong(0);
    int64_t left = self->count.admitted - self->count.reports;
    unlock(self);
    return PyLong_FromLongLong(left > 0 ? left : 0);
}

/* failure() -> (code, topic, partition, offset) of the first record that failed, or None. */
static PyObject *Count_failure(Count *self, PyObject *Py_UNUSED(none)) {
    count_t *count = &self->count;
    if (!lock_unless_parents(self)) Py_RETURN_NONE;
    bool has_failed = count->has_failed; /* What it was is never changed. */
    unlock(self);
    if (!has_failed) Py_RETURN_NONE;
    return Py_BuildValue("isiL", count->code, count->topic, count->partition, count->offset);
}

/* doubted() -> (topic, partition) where it has records, and another record was refused since it
 * began; or None. */
static PyObject *Count_doubted(Count *self, PyObject *Py_UNUSED(none)) {
    place_t *found = NULL; /* Places live as long as the client. */
    if (!lock_unless_parents(self)) Py_RETURN_NONE;
    for (size_t i = 0; i < self->count.span_count && !found; i++)
        if (self->count.spans[i].begun < MADE_UP_MAX &&
            self->count.spans[i].place->refused > self->count.born)
            found = self->count.spans[i].place;
    unlock(self);
    if (!found) Py_RETURN_NONE;
    return Py_BuildValue("si", found->topic, found->partition);
}

/* raise_floors(): lets other branches begin above what it has seen. Not where a report was refused
 * meanwhile: the topic may have been created anew (trap 241). */
static PyObject *Count_raise_floors(Count *self, PyObject *Py_UNUSED(none)) {
    if (!lock_unless_parents(self)) Py_RETURN_NONE;
    for (size_t i = 0; i < self->count.span_count; i++) {
        span_t *span = &self->count.spans[i];
        bool is_former = span->place->refused > self->count.born;
        if (span->place->floor < span->seen && !is_former) span->place->floor = span->seen;
    }
    unlock(self);
    Py_RETURN_NONE;
}

/* spans() -> [(topic, partition, first offset, last offset, count)] of what is counted here. */
static PyObject *Count_spans(Count *self, PyObject *Py_UNUSED(none)) {
    if (!lock_unless_parents(self)) return PyList_New(0);
    size_t size = self->count.span_count;
    span_t *spans = malloc(size * sizeof *spans + 1);
    if (spans && size) memcpy(spans, self->count.spans, size * sizeof *spans);
    unlock(self);
    if (!spans) return PyErr_NoMemory();
    PyObject *list = PyList_New(0);
    for (span_t *span = spans; list && span < spans + size; span++) {
        if (!span->count) continue;
        PyObject *told = Py_BuildValue("siLLL", span->place->topic, span->place->partition,
                                       span->first, span->last, span->count);
        if (!told || PyList_Append(list, told)) Py_CLEAR(list);
        Py_XDECREF(told);
    }
    free(spans);
    return list;
}

static PyObject *Count_owner(Count *self, void *Py_UNUSED(unused)) {
    return Py_NewRef(self->owner);
}

/* ---- the module ------------------------------------------------------------------------------ */

static PyMethodDef handle_methods[] = {
    {"changed", (PyCFunction)Handle_changed, METH_NOARGS, NULL},
    {"count", (PyCFunction)Handle_count, METH_VARARGS, NULL},
    {"detach", (PyCFunction)Handle_detach, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef handle_fields[] = {
    {"busy", (getter)Handle_busy, NULL, NULL, NULL},
    {"is_counting", (getter)Handle_is_counting, NULL, NULL, NULL},
    {"leaves_gaps", (getter)Handle_leaves_gaps, NULL, NULL, NULL},
    {"size", (getter)Handle_size, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot handle_slots[] = {
    {Py_tp_new, Handle_new}, {Py_tp_dealloc, Handle_dealloc}, {Py_tp_traverse, Handle_traverse},
    {Py_tp_clear, Handle_clear}, {Py_tp_methods, handle_methods}, {Py_tp_getset, handle_fields},
    {0, NULL},
};
static PyType_Spec handle_spec = {
    NAME ".Handle", sizeof(Handle), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, handle_slots};

static PyMethodDef count_methods[] = {
    {"close", (PyCFunction)Count_close, METH_NOARGS, NULL},
    {"doubted", (PyCFunction)Count_doubted, METH_NOARGS, NULL},
    {"failure", (PyCFunction)Count_failure, METH_NOARGS, NULL},
    {"produce", (PyCFunction)(void (*)(void))Count_produce, METH_FASTCALL, NULL},
    {"raise_floors", (PyCFunction)Count_raise_floors, METH_NOARGS, NULL},
    {"retire", (PyCFunction)Count_retire, METH_NOARGS, NULL},
    {"spans", (PyCFunction)Count_spans, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef count_fields[] = {
    {"is_settled", (getter)Count_is_settled, NULL, NULL, NULL},
    {"owner", (getter)Count_owner, NULL, NULL, NULL},
    {"reports", (getter)Count_reports, NULL, NULL, NULL},
    {"unreported", (getter)Count_unreported, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot count_slots[] = {
    {Py_tp_dealloc, Count_dealloc}, {Py_tp_traverse, Count_traverse},
    {Py_tp_methods, count_methods}, {Py_tp_getset, count_fields}, {0, NULL},
};
static PyType_Spec count_spec = {
    NAME ".Count", sizeof(Count), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, count_slots};

/* Returns the library that confluent-kafka's extension, of this path, has loaded. */
void *find_library(PyObject *path) {
    const char *name = PyUnicode_AsUTF8AndSize(path, NULL);
    if (!name) return NULL;
    void *library = dlopen(name, RTLD_NOW | RTLD_NOLOAD); /* never closed again */
    if (!library) PyErr_Format(PyExc_OSError, "%s is not loaded", name);
    return library;
}

/* load(path of confluent-kafka's extension): takes librdkafka's functions from what it loaded. */
static PyObject *load(PyObject *Py_UNUSED(module), PyObject *path) {
    void *library = find_library(path);
    if (!library) return NULL;
    FUNCTIONS(FIND)
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"load", load, METH_O, NULL},
    {"load_reader", load_reader, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_extension", NULL, -1, functions, NULL, NULL, NULL, NULL};

static void note_fork(void) { generation++; }

PyMODINIT_FUNC PyInit__extension(void) {
    if (pthread_atfork(NULL, NULL, note_fork)) return PyErr_NoMemory();
    handle_type = (PyTypeObject *)PyType_FromSpec(&handle_spec);
    count_type = (PyTypeObject *)PyType_FromSpec(&count_spec);
    PyObject *module = handle_type && count_type ? PyModule_Create(&definition) : NULL;
    if (module && (PyModule_AddType(module, handle_type) || !add_reader(module) ||
                   !add_decoder(module)))
        Py_CLEAR(module);
    return module;
}
