#include "clients.h"

#include <string.h>

#include "broker.h"
#include "topics.h"

/* hash is FNV-1a with 64 bits. A client that finds two filters of one hash only confuses its own notifications. */
static uint64_t hash(const char *text)
{
	uint64_t sum = 14695981039346656037ULL;

	for(const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++){
		sum = (sum ^ *c) * 1099511628211ULL;
	}
	return sum;
}

/* slot returns the pointer that points to a client, or that would. */
static struct client **slot(struct clients *clients, const char *id)
{
	struct client **at = &clients->buckets[hash(id) % CLIENT_BUCKETS];

	while(*at != NULL && strcmp((*at)->id, id) != 0){
		at = &(*at)->next;
	}
	return at;
}

struct client *clients_find(struct clients *clients, const char *id)
{
	return *slot(clients, id);
}

struct client *clients_add(struct clients *clients, const char *id, const struct mosquitto *connection)
{
	struct client **at = slot(clients, id);
	struct client *added = *at;

	if(added != NULL){
		if(added->connection != connection){ /* the copies of this round stay before what follows */
			added->connection = connection;
			added->filter_count = 0;
		}
		return added;
	}
	added = mosquitto_calloc(1, sizeof(*added));
	if(added == NULL || (added->id = mosquitto_strdup(id)) == NULL){
		mosquitto_free(added);
		return NULL;
	}
	added->connection = connection;
	*at = added;
	return added;
}

static void remove_at(struct client **at)
{
	struct client *removed = *at;

	*at = removed->next;
	mosquitto_free(removed->id);
	mosquitto_free(removed);
}

void clients_remove(struct clients *clients, const char *id, const struct mosquitto *connection)
{
	struct client **at = slot(clients, id);

	if(*at != NULL && (*at)->connection == connection){
		if((*at)->copied_in == clients->round){
			clients->removed_in = clients->round;
		}
		remove_at(at);
	}
}

bool clients_has_copies(const struct clients *clients, const struct client *client)
{
	return clients->removed_in == clients->round || (client != NULL && client->copied_in == clients->round);
}

void clients_free(struct clients *clients)
{
	for(int i = 0; i < CLIENT_BUCKETS; i++){
		while(clients->buckets[i] != NULL){
			remove_at(&clients->buckets[i]);
		}
	}
}

void client_subscribe(struct client *client, const char *filter)
{
	client_unsubscribe(client, filter);
	if(client->filter_count < CLIENT_FILTERS){
		client->filters[client->filter_count++] = (struct client_filter){.hash = hash(filter), .all = matches_all_notifications(filter)};
	}
}

void client_unsubscribe(struct client *client, const char *filter)
{
	uint64_t sum = hash(filter);

	for(int i = 0; i < client->filter_count; i++){
		if(client->filters[i].hash == sum){
			client->filters[i] = client->filters[--client->filter_count];
			return;
		}
	}
}

bool client_is_subscribed(const struct client *client, const char *topic)
{
	uint64_t sum = hash(topic);

	for(int i = 0; i < client->filter_count; i++){
		if(client->filters[i].all || client->filters[i].hash == sum){
			return true;
		}
	}
	return false;
}
