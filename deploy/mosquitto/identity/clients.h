/* What the plugin knows of connected clients: who has sent a request over its present connection, and which notifications it subscribed. */
#ifndef HOLDFAST_CLIENTS_H
#define HOLDFAST_CLIENTS_H

#include <stdbool.h>
#include <stdint.h>

#define CLIENT_BUCKETS 8192
/* A client with more filters for its notifications gets copies instead, which costs the broker more and the client nothing. */
#define CLIENT_FILTERS 16

struct client_filter {
	uint64_t hash;
	bool all; /* it matches every notification of the client */
};

struct mosquitto;

struct client {
	char *id;
	struct client *next;
	const struct mosquitto *connection; /* only compared: the broker refuses logins under the ids of others, and says that those disconnect */
	uint64_t copied_in; /* the latest round in which a copy for the client was queued */
	int filter_count;
	struct client_filter filters[CLIENT_FILTERS];
};

/* clients holds one entry for each connected client that has sent a request or subscribed to its notifications: no more than connections. */
struct clients {
	struct client *buckets[CLIENT_BUCKETS];
	uint64_t round; /* counts the rounds of the broker's main loop, from 1 on */
	uint64_t removed_in; /* the latest round in which a client was removed that had copies of that round */
};

/* clients_find returns a client, or NULL. */
struct client *clients_find(struct clients *clients, const char *id);

/* clients_add returns the client of a connection, or NULL without memory. A client that has another connection now begins anew. */
struct client *clients_add(struct clients *clients, const char *id, const struct mosquitto *connection);

/* clients_has_copies reports whether copies of this round may wait for a client, which is NULL when it is not known (any more). */
bool clients_has_copies(const struct clients *clients, const struct client *client);

/* clients_remove removes a client when the connection is its own. */
void clients_remove(struct clients *clients, const char *id, const struct mosquitto *connection);
void clients_free(struct clients *clients);

/* client_subscribe and client_unsubscribe take note of a filter below the client's own notification topic. */
void client_subscribe(struct client *client, const char *filter);
void client_unsubscribe(struct client *client, const char *filter);

/* client_is_subscribed reports whether the broker itself delivers a notification topic to the client. It may say false where a filter with
 * wildcards in unusual places matches; then the client gets a copy instead of the broker's own delivery. */
bool client_is_subscribed(const struct client *client, const char *topic);

#endif
