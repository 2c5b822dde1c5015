/* Packs light messages of a partition as bytes, and makes them of these again: for the disk.
 *
 * First a row for each message, then their keys and values as they lie. What neighbours share is
 * told once, as a run; Python keeps it. Who packs also unpacks, so numbers are as this machine has
 * them. But in between they were on a disk: `unpack` checks each size.
 */
#include "librdkafka.h"

enum { NONE = -1, UNFIT = -2 }; /* sizes of a key or value that is None, and that is no bytes */

typedef struct {
    int64_t offset, timestamp;
    int32_t key_size, value_size;
} row_t;

/* ---- runs ------------------------------------------------------------------------------------ */

static Message *message_at(PyObject *messages, Py_ssize_t index) {
    return (Message *)PyList_GetItem(messages, index);
}

static bool is_light(const Message *message) {
    return Py_TYPE((PyObject *)message) == message_type && message->headers != Py_True &&
           (!message->error || message->error == Py_None);
}

/* By content: of transactions side by side, each message has headers of its own. */
static int are_alike(const Message *a, const Message *b) {
    if (a->timestamp_type != b->timestamp_type || a->epoch != b->epoch) return 0;
    PyObject *one = a->headers, *other = b->headers;
    if (one == other || !one || !other) return one == other;
    Py_INCREF(one); /* An application's may run code of its own. */
    Py_INCREF(other);
    int alike = PyObject_RichCompareBool(one, other, Py_EQ);
    Py_DECREF(one);
    Py_DECREF(other);
    return alike;
}

static bool append_run(PyObject *runs, const Message *first, Py_ssize_t length) {
    /* Held first: to make a tuple may run Python, which may give the message other headers. */
    PyObject *headers = Py_NewRef(first->headers ? first->headers : Py_None);
    PyObject *run = Py_BuildValue("Niin", headers, (int)first->timestamp_type, (int)first->epoch,
                                  length);
    bool done = run && !PyList_Append(runs, run);
    Py_XDECREF(run);
    return done;
}

typedef struct {
    PyObject *runs;
    Message *first; /* of the run that is not appended yet */
    Py_ssize_t length;
    bool has_others;
} runs_t;

static bool end_run(runs_t *found) {
    bool done = !found->length || append_run(found->runs, found->first, found->length);
    Py_XDECREF((PyObject *)found->first);
    found->first = NULL;
    found->length = 0;
    return done;
}

static bool add_to_run(runs_t *found, Message *message) {
    found->has_others = !is_light(message);
    if (found->has_others) return false;
    int alike = found->length ? are_alike(found->first, message) : 0;
    if (alike < 0 || (!alike && !end_run(found))) return false;
    if (!alike) found->first = (Message *)Py_NewRef((PyObject *)message);
    found->length++;
    return true;
}

/* packable(messages, start, count_max, bytes_max) -> [(headers, type of timestamp, leader epoch,
 * number)] of as many messages from `start` on as reach a limit; None: some are of another type or
 * have an error. */
PyObject *Message_packable(PyObject *Py_UNUSED(none), PyObject *args) {
    PyObject *messages;
    Py_ssize_t at, count_max;
    long long bytes_max, bytes = 0;
    if (!PyArg_ParseTuple(args, "O!nnL", &PyList_Type, &messages, &at, &count_max, &bytes_max))
        return NULL;
    runs_t found = {PyList_New(0), NULL, 0, false};
    bool is_fine = found.runs;
    for (; is_fine && at < PyList_Size(messages) && count_max > 0 && bytes < bytes_max; at++) {
        Message *message = (Message *)Py_XNewRef(PyList_GetItem(messages, at));
        is_fine = message && add_to_run(&found, message);
        if (is_fine) bytes += message->content_size;
        Py_XDECREF((PyObject *)message);
        count_max--;
    }
    is_fine = is_fine && end_run(&found);
    Py_XDECREF((PyObject *)found.first);
    if (is_fine) return found.runs;
    Py_XDECREF(found.runs);
    return found.has_others ? Py_NewRef(Py_None) : NULL;
}

/* ---- packing --------------------------------------------------------------------------------- */

static Py_ssize_t size_of(PyObject *content) {
    if (!content || content == Py_None) return NONE;
    Py_ssize_t size = PyBytes_CheckExact(content) ? PyBytes_Size(content) : UNFIT;
    return size > INT32_MAX ? UNFIT : size;
}

static char *put(char *to, PyObject *content, int32_t size) {
    if (size <= 0) return to;
    memcpy(to, PyBytes_AsString(content), (size_t)size);
    return to + size;
}

/* Returns the bytes of rows, keys and values; `UNFIT`: some can't be packed. */
static Py_ssize_t measure(PyObject *messages, Py_ssize_t start, Py_ssize_t stop) {
    Py_ssize_t bytes = (stop - start) * (Py_ssize_t)sizeof(row_t);
    for (Py_ssize_t i = start; i < stop; i++) {
        const Message *message = message_at(messages, i);
        if (!is_light(message)) return UNFIT;
        Py_ssize_t key = size_of(message->key), value = size_of(message->value);
        if (key == UNFIT || value == UNFIT) return UNFIT;
        bytes += (key > 0 ? key : 0) + (value > 0 ? value : 0);
    }
    return bytes;
}

/* pack(front, messages, start, count) -> bytes, which begin with `front`; None: some of the
 * messages are of another type, or have an error, or a key or value that is no bytes. */
PyObject *Message_pack(PyObject *Py_UNUSED(none), PyObject *args) {
    PyObject *messages, *made;
    const char *front;
    Py_ssize_t front_size, start, count;
    if (!PyArg_ParseTuple(args, "y#O!nn", &front, &front_size, &PyList_Type, &messages, &start,
                          &count))
        return NULL;
    if (start < 0 || count < 0 || count > PyList_Size(messages) - start)
        return PyErr_Format(PyExc_IndexError, "there are not so many messages");
    Py_ssize_t bytes = measure(messages, start, start + count);
    if (bytes == UNFIT) Py_RETURN_NONE;
    /* This runs no code of Python's, so what was measured is what is copied. */
    if (!(made = PyBytes_FromStringAndSize(NULL, front_size + bytes))) return NULL;
    char *row_at = PyBytes_AsString(made) + front_size;
    char *to = row_at + count * (Py_ssize_t)sizeof(row_t);
    memcpy(PyBytes_AsString(made), front, (size_t)front_size);
    for (Py_ssize_t i = 0; i < count; i++, row_at += sizeof(row_t)) {
        const Message *message = message_at(messages, start + i);
        row_t row = {message->offset, message->timestamp, (int32_t)size_of(message->key),
                     (int32_t)size_of(message->value)};
        memcpy(row_at, &row, sizeof row); /* It need not be aligned. */
        to = put(put(to, message->key, row.key_size), message->value, row.value_size);
    }
    return made;
}

/* ---- unpacking ------------------------------------------------------------------------------- */

typedef struct {
    const char *row, *rows_end, *content, *end;
    PyObject *topic, *made;
    int partition;
    Py_ssize_t count;
} packed_t;

/* Takes a key or value. Returns false if there are fewer bytes. */
static bool take(packed_t *packed, int32_t size, PyObject **made) {
    if (size == NONE) return true;
    if (size < 0 || size > packed->end - packed->content) return false;
    *made = PyBytes_FromStringAndSize(packed->content, size);
    packed->content += size;
    return *made;
}

static bool unpack_one(packed_t *packed, PyObject *headers, int kind, int epoch) {
    if (packed->row == packed->rows_end) return false;
    row_t row;
    memcpy(&row, packed->row, sizeof row);
    packed->row += sizeof row;
    Message *made = PyObject_New(Message, message_type);
    if (!made) return false;
    made->topic = Py_NewRef(packed->topic);
    made->headers = headers == Py_None ? NULL : Py_NewRef(headers);
    made->key = made->value = made->error = NULL;
    made->offset = row.offset;
    made->timestamp = row.timestamp;
    made->partition = packed->partition;
    made->epoch = epoch;
    made->timestamp_type = kind;
    const char *before = packed->content;
    bool is_fine = take(packed, row.key_size, &made->key) &&
                   take(packed, row.value_size, &made->value);
    made->content_size = packed->content - before;
    PyList_SetItem(packed->made, packed->count++, (PyObject *)made);
    return is_fine;
}

static bool unpack_run(packed_t *packed, PyObject *run) {
    PyObject *headers;
    int kind, epoch;
    Py_ssize_t count;
    if (!PyTuple_Check(run) || !PyArg_ParseTuple(run, "Oiin", &headers, &kind, &epoch, &count))
        return false;
    for (; count > 0; count--)
        if (!unpack_one(packed, headers, kind, epoch)) return false;
    return !count;
}

/* unpack(bytes, front size, topic, partition, runs, count) -> messages. ValueError: they were not
 * packed so. */
PyObject *Message_unpack(PyObject *Py_UNUSED(none), PyObject *args) {
    const char *bytes;
    Py_ssize_t size, front_size, count;
    PyObject *runs;
    packed_t packed = {0};
    if (!PyArg_ParseTuple(args, "y#nUiO!n", &bytes, &size, &front_size, &packed.topic,
                          &packed.partition, &PyList_Type, &runs, &count))
        return NULL;
    bool is_fine = front_size >= 0 && front_size <= size && count >= 0 &&
                   count <= (size - front_size) / (Py_ssize_t)sizeof(row_t);
    if (is_fine) {
        packed.row = bytes + front_size;
        packed.rows_end = packed.content = packed.row + count * sizeof(row_t);
        packed.end = bytes + size;
        if (!(packed.made = PyList_New(count))) return NULL;
    }
    for (Py_ssize_t i = 0; is_fine && i < PyList_Size(runs); i++)
        is_fine = unpack_run(&packed, PyList_GetItem(runs, i));
    if (is_fine && packed.count == count && packed.content == packed.end) return packed.made;
    Py_XDECREF(packed.made);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the bytes are no packed messages");
    return NULL;
}
