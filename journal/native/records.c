/* Decodes records by plans that Python gives: `records.py` says what a plan is, and which records
 * of the journal have one. The format is Avro's, see `journal/records/fast_reader.py`.
 *
 * Whatever is odd about some bytes, `Decoder.decode` returns None, and Python decodes them: it has
 * the rules for what is rare, and the errors. So nothing is refused here, and what is accepted has
 * one form: an array in one block, a number in 64 bits, a boolean of 0 or 1.
 */
#include "librdkafka.h"

enum { VERSIONS = 32, TYPES = 32, DEPTH_MAX = 16 };

typedef struct node_s {
    char kind;        /* see `read_node` */
    Py_ssize_t count; /* of its parts */
    PyObject *what;   /* a class, a constant or a function; NULL: none */
    PyObject *field;  /* descriptor that sets it in the object that it is a part of; NULL: none */
    descrsetfunc set; /* of the descriptor */
    struct node_s *parts;
} node_t;

typedef struct {
    PyObject *raw;
    const unsigned char *at, *end;
} cursor_t;

typedef struct {
    PyObject_HEAD
    node_t *plans[VERSIONS][TYPES]; /* by the first two bytes; NULL: Python decodes these */
} Decoder;

/* ---- reading --------------------------------------------------------------------------------- */

static PyObject *read_node(const node_t *node, cursor_t *cursor);

/* Each returns false, without an exception, for bytes that are left to Python. */
static bool read_number(cursor_t *cursor, int64_t *number) {
    uint64_t value = 0;
    for (int shift = 0; cursor->at < cursor->end && shift < 70; shift += 7) {
        unsigned char byte = *cursor->at++;
        if (shift == 63 && byte > 1) return false;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte > 127) continue;
        *number = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
        return true;
    }
    return false;
}

/* Reads a number of things that take a byte each, or more. */
static bool read_count(cursor_t *cursor, Py_ssize_t *count) {
    int64_t number;
    if (!read_number(cursor, &number) || number < 0 || number > cursor->end - cursor->at)
        return false;
    *count = (Py_ssize_t)number;
    return true;
}

static PyObject *read_long(cursor_t *cursor) {
    int64_t number;
    return read_number(cursor, &number) ? PyLong_FromLongLong(number) : NULL;
}

static PyObject *read_string(cursor_t *cursor) {
    Py_ssize_t size;
    if (!read_count(cursor, &size)) return NULL;
    const char *text = (const char *)cursor->at;
    cursor->at += size;
    return PyUnicode_DecodeUTF8(text, size, NULL);
}

static PyObject *read_boolean(cursor_t *cursor) {
    if (cursor->at == cursor->end || *cursor->at > 1) return NULL;
    return PyBool_FromLong(*cursor->at++);
}

/* All that is left, by a function of its bytes; () for an empty array. */
static PyObject *read_rest(const node_t *node, cursor_t *cursor) {
    Py_ssize_t size = cursor->end - cursor->at;
    const char *rest = (const char *)cursor->at;
    cursor->at = cursor->end;
    if (size == 1 && !*rest) return PyTuple_New(0);
    PyObject *bytes = PyBytes_FromStringAndSize(rest, size);
    PyObject *found = bytes ? PyObject_CallFunctionObjArgs(node->what, bytes, NULL) : NULL;
    Py_XDECREF(bytes);
    return found;
}

/* What `Lazy.unread` says of all that is left. */
static PyObject *leave_unread(const node_t *node, cursor_t *cursor) {
    Py_ssize_t at = (const char *)cursor->at - PyBytes_AsString(cursor->raw);
    cursor->at = cursor->end;
    return Py_BuildValue("OOn", node->what, cursor->raw, at);
}

static PyObject *read_object(const node_t *node, cursor_t *cursor) {
    PyObject *made = PyType_GenericAlloc((PyTypeObject *)node->what, 0);
    for (Py_ssize_t i = 0; made && i < node->count; i++) {
        const node_t *part = node->parts + i;
        PyObject *value = read_node(part, cursor);
        if (!value || part->set(part->field, made, value)) Py_CLEAR(made);
        Py_XDECREF(value);
    }
    return made;
}

/* Puts what its parts read, or its one part again and again, into a new tuple. */
static PyObject *fill(PyObject *made, const node_t *node, Py_ssize_t count, cursor_t *cursor) {
    for (Py_ssize_t i = 0; made && i < count; i++) {
        PyObject *value = read_node(node->parts + (node->count > 1 ? i : 0), cursor);
        if (!value || PyTuple_SetItem(made, i, value)) Py_CLEAR(made);
    }
    return made;
}

static PyObject *read_tuple(const node_t *node, cursor_t *cursor) {
    PyObject *made = node->what ? PyType_GenericAlloc((PyTypeObject *)node->what, node->count)
                                : PyTuple_New(node->count);
    return fill(made, node, node->count, cursor);
}

/* Reads the end of an array: the block that has nothing in it. */
static bool is_closed(cursor_t *cursor) {
    return cursor->at < cursor->end && !*cursor->at++;
}

static PyObject *read_array(const node_t *node, cursor_t *cursor) {
    Py_ssize_t count;
    if (!read_count(cursor, &count)) return NULL;
    if (!count) return PyTuple_New(0);
    PyObject *made = fill(PyTuple_New(count), node, count, cursor);
    if (made && !is_closed(cursor)) Py_CLEAR(made);
    return made;
}

/* An array of keys with their values, as a dict. */
static PyObject *read_map(const node_t *node, cursor_t *cursor) {
    Py_ssize_t count;
    if (!read_count(cursor, &count)) return NULL;
    PyObject *made = PyDict_New();
    for (Py_ssize_t i = 0; made && i < count; i++) {
        PyObject *key = read_node(node->parts, cursor);
        PyObject *value = key ? read_node(node->parts + 1, cursor) : NULL;
        if (!value || PyDict_SetItem(made, key, value)) Py_CLEAR(made);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    if (made && count && !is_closed(cursor)) Py_CLEAR(made);
    return made;
}

/* A union's second type. */
static PyObject *read_second(const node_t *node, cursor_t *cursor) {
    int64_t branch;
    return read_number(cursor, &branch) && branch == 1 ? read_node(node->parts, cursor) : NULL;
}

static PyObject *read_converted(const node_t *node, cursor_t *cursor) {
    PyObject *value = read_node(node->parts, cursor);
    PyObject *made = value ? PyObject_CallFunctionObjArgs(node->what, value, NULL) : NULL;
    Py_XDECREF(value);
    return made;
}

/* Returns NULL for what is left to Python, with or without an exception. */
static PyObject *read_node(const node_t *node, cursor_t *cursor) {
    switch (node->kind) {
    case 'l': return read_long(cursor);
    case 's': return read_string(cursor);
    case 'b': return read_boolean(cursor);
    case '=': return Py_NewRef(node->what);
    case 'r': return read_rest(node, cursor);
    case 'u': return leave_unread(node, cursor);
    case 'o': return read_object(node, cursor);
    case 't': return read_tuple(node, cursor);
    case 'a': return read_array(node, cursor);
    case 'm': return read_map(node, cursor);
    case '2': return read_second(node, cursor);
    case 'c': return read_converted(node, cursor);
    /* An array that is empty. */
    default: return is_closed(cursor) ? PyTuple_New(0) : NULL;
    }
}

static PyObject *Decoder_decode(Decoder *self, PyObject *raw) {
    cursor_t cursor = {.raw = raw};
    if (!PyBytes_CheckExact(raw) || PyBytes_Size(raw) < 2) Py_RETURN_NONE;
    cursor.at = (const unsigned char *)PyBytes_AsString(raw);
    cursor.end = cursor.at + PyBytes_Size(raw);
    unsigned char version = *cursor.at++, type = *cursor.at++;
    const node_t *plan = version < VERSIONS && type < TYPES ? self->plans[version][type] : NULL;
    if (!plan) Py_RETURN_NONE;
    PyObject *made = read_node(plan, &cursor);
    if (made && cursor.at == cursor.end) return made;
    Py_XDECREF(made);
    if (PyErr_Occurred()) {
        /* Python meets it again, and says what it means. */
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
        PyErr_Clear();
    }
    Py_RETURN_NONE;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void drop(node_t *node) {
    for (Py_ssize_t i = 0; i < node->count; i++) drop(node->parts + i);
    free(node->parts);
    Py_XDECREF(node->what);
    Py_XDECREF(node->field);
}

/* Finds how a part is set in an object of this class. */
static bool find_field(node_t *node, PyObject *class, PyObject *name) {
    node->field = PyObject_GetAttr(class, name);
    if (node->field)
        node->set = (descrsetfunc)PyType_GetSlot(Py_TYPE(node->field), Py_tp_descr_set);
    return node->set;
}

static bool is_class(PyObject *what, PyTypeObject *of) {
    return what && PyType_Check(what) && PyType_IsSubtype((PyTypeObject *)what, of);
}

static bool is_sound(const node_t *node) {
    switch (node->kind) {
    case 'o': return is_class(node->what, &PyBaseObject_Type);
    case 't': return !node->what || is_class(node->what, &PyTuple_Type);
    case 'r':
    case 'u': return node->what;
    case 'a':
    case '2': return node->count == 1;
    case 'c': return node->what && node->count == 1;
    case 'm': return node->count == 2;
    default: return node->kind == '=' ? node->what != NULL : node->kind && strchr("lsb0", node->kind);
    }
}

/* Takes over a plan: (kind, what, parts, name). `drop` frees what is in the node, also if it fails.
 *
 * Args: class: of the object that it is a part of; NULL: of none. */
static bool take(node_t *node, PyObject *plan, PyObject *class, int depth) {
    PyObject *what, *parts, *name;
    int kind;
    if (!PyTuple_Check(plan) ||
        !PyArg_ParseTuple(plan, "C" "OO!O", &kind, &what, &PyTuple_Type, &parts, &name))
        return false;
    Py_ssize_t count = PyTuple_Size(parts);
    node->kind = kind < 128 ? (char)kind : 0;
    node->what = what != Py_None || kind == '=' ? Py_NewRef(what) : NULL;
    node->parts = calloc((size_t)count + 1, sizeof *node->parts);
    if (!node->parts || depth == DEPTH_MAX || (class && !find_field(node, class, name)))
        return false;
    while (node->count < count) {
        PyObject *part = PyTuple_GetItem(parts, node->count);
        if (!take(node->parts + node->count++, part, kind == 'o' ? what : NULL, depth + 1))
            return false;
    }
    return is_sound(node);
}

static bool take_all(Decoder *self, PyObject *plans) {
    for (Py_ssize_t i = 0, count = PyTuple_Size(plans); i < count; i++) {
        PyObject *each = PyTuple_GetItem(plans, i), *plan;
        unsigned char version, type;
        if (!PyTuple_Check(each) || !PyArg_ParseTuple(each, "bbO", &version, &type, &plan))
            return false;
        if (version >= VERSIONS || type >= TYPES || self->plans[version][type]) return false;
        node_t *node = self->plans[version][type] = calloc(1, sizeof *node);
        if (!node || !take(node, plan, NULL, 0)) return false;
    }
    return true;
}

static void Decoder_dealloc(Decoder *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    for (node_t **plan = *self->plans; plan < *self->plans + VERSIONS * TYPES; plan++) {
        if (*plan) drop(*plan);
        free(*plan);
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Decoder(plans), a tuple of (version, type, plan). */
static PyObject *Decoder_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *plans;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &plans)) return NULL;
    Decoder *self = (Decoder *)PyType_GenericAlloc(type, 0);
    if (!self || take_all(self, plans)) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "this is no plan");
}

static PyMethodDef decoder_methods[] = {
    {"decode", (PyCFunction)Decoder_decode, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot decoder_slots[] = {
    {Py_tp_new, Decoder_new}, {Py_tp_dealloc, Decoder_dealloc}, {Py_tp_methods, decoder_methods},
    {0, NULL},
};
static PyType_Spec decoder_spec = {NAME ".Decoder", sizeof(Decoder), 0, Py_TPFLAGS_DEFAULT,
                                   decoder_slots};

bool add_decoder(PyObject *module) {
    PyObject *type = PyType_FromSpec(&decoder_spec);
    return type && !PyModule_AddType(module, (PyTypeObject *)type);
}
