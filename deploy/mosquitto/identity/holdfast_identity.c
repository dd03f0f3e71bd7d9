/*
 * A plugin for Mosquitto 2.0 and 2.1 that tells Holdfast who publishes, keeps clients from what only Holdfast's nodes may do, and delivers
 * notifications to clients whose library never subscribes to them.
 *
 *   - Requests: the client id and the user name of the publisher are appended as user properties. A client may have put properties of the
 *     same names in; nodes take the last one of each. A will is no request: the broker does not show wills to plugins, so nobody vouches for
 *     them. A request with too many user properties is denied.
 *     Retained requests, and requests with QoS 2, are denied as well.
 *   - Notifications: only nodes publish them, and a client receives its own only. A connected client that has sent a request and has not
 *     subscribed gets a copy, as the libraries for Go and .NET expect. The node's PUBACK then says that the notification was delivered.
 *   - Under clients/ a client receives what is under its own client id only, or on its own response topic of the Go library, which has the
 *     client id in Base16. Only nodes publish on the latter.
 *   - Requests are delivered to nodes only, and only nodes publish or see the probes of the nodes.
 *   - No filter of an ordinary client matches requests or the notifications of others: a filter such as '#' would make the broker tell nodes
 *     that a notification found a subscriber.
 *   - What the broker tells of connections, by its log topic for instance, only nodes see: an acl_file does not guard $SYS.
 *   - The client ids under which nodes connect are for the nodes' user only. A user's clients are called as the user, or as the user, a
 *     hyphen, and anything; or the broker gives them a name (auto-). No client id holds '/', '+' or '#'.
 *
 * Everything else is left to the broker's other access control (acl_file, dynamic security): this plugin never allows what that denies. It
 * has to stand before other plugins in the configuration, because Mosquitto takes the first answer.
 *
 *   plugin holdfast_identity.so
 *   plugin_opt_cluster holdfast                           # cluster.name of the nodes
 *   plugin_opt_node_username holdfast                     # broker.username of the nodes
 *   plugin_opt_client_id_property $holdfast-client-id     # identity.clientIdProperty of the nodes
 *   plugin_opt_username_property $holdfast-username       # identity.usernameProperty of the nodes
 *   plugin_opt_bind_client_id true                        # false: any user's clients may have any id, and be anybody
 *   plugin_opt_max_user_properties 64                     # of a request, as its client sends it
 *   plugin_opt_notification_expiry 30                     # watch.notificationExpiry of the nodes, in seconds
 *
 * Where a listener takes the user name from a certificate (use_identity_as_username), Mosquitto asks no plugin about logins: do not use that.
 *
 * Mosquitto has one thread: no function here runs beside another.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "broker.h"
#include "clients.h"
#include "options.h"
#include "topics.h"

/* How long the reply to a request of the Go and .NET libraries is worth delivering, in seconds: they send requests with this expiry. */
#define REPLY_EXPIRY 10
/* MQTT limits a client id to this many bytes. */
#define MAX_CLIENT_ID 65535

struct identity {
	mosquitto_plugin_id_t *id;
	struct options options;
	/* The message on the request topic that the broker delivers at the moment is no stamped request: it must not reach any node. Invariant:
	 * false outside of a delivery, so that requests that wait in a session pass when the session is resumed. */
	bool blocked;
	struct clients clients;
	char receiver[MAX_CLIENT_ID + 1];
};

int mosquitto_plugin_version(int supported_version_count, const int *supported_versions)
{
	for(int i = 0; i < supported_version_count; i++){
		if(supported_versions[i] == 5){
			return 5;
		}
	}
	return -1;
}

/* is_node reports whether a client has logged in as one of Holdfast's nodes. */
static bool is_node(const struct identity *identity, const struct mosquitto *client)
{
	const char *username = mosquitto_client_username(client);
	return username != NULL && strcmp(username, identity->options.node_username) == 0;
}

/* is_reserved reports whether nodes connect under a client id: {cluster}-ingest, {cluster}-out-N, {cluster}-{node}-in, the same with eight
 * digits behind it, and {cluster}-{node}-presence. */
static bool is_reserved(const struct identity *identity, const char *client_id)
{
	const char *rest;
	size_t length;

	if(!has_prefix(client_id, identity->options.cluster) || client_id[strlen(identity->options.cluster)] != '-'){
		return false;
	}
	rest = client_id + strlen(identity->options.cluster) + 1;
	if(strcmp(rest, "ingest") == 0 || has_prefix(rest, "out-") || has_suffix(rest, "-in") || has_suffix(rest, "-presence")){
		return true;
	}
	length = strlen(rest);
	return length > 12 && memcmp(rest + length - 12, "-in-", 4) == 0;
}

/* is_bound reports whether a user's client may have a client id. */
static bool is_bound(const char *client_id, const char *username)
{
	size_t length;

	if(strpbrk(client_id, "/+#") != NULL){
		return false;
	}
	if(username == NULL || has_prefix(client_id, "auto-")){
		return true;
	}
	length = strlen(username);
	return strncmp(client_id, username, length) == 0 && (client_id[length] == '-' || client_id[length] == '\0');
}

static int on_basic_auth(int event, void *event_data, void *userdata)
{
	const struct mosquitto_evt_basic_auth *login = event_data;
	struct identity *identity = userdata;
	const char *client_id = mosquitto_client_id(login->client);
	const char *user = login->username == NULL ? "(none)" : login->username;

	(void)event;
	identity->blocked = false;
	if(client_id == NULL || strcmp(user, identity->options.node_username) == 0){
		return MOSQ_ERR_PLUGIN_DEFER;
	}
	if(is_reserved(identity, client_id)){
		mosquitto_log_printf(MOSQ_LOG_WARNING, "holdfast_identity: %s is the client id of a node, and %s is not the nodes' user", client_id, user);
		return MOSQ_ERR_AUTH;
	}
	if(identity->options.bound && !is_bound(client_id, login->username)){
		mosquitto_log_printf(MOSQ_LOG_WARNING, "holdfast_identity: %s is no client id for a client of %s", client_id, user);
		return MOSQ_ERR_AUTH;
	}
	return MOSQ_ERR_PLUGIN_DEFER;
}

static void forget(struct identity *identity, const struct mosquitto *connection)
{
	const char *client_id = mosquitto_client_id(connection);

	if(client_id != NULL){
		clients_remove(&identity->clients, client_id, connection);
	}
}

static int on_disconnect(int event, void *event_data, void *userdata)
{
	const struct mosquitto_evt_disconnect *disconnect = event_data;

	(void)event;
	forget(userdata, disconnect->client);
	return MOSQ_ERR_SUCCESS;
}

#ifdef HAS_CLIENT_OFFLINE
/* on_offline is called instead of on_disconnect by Mosquitto 2.1 when the client's session goes on. */
static int on_offline(int event, void *event_data, void *userdata)
{
	const struct mosquitto_evt_client_offline *offline = event_data;

	(void)event;
	forget(userdata, offline->client);
	return MOSQ_ERR_SUCCESS;
}
#endif

/* on_tick is called once in each round of the broker's main loop. Copies that were queued in a round are delivered before the broker reads
 * another packet in the next. */
static int on_tick(int event, void *event_data, void *userdata)
{
	struct identity *identity = userdata;

	(void)event;
	(void)event_data;
	identity->blocked = false;
	identity->clients.round++;
	return MOSQ_ERR_SUCCESS;
}

/* may_subscribe judges a filter of an ordinary client. */
static bool may_subscribe(const char *filter, const char *client_id)
{
	filter = without_share(filter);
	if(topics_overlap(filter, INVOKE_TOPIC) || has_prefix(filter, PROBES) || has_prefix(filter, LOG) || has_prefix(filter, CONNECTIONS)){
		return false;
	}
	return !topics_overlap(filter, NOTIFICATIONS "#") || is_own_notification(filter, client_id) || is_dotnet_filter(filter, client_id);
}

/* may_receive judges a topic of a message for an ordinary client. */
static bool may_receive(const char *topic, const char *client_id)
{
	if(has_prefix(topic, NOTIFICATIONS)){
		return is_own_notification(topic, client_id);
	}
	if(is_go_response(topic)){
		return is_own_go_response(topic, client_id);
	}
	if(has_prefix(topic, CLIENTS)){
		return is_under(topic, client_id);
	}
	return !has_prefix(topic, PROBES) && !has_prefix(topic, LOG) && !has_prefix(topic, CONNECTIONS) && strcmp(topic, INVOKE_TOPIC) != 0;
}

/* may_publish judges a message from an ordinary client. Requests are neither retained, else a retained will would wait for each subscriber, nor
 * published with QoS 2, whose messages the broker delivers without checking them for writing once more. */
static bool may_publish(const char *topic, uint8_t qos, bool retain)
{
	if(strcmp(topic, INVOKE_TOPIC) == 0 && (qos == 2 || retain)){
		return false;
	}
	return !has_prefix(topic, NOTIFICATIONS) && !is_go_response(topic) && !has_prefix(topic, PROBES) && !has_prefix(topic, LOG) && !has_prefix(topic, CONNECTIONS);
}

/* track takes note of who subscribes to its notifications. */
static void track(struct identity *identity, const struct mosquitto_evt_acl_check *check, const char *client_id)
{
	struct client *client;

	switch(check->access){
		case MOSQ_ACL_SUBSCRIBE:
			if(is_own_notification(check->topic, client_id) && (client = clients_add(&identity->clients, client_id, check->client)) != NULL){
				client_subscribe(client, check->topic);
			}
			break;
		case MOSQ_ACL_UNSUBSCRIBE:
			if((client = clients_find(&identity->clients, client_id)) != NULL){
				client_unsubscribe(client, check->topic);
			}
			break;
		default:
			break;
	}
}

static int on_acl_check(int event, void *event_data, void *userdata)
{
	const struct mosquitto_evt_acl_check *check = event_data;
	struct identity *identity = userdata;
	const char *client_id = mosquitto_client_id(check->client);
	bool allowed = true;

	(void)event;
	if(client_id == NULL){
		return MOSQ_ERR_ACL_DENIED;
	}
	/* Each message is checked for writing, then shown to on_message, then checked for reading by each receiver. A will is not shown. */
	if(check->access == MOSQ_ACL_WRITE){
		identity->blocked = strcmp(check->topic, INVOKE_TOPIC) == 0;
	}else if(check->access == MOSQ_ACL_READ && identity->blocked && strcmp(check->topic, INVOKE_TOPIC) == 0){
		return MOSQ_ERR_ACL_DENIED;
	}
	if(is_node(identity, check->client)){
		return MOSQ_ERR_PLUGIN_DEFER;
	}
	switch(check->access){
		case MOSQ_ACL_SUBSCRIBE:
			allowed = may_subscribe(check->topic, client_id);
			break;
		case MOSQ_ACL_READ:
			allowed = may_receive(check->topic, client_id);
			break;
		case MOSQ_ACL_WRITE:
			allowed = may_publish(check->topic, check->qos, check->retain);
			break;
		default:
			break;
	}
	if(!allowed){
		return MOSQ_ERR_ACL_DENIED;
	}
	track(identity, check, client_id);
	return MOSQ_ERR_PLUGIN_DEFER;
}

/* stamp appends the publisher's client id and user name to a request, the user name empty where there is none. The list is changed in place:
 * whether the plugin or the broker frees a list that was replaced depends on the broker's version. */
static int stamp(struct identity *identity, struct mosquitto_evt_message *message)
{
	const char *client_id = mosquitto_client_id(message->client);
	const char *username = mosquitto_client_username(message->client);
	long count = 0;
	int rc;

	if(client_id == NULL){
		return MOSQ_ERR_ACL_DENIED;
	}
	for(const mosquitto_property *p = message->properties; p != NULL; p = mosquitto_property_next(p)){
		if(mosquitto_property_identifier(p) == MQTT_PROP_USER_PROPERTY && ++count > identity->options.property_limit){
			mosquitto_log_printf(MOSQ_LOG_WARNING, "holdfast_identity: a request of %s has more than %ld user properties: denied", client_id, identity->options.property_limit);
			return MOSQ_ERR_ACL_DENIED;
		}
	}
	rc = mosquitto_property_add_string_pair(&message->properties, MQTT_PROP_USER_PROPERTY, identity->options.client_id_property, client_id);
	if(rc == MOSQ_ERR_SUCCESS){
		rc = mosquitto_property_add_string_pair(&message->properties, MQTT_PROP_USER_PROPERTY, identity->options.username_property, username == NULL ? "" : username);
	}
	if(rc != MOSQ_ERR_SUCCESS){ /* a client id or user name that is no UTF-8, or no memory */
		return MOSQ_ERR_ACL_DENIED;
	}
	identity->blocked = false;
	clients_add(&identity->clients, client_id, message->client); /* here, not at the check: a will is checked when its client is gone */
	return MOSQ_ERR_SUCCESS;
}

/* queue_copy queues a copy of a message for one client, whatever the client subscribed. The broker takes the message expiry out of the
 * properties before it shows a message to plugins: a notification gets the one that all begin with, and a reply that of the libraries that need
 * copies. */
static bool queue_copy(const struct identity *identity, const char *client_id, const struct mosquitto_evt_message *message)
{
	mosquitto_property *properties = NULL;
	long expiry = has_prefix(message->topic, NOTIFICATIONS) ? identity->options.expiry_seconds : REPLY_EXPIRY;

	if(message->payloadlen == 0 || mosquitto_property_copy_all(&properties, message->properties) != MOSQ_ERR_SUCCESS){
		return false;
	}
	if(mosquitto_property_add_int32(&properties, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL, (uint32_t)expiry) != MOSQ_ERR_SUCCESS){
		mosquitto_property_free_all(&properties);
		return false;
	}
	if(mosquitto_broker_publish_copy(client_id, message->topic, (int)message->payloadlen, message->payload, message->qos, false, properties) != MOSQ_ERR_SUCCESS){
		mosquitto_property_free_all(&properties);
		return false;
	}
	return true;
}

/* swallow ends a message that was delivered by a copy. The topic becomes the request topic, in place: nodes subscribe to it, so the PUBACK says
 * that there is a subscriber, and nobody receives it. A topic that is too short for that is denied instead, which a node takes for the end of a
 * reply as well. */
static int swallow(struct identity *identity, struct mosquitto_evt_message *message)
{
	if(strlen(message->topic) < strlen(INVOKE_TOPIC)){
		return MOSQ_ERR_ACL_DENIED;
	}
	memcpy(message->topic, INVOKE_TOPIC, sizeof(INVOKE_TOPIC));
	identity->blocked = true;
	return MOSQ_ERR_SUCCESS;
}

/* deliver delivers what a node publishes to a client. A notification that the client did not subscribe goes to it as a copy. The broker delivers
 * copies at the end of a round, so everything for that client follows as a copy until then: a client receives everything in order. */
static int deliver(struct identity *identity, struct mosquitto_evt_message *message)
{
	struct clients *clients = &identity->clients;
	bool notification = notification_receiver(message->topic, identity->receiver, sizeof(identity->receiver));
	struct client *client;

	if(!notification && !response_receiver(message->topic, identity->receiver, sizeof(identity->receiver))){
		return MOSQ_ERR_SUCCESS;
	}
	client = clients_find(clients, identity->receiver);
	if(!clients_has_copies(clients, client) && (!notification || client == NULL || client_is_subscribed(client, message->topic))){
		return MOSQ_ERR_SUCCESS;
	}
	if(!queue_copy(identity, identity->receiver, message)){
		return MOSQ_ERR_SUCCESS;
	}
	if(client != NULL){
		client->copied_in = clients->round;
	}
	return swallow(identity, message);
}

static int on_message(int event, void *event_data, void *userdata)
{
	struct mosquitto_evt_message *message = event_data;
	struct identity *identity = userdata;

	(void)event;
	if(strcmp(message->topic, INVOKE_TOPIC) == 0){
		return stamp(identity, message);
	}
	if(has_prefix(message->topic, CLIENTS) && is_node(identity, message->client)){
		return deliver(identity, message);
	}
	return MOSQ_ERR_SUCCESS;
}

static void destroy(struct identity *identity)
{
	options_free(&identity->options);
	clients_free(&identity->clients);
	mosquitto_free(identity);
}

struct callback {
	int event;
	MOSQ_FUNC_generic_callback function;
};

static const struct callback plugin_callbacks[] = {
	{MOSQ_EVT_BASIC_AUTH, on_basic_auth}, {MOSQ_EVT_ACL_CHECK, on_acl_check}, {MOSQ_EVT_MESSAGE, on_message},
	{MOSQ_EVT_DISCONNECT, on_disconnect}, {MOSQ_EVT_TICK, on_tick},
#ifdef HAS_CLIENT_OFFLINE
	{MOSQ_EVT_CLIENT_OFFLINE, on_offline},
#endif
};
#define PLUGIN_CALLBACKS (sizeof(plugin_callbacks) / sizeof(*plugin_callbacks))

static void unregister(struct identity *identity, size_t count)
{
	for(size_t i = 0; i < count; i++){
		mosquitto_callback_unregister(identity->id, plugin_callbacks[i].event, plugin_callbacks[i].function, NULL);
	}
}

int mosquitto_plugin_init(mosquitto_plugin_id_t *id, void **userdata, struct mosquitto_opt *options, int option_count)
{
	struct identity *identity = mosquitto_calloc(1, sizeof(*identity));
	int rc;

	if(identity == NULL){
		return MOSQ_ERR_NOMEM;
	}
	identity->id = id;
	identity->clients.round = 1;
	if((rc = options_read(&identity->options, options, option_count)) != MOSQ_ERR_SUCCESS){
		destroy(identity);
		return rc;
	}
	for(size_t i = 0; i < PLUGIN_CALLBACKS; i++){
		if((rc = mosquitto_callback_register(id, plugin_callbacks[i].event, plugin_callbacks[i].function, NULL, identity)) != MOSQ_ERR_SUCCESS){
			unregister(identity, i);
			destroy(identity);
			return rc;
		}
	}
	*userdata = identity;
	return MOSQ_ERR_SUCCESS;
}

int mosquitto_plugin_cleanup(void *userdata, struct mosquitto_opt *options, int option_count)
{
	struct identity *identity = userdata;

	(void)options;
	(void)option_count;
	if(identity != NULL){
		unregister(identity, PLUGIN_CALLBACKS);
		destroy(identity);
	}
	return MOSQ_ERR_SUCCESS;
}
