/* What the parts of the extension share: the producer's, extension.c, the consumer's, reader.c,
 * columns.c and arena.c, and the journal's, records.c. */
#ifndef LOGTX_LIBRDKAFKA_H
#define LOGTX_LIBRDKAFKA_H
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- librdkafka's public API: a stable ABI, whose header is in no wheel ---------------------- */

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

enum { V_END = 0, V_TOPIC = 1, V_PARTITION = 3, V_VALUE = 4, V_KEY = 5, V_MSGFLAGS = 7 };
enum { V_TIMESTAMP = 8, V_HEADER = 9 };
enum { MSG_F_COPY = 2, RD_KAFKA_PRODUCER = 0, RD_KAFKA_CONSUMER = 1 };

typedef int on_conf_destroy_t(void *);
typedef int on_new_t(rd_kafka_t *, const rd_kafka_conf_t *, void *, char *, size_t);
typedef int on_destroy_t(rd_kafka_t *, void *);
typedef int on_acknowledgement_t(rd_kafka_t *, rd_kafka_message_t *, void *);
typedef void on_event_t(rd_kafka_t *, void *);
typedef void error_cb_t(rd_kafka_t *, int, const char *, void *);

/* Each part has a table `FUNCTIONS(X)` of those that it calls, of which the name is used without
 * rd_kafka_. So who lacks one that only the other part calls goes without that part alone. */
#define DECLARE(result, name, arguments) static result(*k_##name) arguments;
#define FIND(result, name, arguments)                                                              \
    k_##name = (__typeof__(k_##name))dlsym(library, "rd_kafka_" #name);                            \
    if (!k_##name) return PyErr_Format(PyExc_OSError, "there is no rd_kafka_" #name);

#define NAME "logtx"
#define HIDDEN __attribute__((visibility("hidden")))

/* ---- what the parts give each other ---------------------------------------------------------- */

extern HIDDEN atomic_uint generation; /* how many forks lead to this process */

typedef struct { /* a record of its own memory */
    PyObject_HEAD
    PyObject *topic;
    PyObject *key, *value, *error; /* NULL: none */
    PyObject *headers;             /* a tuple of pairs, shared with neighbours, until asked for */
    int64_t offset, timestamp, content_size;
    int32_t partition, epoch, timestamp_type;
} Message;
extern HIDDEN PyTypeObject *message_type;

HIDDEN PyObject *Message_columns(PyObject *none, PyObject *args);
HIDDEN PyObject *Message_pack(PyObject *none, PyObject *args);
HIDDEN PyObject *Message_packable(PyObject *none, PyObject *args);
HIDDEN PyObject *Message_unpack(PyObject *none, PyObject *args);
HIDDEN void *find_library(PyObject *path);
HIDDEN bool expects_reader(void);
HIDDEN int begin_reader(rd_kafka_conf_t *conf);
HIDDEN PyObject *load_reader(PyObject *module, PyObject *args);
HIDDEN bool add_reader(PyObject *module);
HIDDEN bool add_decoder(PyObject *module);

#endif
