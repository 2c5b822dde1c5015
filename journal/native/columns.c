/* Makes columns of light messages: the buffers of Arrow's arrays, without an object per message.
 *
 * What neighbours share is told once, as a run; what it means is for Python to say.
 */
#include "librdkafka.h"

typedef struct { /* keys, or values */
    PyObject *validity, *ends, *data; /* bytes; no validity: none is missing */
    Py_ssize_t missing;
    int64_t size;
    unsigned char *bits;
    int32_t *end;
    char *at;
} binary_t;

typedef struct {
    binary_t keys, values;
    PyObject *offsets, *timestamps, *runs;
} columns_t;

static const Message *message_at(PyObject *messages, Py_ssize_t index) {
    return (const Message *)PyTuple_GetItem(messages, index);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static bool measure(binary_t *column, PyObject *content) {
    if (!content || content == Py_None) column->missing++;
    else if (PyBytes_CheckExact(content)) column->size += PyBytes_Size(content);
    else return false;
    return true;
}

/* Whether columns can be made: all messages are as they were read, and fit. */
static bool measure_all(columns_t *columns, PyObject *messages, long long bytes_max) {
    for (Py_ssize_t i = 0, count = PyTuple_Size(messages); i < count; i++) {
        const Message *message = message_at(messages, i);
        if (Py_TYPE((PyObject *)message) != message_type) return false;
        if (message->error && message->error != Py_None) return false;
        PyObject *headers = message->headers;
        if (headers && headers != Py_None && !PyTuple_CheckExact(headers) &&
            !PyList_CheckExact(headers))
            return false;
        if (!measure(&columns->keys, message->key) || !measure(&columns->values, message->value))
            return false;
    }
    if (bytes_max > INT32_MAX) bytes_max = INT32_MAX;
    return columns->keys.size <= bytes_max && columns->values.size <= bytes_max;
}

/* ---- copying --------------------------------------------------------------------------------- */

static void *new_bytes(PyObject **made, int64_t size) {
    *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    return *made ? PyBytes_AsString(*made) : NULL;
}

static bool allocate(binary_t *column, Py_ssize_t count) {
    column->end = new_bytes(&column->ends, (count + 1) * (int64_t)sizeof *column->end);
    column->at = new_bytes(&column->data, column->size);
    if (!column->end || !column->at) return false;
    *column->end = 0;
    if (!column->missing) return true;
    column->bits = new_bytes(&column->validity, (count + 7) / 8);
    if (column->bits) memset(column->bits, 0, (size_t)(count + 7) / 8);
    return column->bits;
}

static void append(binary_t *column, Py_ssize_t index, PyObject *content) {
    char *bytes;
    Py_ssize_t size = 0;
    if (content && content != Py_None) {
        PyBytes_AsStringAndSize(content, &bytes, &size);
        memcpy(column->at, bytes, (size_t)size);
        column->at += size;
        if (column->bits) column->bits[index / 8] |= (unsigned char)(1 << index % 8);
    }
    column->end[1] = column->end[0] + (int32_t)size;
    column->end++;
}

static bool copy_all(columns_t *columns, PyObject *messages) {
    Py_ssize_t count = PyTuple_Size(messages);
    int64_t *offsets = new_bytes(&columns->offsets, count * (int64_t)sizeof *offsets);
    int64_t *timestamps = new_bytes(&columns->timestamps, count * (int64_t)sizeof *timestamps);
    if (!offsets || !timestamps || !allocate(&columns->keys, count) ||
        !allocate(&columns->values, count))
        return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        const Message *message = message_at(messages, i);
        offsets[i] = message->offset;
        timestamps[i] = message->timestamp;
        append(&columns->keys, i, message->key);
        append(&columns->values, i, message->value);
    }
    return true;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* A message makes a list of its headers when it is asked for them, of the same pairs. */
static bool have_same_headers(const Message *a, const Message *b) {
    PyObject *one = a->headers, *other = b->headers;
    if (one == other) return true;
    if (!one || !other || !PyList_CheckExact(one) || !PyList_CheckExact(other)) return false;
    Py_ssize_t size = PyList_Size(one);
    if (PyList_Size(other) != size) return false;
    for (Py_ssize_t i = 0; i < size; i++)
        if (PyList_GetItem(one, i) != PyList_GetItem(other, i)) return false;
    return true;
}

static bool are_alike(const Message *a, const Message *b) {
    return a->topic == b->topic && a->partition == b->partition &&
           a->timestamp_type == b->timestamp_type && have_same_headers(a, b);
}

static bool append_run(PyObject *runs, const Message *first, Py_ssize_t length) {
    /* Held first: to make a tuple may run Python, which may give the message other headers. */
    PyObject *headers = Py_NewRef(first->headers ? first->headers : Py_None);
    PyObject *run = Py_BuildValue("OiiNn", first->topic, (int)first->partition,
                                  (int)first->timestamp_type, headers, length);
    bool done = run && !PyList_Append(runs, run);
    Py_XDECREF(run);
    return done;
}

static bool find_runs(columns_t *columns, PyObject *messages) {
    Py_ssize_t count = PyTuple_Size(messages), start = 0;
    columns->runs = PyList_New(0);
    if (!columns->runs) return false;
    for (Py_ssize_t i = 1; i <= count; i++) {
        const Message *first = message_at(messages, start);
        if (i < count && are_alike(first, message_at(messages, i))) continue;
        if (!append_run(columns->runs, first, i - start)) return false;
        start = i;
    }
    return true;
}

/* ---- for Python ------------------------------------------------------------------------------ */

static PyObject *told(const binary_t *column) {
    PyObject *validity = column->validity ? column->validity : Py_None;
    return Py_BuildValue("OOOn", validity, column->ends, column->data, column->missing);
}

static PyObject *all_told(const columns_t *columns) {
    PyObject *keys = told(&columns->keys), *values = told(&columns->values), *found = NULL;
    if (keys && values)
        found = PyTuple_Pack(5, keys, values, columns->offsets, columns->timestamps, columns->runs);
    Py_XDECREF(keys);
    Py_XDECREF(values);
    return found;
}

static void release(binary_t *column) {
    Py_XDECREF(column->validity);
    Py_XDECREF(column->ends);
    Py_XDECREF(column->data);
}

/* columns(messages, bytes_max) -> (keys, values, offsets, timestamps, runs); None: some are of
 * another type or have an error, or there are more bytes of keys or values. */
PyObject *Message_columns(PyObject *Py_UNUSED(none), PyObject *args) {
    PyObject *list;
    long long bytes_max;
    if (!PyArg_ParseTuple(args, "O!L", &PyList_Type, &list, &bytes_max)) return NULL;
    /* Nobody changes this one: to make what is returned may run any finalizer. */
    PyObject *messages = PyList_AsTuple(list);
    if (!messages) return NULL;
    columns_t columns = {0};
    PyObject *found = NULL;
    if (!measure_all(&columns, messages, bytes_max)) found = Py_NewRef(Py_None);
    else if (copy_all(&columns, messages) && find_runs(&columns, messages))
        found = all_told(&columns);
    release(&columns.keys);
    release(&columns.values);
    Py_XDECREF(columns.offsets);
    Py_XDECREF(columns.timestamps);
    Py_XDECREF(columns.runs);
    Py_DECREF(messages);
    return found;
}
