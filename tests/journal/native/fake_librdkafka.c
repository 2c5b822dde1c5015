/* A librdkafka that reports what a test wants, with the functions that the extension takes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int err;
    const char *topic; /* in the place of its handle */
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} message_t;

typedef struct { /* producer and configuration in one */
    int (*on_conf_destroy)(void *), (*on_new)(void *, const void *, void *, char *, size_t);
    int (*on_destroy)(void *, void *), (*on_acknowledgement)(void *, message_t *, void *);
    void *client;
} fake_t;

typedef struct {
    const char *name;
    const void *value;
    size_t size;
} header_t;

static const header_t *headers; /* those of the message that is reported */
static size_t header_count;
void (*fake_hook)(void); /* called within a report, where the extension has its lock */

int rd_kafka_conf_interceptor_add_on_conf_destroy(fake_t *fake, const char *name, void *call,
                                                  void *client) {
    (void)name;
    fake->on_conf_destroy = call;
    fake->client = client;
    return 0;
}

int rd_kafka_conf_interceptor_add_on_new(fake_t *fake, const char *name, void *call, void *client) {
    (void)name, (void)client;
    fake->on_new = call;
    return 0;
}

int rd_kafka_interceptor_add_on_destroy(fake_t *fake, const char *name, void *call, void *client) {
    (void)name, (void)client;
    fake->on_destroy = call;
    return 0;
}

int rd_kafka_interceptor_add_on_acknowledgement(fake_t *fake, const char *name, void *call,
                                                void *client) {
    (void)name, (void)client;
    fake->on_acknowledgement = call;
    return 0;
}

int rd_kafka_conf_get(const fake_t *fake, const char *name, char *value, size_t *size) {
    (void)fake;
    strcpy(value, strstr(name, "max") ? "1000" : "100");
    return *size = strlen(value) + 1, 0;
}

int64_t fake_latency_us; /* of the message that is reported */

int64_t rd_kafka_message_latency(const message_t *message) {
    return (void)message, fake_latency_us;
}

int rd_kafka_type(const fake_t *fake) { return (void)fake, 0; }

const char *rd_kafka_topic_name(const char *topic) { return topic; }

int rd_kafka_message_headers(const message_t *message, void **found) {
    (void)message;
    if (fake_hook) fake_hook();
    *found = (void *)headers;
    return header_count ? 0 : -156;
}

int rd_kafka_header_get_all(const void *found, size_t at, const char **name, const void **value,
                            size_t *size) {
    (void)found;
    if (at >= header_count) return -156;
    *name = headers[at].name;
    *value = headers[at].value;
    *size = headers[at].size;
    return 0;
}

int rd_kafka_producev(fake_t *fake, ...) { return (void)fake, 0; }

/* What a test calls. */

fake_t *fake_make(int (*conf_init)(fake_t *, void **, char *, size_t)) {
    fake_t *fake = calloc(1, sizeof *fake);
    conf_init(fake, NULL, NULL, 0);
    if (fake->on_new) fake->on_new(fake, fake, fake->client, NULL, 0);
    return fake;
}

static void report(fake_t *fake, message_t message, const header_t *given, size_t count,
                   int is_pythons) {
    message.opaque = is_pythons ? &message : NULL;
    headers = given;
    header_count = count;
    fake->on_acknowledgement(fake, &message, fake->client);
}

void fake_report(fake_t *fake, const char *topic, int32_t partition, int64_t offset, int err,
                 const void *txid, const void *control, size_t control_size, int is_pythons) {
    const header_t both[] = {{"TxId", txid, 16}, {"TxCtl", control, control_size}};
    message_t message = {err, topic, partition, NULL, 0, NULL, 0, offset, NULL};
    report(fake, message, both, !txid ? 0 : control_size ? 2 : 1, is_pythons);
}

void fake_report_headers(fake_t *fake, const char *topic, int32_t partition, int64_t offset,
                         const header_t *given, size_t count, int is_pythons) {
    message_t message = {0, topic, partition, NULL, 0, NULL, 0, offset, NULL};
    report(fake, message, given, count, is_pythons);
}

void fake_destroy(fake_t *fake) {
    fake->on_destroy(fake, fake->client);
    fake->on_conf_destroy(fake->client);
    free(fake);
}
