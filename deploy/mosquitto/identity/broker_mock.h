/* What the broker provides to the plugin, for tests without a broker, but for the lists of properties, which are libmosquitto's. */
#ifndef HOLDFAST_BROKER_MOCK_H
#define HOLDFAST_BROKER_MOCK_H

#include "holdfast_identity.c"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct mosquitto {
	const char *id, *username;
};

/* connections are those of all clients, the latest of each id counts. A place is used again much later. */
#define MAX_CONNECTIONS 512
static struct mosquitto connections[MAX_CONNECTIONS];
static unsigned connection_count;

/* reconnect gives a client another connection. */
static struct mosquitto *reconnect(const char *client_id)
{
	struct mosquitto *connection;

	for(int i = 0; i < MAX_CONNECTIONS; i++){
		if(connections[i].id != NULL && strcmp(connections[i].id, client_id) == 0){
			connections[i].id = NULL;
		}
	}
	connection = &connections[connection_count++ % MAX_CONNECTIONS];
	connection->id = client_id;
	return connection;
}

static struct mosquitto *connection_of(const char *client_id, const char *username)
{
	struct mosquitto *connection = NULL;

	for(int i = 0; i < MAX_CONNECTIONS && connection == NULL; i++){
		if(connections[i].id != NULL && strcmp(connections[i].id, client_id) == 0){
			connection = &connections[i];
		}
	}
	if(connection == NULL){
		connection = reconnect(client_id);
	}
	connection->username = username;
	return connection;
}

static MOSQ_FUNC_generic_callback callbacks[32];
static void *plugin_data;
static int failures;

/* copies are the messages that the plugin queued for single clients, in order. */
#define MAX_COPIES 256
struct copy {
	char *client_id, *topic, *payload;
	mosquitto_property *properties;
};
static struct copy copies[MAX_COPIES];
static int copy_count;

#define CHECK(condition) do{ if(!(condition)){ failures++; fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); } }while(0)

const char *mosquitto_client_id(const struct mosquitto *client) { return client->id; }
const char *mosquitto_client_username(const struct mosquitto *client) { return client->username; }
void *mosquitto_calloc(size_t count, size_t size) { return calloc(count, size); }
void mosquitto_free(void *memory) { free(memory); }
char *mosquitto_strdup(const char *text) { return strdup(text); }
void mosquitto_log_printf(int level, const char *format, ...) { (void)level; (void)format; }

int mosquitto_callback_register(mosquitto_plugin_id_t *id, int event, MOSQ_FUNC_generic_callback callback, const void *data, void *userdata)
{
	(void)id;
	(void)data;
	callbacks[event] = callback;
	plugin_data = userdata;
	return MOSQ_ERR_SUCCESS;
}

int mosquitto_callback_unregister(mosquitto_plugin_id_t *id, int event, MOSQ_FUNC_generic_callback callback, const void *data)
{
	(void)id;
	(void)callback;
	(void)data;
	callbacks[event] = NULL;
	return MOSQ_ERR_SUCCESS;
}

int mosquitto_broker_publish_copy(const char *clientid, const char *topic, int payloadlen, const void *payload, int qos, bool retain, mosquitto_property *properties)
{
	if(copy_count == MAX_COPIES || qos != 1 || retain){
		return MOSQ_ERR_INVAL;
	}
	copies[copy_count++] = (struct copy){strdup(clientid), strdup(topic), strndup(payload, (size_t)payloadlen), properties};
	return MOSQ_ERR_SUCCESS;
}

/* drop_copies ends the first copies. */
static void drop_copies(int count)
{
	for(int i = 0; i < count; i++){
		free(copies[i].client_id);
		free(copies[i].topic);
		free(copies[i].payload);
		mosquitto_property_free_all(&copies[i].properties);
	}
	memmove(copies, copies + count, (size_t)(copy_count - count) * sizeof(*copies));
	copy_count -= count;
}

static int event_of(int event, const char *client_id, const char *username)
{
	struct mosquitto_evt_disconnect disconnect = {.client = client_id == NULL ? NULL : connection_of(client_id, username)};
	struct mosquitto_evt_tick tick = {0};
	return callbacks[event](event, event == MOSQ_EVT_TICK ? (void *)&tick : (void *)&disconnect, plugin_data);
}

/* refuse tells the plugin that a connection ends that never became the client's: its login was refused. */
static void refuse(const char *client_id)
{
	struct mosquitto attempt = {client_id, NULL};
	struct mosquitto_evt_disconnect disconnect = {.client = &attempt};
	CHECK(callbacks[MOSQ_EVT_DISCONNECT](MOSQ_EVT_DISCONNECT, &disconnect, plugin_data) == MOSQ_ERR_SUCCESS);
}

static void tick(void) { CHECK(event_of(MOSQ_EVT_TICK, NULL, NULL) == MOSQ_ERR_SUCCESS); }

static int login(const char *client_id, const char *username)
{
	struct mosquitto client = {client_id, username}; /* of an attempt, which may be refused */
	struct mosquitto_evt_basic_auth event = {.client = &client, .username = (char *)username};
	return callbacks[MOSQ_EVT_BASIC_AUTH](MOSQ_EVT_BASIC_AUTH, &event, plugin_data);
}

static uint8_t acl_qos;
static bool acl_retain;

static int acl(const char *client_id, const char *username, int access, const char *topic)
{
	struct mosquitto_evt_acl_check event = {.client = connection_of(client_id, username), .topic = topic, .access = access, .qos = acl_qos, .retain = acl_retain};
	return callbacks[MOSQ_EVT_ACL_CHECK](MOSQ_EVT_ACL_CHECK, &event, plugin_data);
}

/* shown shows a message to the plugin, whose topic may be changed in place. */
static int shown(const char *client_id, const char *username, char *topic, const char *payload, mosquitto_property **properties)
{
	struct mosquitto_evt_message event = {.client = connection_of(client_id, username), .topic = topic, .properties = *properties, .qos = 1, .payload = (void *)payload, .payloadlen = payload == NULL ? 0 : (uint32_t)strlen(payload)};
	int rc = callbacks[MOSQ_EVT_MESSAGE](MOSQ_EVT_MESSAGE, &event, plugin_data);
	CHECK(event.topic == topic); /* who frees a topic that is replaced depends on the broker's version */
	CHECK(*properties == NULL || event.properties == *properties);
	*properties = event.properties;
	return rc;
}

#endif
