/*
 * A plugin for Mosquitto 2.0 and later that tells Holdfast who publishes, and keeps clients from what only Holdfast's nodes may do.
 *
 *   - Requests: what a client put into the identity properties itself is taken out, and its client id and user name are put in. A will is
 *     no request: the broker does not show it to plugins, so nobody vouches for it.
 *   - Notifications: only nodes publish them, and a client receives its own only.
 *   - Under clients/ a client receives what is under its own client id only.
 *   - Requests are delivered to nodes only, and nobody else publishes or sees the probes of the nodes.
 *   - What the broker tells of connections, by its log topic for instance, only nodes see: an acl_file does not guard $SYS.
 *   - The client ids under which nodes connect are for the nodes' user only. A user's clients are called as the user, or as the user, a
 *     hyphen, and anything; or the broker gives them a name (auto-). No client id holds '/', '+' or '#'.
 *
 * Everything else is left to the broker's other access control (acl_file, dynamic security): this plugin only ever denies. It has to
 * stand before other plugins in the configuration, because Mosquitto takes the first answer.
 *
 *   plugin /usr/lib/x86_64-linux-gnu/holdfast_identity.so
 *   plugin_opt_cluster holdfast                           # cluster.name of the nodes
 *   plugin_opt_node_username holdfast                     # broker.username of the nodes
 *   plugin_opt_client_id_property $holdfast-client-id     # identity.clientIdProperty of the nodes
 *   plugin_opt_username_property $holdfast-username       # identity.usernameProperty of the nodes
 *   plugin_opt_bind_client_id true                        # false: any user's clients may have any id, and be anybody
 *
 * Where a listener takes the user name from a certificate (use_identity_as_username), Mosquitto asks no plugin about logins: do not use that.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mosquitto.h>
#include <mosquitto_broker.h>
#include <mosquitto_plugin.h>
#include <mqtt_protocol.h>

#define SERVICE "FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
#define INVOKE_TOPIC "statestore/v1/" SERVICE "/command/invoke"
#define CLIENTS "clients/"
#define NOTIFICATIONS CLIENTS "statestore/v1/" SERVICE "/"
#define PROBES "holdfast/"
#define LOG "$SYS/broker/log/"
#define CONNECTIONS "$SYS/broker/connection/client/"

struct identity {
	mosquitto_plugin_id_t *id;
	char *cluster;
	char *node_username;
	char *client_id_property;
	char *username_property;
	char *bind_client_id;
	/* The latest message on the request topic was stamped, and is being delivered now. Mosquitto has one thread. */
	bool stamped;
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

static bool has_prefix(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool has_suffix(const char *text, const char *suffix)
{
	size_t length = strlen(text), end = strlen(suffix);
	return length >= end && strcmp(text + length - end, suffix) == 0;
}

/* is_node reports whether a client has logged in as one of Holdfast's nodes. */
static bool is_node(const struct identity *identity, const struct mosquitto *client)
{
	const char *username = mosquitto_client_username(client);
	return username != NULL && strcmp(username, identity->node_username) == 0;
}

/* is_reserved reports whether nodes connect under a client id: {cluster}-ingest, {cluster}-out-N, {cluster}-{node}-in, the same with eight
 * digits behind it, and {cluster}-{node}-presence. */
static bool is_reserved(const struct identity *identity, const char *client_id)
{
	const char *rest;
	size_t length;

	if(!has_prefix(client_id, identity->cluster) || client_id[strlen(identity->cluster)] != '-'){
		return false;
	}
	rest = client_id + strlen(identity->cluster) + 1;
	if(strcmp(rest, "ingest") == 0 || has_prefix(rest, "out-") || has_suffix(rest, "-in") || has_suffix(rest, "-presence")){
		return true;
	}
	length = strlen(rest);
	return length > 12 && memcmp(rest + length - 12, "-in-", 4) == 0;
}

/* is_own reports whether a topic of notifications, or a filter for such, is a client's own: the level after the prefix is its client id in
 * upper-case Base16. */
static bool is_own(const char *topic, const char *client_id)
{
	static const char digits[] = "0123456789ABCDEF";
	const char *level = topic + strlen(NOTIFICATIONS);

	for(const unsigned char *c = (const unsigned char *)client_id; *c != '\0'; c++){
		if(*level++ != digits[*c >> 4]){
			return false;
		}
		if(*level++ != digits[*c & 15]){
			return false;
		}
	}
	return *level == '/' && *client_id != '\0';
}

/* is_under reports whether a topic is under clients/{client id}/. */
static bool is_under(const char *topic, const char *client_id)
{
	size_t length = strlen(client_id);
	const char *level = topic + strlen(CLIENTS);
	return length > 0 && strncmp(level, client_id, length) == 0 && (level[length] == '/' || level[length] == '\0');
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
	const struct identity *identity = userdata;
	const char *client_id = mosquitto_client_id(login->client);

	const char *user = login->username == NULL ? "nobody" : login->username;

	(void)event;
	if(client_id == NULL || strcmp(user, identity->node_username) == 0){
		return MOSQ_ERR_PLUGIN_DEFER;
	}
	if(is_reserved(identity, client_id)){
		mosquitto_log_printf(MOSQ_LOG_WARNING, "holdfast_identity: %s is the client id of a node, and %s is not the nodes' user", client_id, user);
		return MOSQ_ERR_AUTH;
	}
	if(strcmp(identity->bind_client_id, "true") == 0 && !is_bound(client_id, login->username)){
		mosquitto_log_printf(MOSQ_LOG_WARNING, "holdfast_identity: %s is no client id for a client of %s", client_id, user);
		return MOSQ_ERR_AUTH;
	}
	return MOSQ_ERR_PLUGIN_DEFER;
}

static int on_acl_check(int event, void *event_data, void *userdata)
{
	const struct mosquitto_evt_acl_check *check = event_data;
	struct identity *identity = userdata;
	const char *client_id = mosquitto_client_id(check->client);

	(void)event;
	if(strcmp(check->topic, INVOKE_TOPIC) == 0){
		/* Each message is checked for writing, then stamped, then checked for reading by each of its receivers. A will is not stamped. */
		if(check->access == MOSQ_ACL_WRITE){
			identity->stamped = false;
		}else if(check->access == MOSQ_ACL_READ && !identity->stamped){
			return MOSQ_ERR_ACL_DENIED;
		}
	}
	if(check->access == MOSQ_ACL_UNSUBSCRIBE || is_node(identity, check->client)){
		return MOSQ_ERR_PLUGIN_DEFER;
	}
	if(has_prefix(check->topic, NOTIFICATIONS)){
		if(check->access == MOSQ_ACL_WRITE || client_id == NULL || !is_own(check->topic, client_id)){
			return MOSQ_ERR_ACL_DENIED;
		}
	}else if(has_prefix(check->topic, CLIENTS)){
		if(check->access == MOSQ_ACL_READ && (client_id == NULL || !is_under(check->topic, client_id))){
			return MOSQ_ERR_ACL_DENIED;
		}
	}else if(has_prefix(check->topic, PROBES) || has_prefix(check->topic, LOG) || has_prefix(check->topic, CONNECTIONS)){
		return MOSQ_ERR_ACL_DENIED;
	}else if(strcmp(check->topic, INVOKE_TOPIC) == 0 && check->access != MOSQ_ACL_WRITE){
		return MOSQ_ERR_ACL_DENIED;
	}
	return MOSQ_ERR_PLUGIN_DEFER;
}

/* copy_property adds a property to a list, unless it is one of identity. */
static int copy_property(mosquitto_property **list, const mosquitto_property *property, const struct identity *identity)
{
	int id = mosquitto_property_identifier(property);
	int rc = MOSQ_ERR_SUCCESS;
	char *name = NULL, *value = NULL;
	void *data = NULL;
	uint16_t length;
	uint32_t number;
	uint8_t byte;

	switch(id){
		case MQTT_PROP_PAYLOAD_FORMAT_INDICATOR:
			mosquitto_property_read_byte(property, id, &byte, false);
			return mosquitto_property_add_byte(list, id, byte);
		case MQTT_PROP_MESSAGE_EXPIRY_INTERVAL:
			mosquitto_property_read_int32(property, id, &number, false);
			return mosquitto_property_add_int32(list, id, number);
		case MQTT_PROP_CONTENT_TYPE:
		case MQTT_PROP_RESPONSE_TOPIC:
			if(mosquitto_property_read_string(property, id, &value, false) == NULL){
				return MOSQ_ERR_NOMEM;
			}
			rc = mosquitto_property_add_string(list, id, value);
			break;
		case MQTT_PROP_CORRELATION_DATA:
			if(mosquitto_property_read_binary(property, id, &data, &length, false) == NULL){
				return MOSQ_ERR_NOMEM;
			}
			rc = mosquitto_property_add_binary(list, id, data, length);
			break;
		case MQTT_PROP_USER_PROPERTY:
			if(mosquitto_property_read_string_pair(property, id, &name, &value, false) == NULL){
				return MOSQ_ERR_NOMEM;
			}
			if(strcmp(name, identity->client_id_property) != 0 && strcmp(name, identity->username_property) != 0){
				rc = mosquitto_property_add_string_pair(list, id, name, value);
			}
			break;
		default: /* no other property goes with a PUBLISH from a client to subscribers */
			break;
	}
	free(name);
	free(value);
	free(data);
	return rc;
}

/* on_message takes out of a request what its client says of itself, and says who it is. What cannot be stamped is not delivered. */
static int on_message(int event, void *event_data, void *userdata)
{
	struct mosquitto_evt_message *message = event_data;
	struct identity *identity = userdata;
	const char *client_id = mosquitto_client_id(message->client);
	const char *username = mosquitto_client_username(message->client);
	mosquitto_property *stamped = NULL;
	int rc = MOSQ_ERR_SUCCESS;

	(void)event;
	if(strcmp(message->topic, INVOKE_TOPIC) != 0){
		return MOSQ_ERR_SUCCESS;
	}
	if(client_id == NULL){
		return MOSQ_ERR_ACL_DENIED;
	}
	for(const mosquitto_property *p = message->properties; p != NULL && rc == MOSQ_ERR_SUCCESS; p = mosquitto_property_next(p)){
		rc = copy_property(&stamped, p, identity);
	}
	if(rc == MOSQ_ERR_SUCCESS){
		rc = mosquitto_property_add_string_pair(&stamped, MQTT_PROP_USER_PROPERTY, identity->client_id_property, client_id);
	}
	if(rc == MOSQ_ERR_SUCCESS && username != NULL){
		rc = mosquitto_property_add_string_pair(&stamped, MQTT_PROP_USER_PROPERTY, identity->username_property, username);
	}
	if(rc != MOSQ_ERR_SUCCESS){
		mosquitto_property_free_all(&stamped);
		return rc;
	}
	mosquitto_property_free_all(&message->properties);
	message->properties = stamped;
	identity->stamped = true;
	return MOSQ_ERR_SUCCESS;
}

/* option replaces a setting by the value of an option, when it is its. */
static int option(char **setting, const char *name, const struct mosquitto_opt *given)
{
	char *value;

	if(strcmp(given->key, name) != 0){
		return 0;
	}
	if(given->value[0] == '\0' || (value = mosquitto_strdup(given->value)) == NULL){
		mosquitto_log_printf(MOSQ_LOG_ERR, "holdfast_identity: %s must not be empty", name);
		return -1;
	}
	mosquitto_free(*setting);
	*setting = value;
	return 1;
}

static void destroy(struct identity *identity)
{
	mosquitto_free(identity->cluster);
	mosquitto_free(identity->node_username);
	mosquitto_free(identity->client_id_property);
	mosquitto_free(identity->username_property);
	mosquitto_free(identity->bind_client_id);
	mosquitto_free(identity);
}

int mosquitto_plugin_init(mosquitto_plugin_id_t *id, void **userdata, struct mosquitto_opt *options, int option_count)
{
	struct identity *identity = mosquitto_calloc(1, sizeof(*identity));
	int rc;

	if(identity == NULL){
		return MOSQ_ERR_NOMEM;
	}
	identity->id = id;
	identity->cluster = mosquitto_strdup("holdfast");
	identity->node_username = mosquitto_strdup("holdfast");
	identity->client_id_property = mosquitto_strdup("$holdfast-client-id");
	identity->username_property = mosquitto_strdup("$holdfast-username");
	identity->bind_client_id = mosquitto_strdup("true");
	for(int i = 0; i < option_count; i++){
		int known = 0;
		if((known = option(&identity->cluster, "cluster", &options[i])) == 0
				&& (known = option(&identity->node_username, "node_username", &options[i])) == 0
				&& (known = option(&identity->client_id_property, "client_id_property", &options[i])) == 0
				&& (known = option(&identity->username_property, "username_property", &options[i])) == 0
				&& (known = option(&identity->bind_client_id, "bind_client_id", &options[i])) == 0){

			mosquitto_log_printf(MOSQ_LOG_ERR, "holdfast_identity: unknown option %s", options[i].key);
			known = -1;
		}
		if(known < 0){
			destroy(identity);
			return MOSQ_ERR_INVAL;
		}
	}
	if(identity->cluster == NULL || identity->node_username == NULL || identity->client_id_property == NULL
			|| identity->username_property == NULL || identity->bind_client_id == NULL){

		destroy(identity);
		return MOSQ_ERR_NOMEM;
	}
	if(strcmp(identity->bind_client_id, "true") != 0 && strcmp(identity->bind_client_id, "false") != 0){
		mosquitto_log_printf(MOSQ_LOG_ERR, "holdfast_identity: bind_client_id is %s: must be true or false", identity->bind_client_id);
		destroy(identity);
		return MOSQ_ERR_INVAL;
	}
	if((rc = mosquitto_callback_register(id, MOSQ_EVT_BASIC_AUTH, on_basic_auth, NULL, identity)) != MOSQ_ERR_SUCCESS
			|| (rc = mosquitto_callback_register(id, MOSQ_EVT_ACL_CHECK, on_acl_check, NULL, identity)) != MOSQ_ERR_SUCCESS
			|| (rc = mosquitto_callback_register(id, MOSQ_EVT_MESSAGE, on_message, NULL, identity)) != MOSQ_ERR_SUCCESS){

		mosquitto_callback_unregister(id, MOSQ_EVT_BASIC_AUTH, on_basic_auth, NULL);
		mosquitto_callback_unregister(id, MOSQ_EVT_ACL_CHECK, on_acl_check, NULL);
		destroy(identity);
		return rc;
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
		mosquitto_callback_unregister(identity->id, MOSQ_EVT_BASIC_AUTH, on_basic_auth, NULL);
		mosquitto_callback_unregister(identity->id, MOSQ_EVT_ACL_CHECK, on_acl_check, NULL);
		mosquitto_callback_unregister(identity->id, MOSQ_EVT_MESSAGE, on_message, NULL);
		destroy(identity);
	}
	return MOSQ_ERR_SUCCESS;
}
