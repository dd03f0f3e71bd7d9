/* Tests of the plugin's rules, one by one. */
#include "broker_mock.h"

static mosquitto_property *publish(const char *client_id, const char *username, const char *topic, mosquitto_property *properties)
{
	char *changed = strdup(topic);
	CHECK(shown(client_id, username, changed, "x", &properties) == MOSQ_ERR_SUCCESS);
	free(changed);
	return properties;
}

/* described puts the user properties of a list into one text. */
static const char *described(const mosquitto_property *list)
{
	static char text[512];
	text[0] = '\0';
	for(const mosquitto_property *p = list; p != NULL; p = mosquitto_property_next(p)){
		char *name = NULL, *value = NULL;
		if(mosquitto_property_identifier(p) != MQTT_PROP_USER_PROPERTY){
			continue;
		}
		mosquitto_property_read_string_pair(p, MQTT_PROP_USER_PROPERTY, &name, &value, false);
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s=%s;", name, value == NULL ? "" : value); /* libmosquitto 2.1 has NULL for an empty text */
		free(name);
		free(value);
	}
	return text;
}

static void test_logins(void)
{
	CHECK(login("holdfast-n1-in", "holdfast") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("press-17", "press") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("press", "press") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("press-17", NULL) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("auto-0123", "press") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("anything/at+all", "holdfast") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("press-1", "robot") == MOSQ_ERR_AUTH);
	CHECK(login("pressure", "press") == MOSQ_ERR_AUTH);
	CHECK(login("press-1/services", "press") == MOSQ_ERR_AUTH);
	CHECK(login("press/services", NULL) == MOSQ_ERR_AUTH);
	CHECK(login("holdfast-press", "holdfast-press") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("holdfaster-out-0", "holdfaster") == MOSQ_ERR_PLUGIN_DEFER);
	const char *reserved[] = {"holdfast-n1-in", "holdfast-n1-in-0123abcd", "holdfast-ingest", "holdfast-out-0", "holdfast-out-17", "holdfast-n1-presence"};
	for(size_t i = 0; i < sizeof(reserved) / sizeof(*reserved); i++){
		CHECK(login(reserved[i], "press") == MOSQ_ERR_AUTH);
		CHECK(login(reserved[i], NULL) == MOSQ_ERR_AUTH);
	}
}

static void test_access(void)
{
	const char *own = NOTIFICATIONS "61/command/notify/6B";
	const char *others = NOTIFICATIONS "62/command/notify/6B";
	const char *longer = NOTIFICATIONS "6162/command/notify/6B";

	CHECK(acl("a", "u", MOSQ_ACL_SUBSCRIBE, NOTIFICATIONS "61/command/notify/#") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_READ, own) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_READ, others) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_READ, longer) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("ab", "u", MOSQ_ACL_READ, own) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("", "u", MOSQ_ACL_READ, NOTIFICATIONS "/command") == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("\xC3\xA4", "u", MOSQ_ACL_READ, NOTIFICATIONS "C3A4/command/notify/6B") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_SUBSCRIBE, NOTIFICATIONS "#") == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_SUBSCRIBE, NOTIFICATIONS "+/command/notify/#") == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_UNSUBSCRIBE, NOTIFICATIONS "#") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, own) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "holdfast", MOSQ_ACL_WRITE, own) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_SUBSCRIBE, INVOKE_TOPIC) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("n", "holdfast", MOSQ_ACL_SUBSCRIBE, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, "holdfast/holdfast/n1/probe") == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_READ, "$SYS/broker/log/N") == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("n", "holdfast", MOSQ_ACL_READ, "$SYS/broker/log/N") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_READ, "$SYS/broker/connection/client/b/state") == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_READ, "$SYS/broker/uptime") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_READ, "clients/b/responses") == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_READ, "clients/ab/responses") == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_READ, "clients/a/responses") == MOSQ_ERR_PLUGIN_DEFER);
}

/* A request is neither retained nor of QoS 2, from a client or as its will. */
static void test_requests(void)
{
	acl_qos = 2;
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, INVOKE_TOPIC) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, "plant/a") == MOSQ_ERR_PLUGIN_DEFER);
	acl_qos = 1;
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	acl_retain = true;
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, INVOKE_TOPIC) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, "plant/a") == MOSQ_ERR_PLUGIN_DEFER);
	acl_retain = false;
}

/* The Go library's response topic has the client id in Base16, which may be the id of another client. */
static void test_go_responses(void)
{
	const char *go = "clients/61" GO_RESPONSE_LEVELS;

	CHECK(acl("a", "u", MOSQ_ACL_SUBSCRIBE, go) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_READ, go) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("61", "u", MOSQ_ACL_READ, go) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, go) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("61", "u", MOSQ_ACL_WRITE, go) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("n", "holdfast", MOSQ_ACL_WRITE, go) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_READ, "clients/61/other") == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("61", "u", MOSQ_ACL_READ, "clients/61/other") == MOSQ_ERR_PLUGIN_DEFER);
}

/* No filter of an ordinary client may make the broker find a subscriber for what is not the client's. */
static void test_filters(void)
{
	static const char *const denied[] = {
		"#", "+/#", "clients/#", "+/statestore/#", "clients/+/#", "clients/statestore/#", "clients/statestore/v1/+/62/command/notify/#",
		NOTIFICATIONS "+/command/notify/6B", NOTIFICATIONS "62/#", NOTIFICATIONS "6/#", "+/+/+/+/+/+/+/+",
		"statestore/#", "+/v1/+/command/invoke", "+/+/+/+/+", INVOKE_TOPIC "/#", "$share/g/#", "$share/g/" INVOKE_TOPIC, "$share/g/clients/#",
		"$share/g/" NOTIFICATIONS "62/command/notify/#", NOTIFICATIONS "b/command/notify",
	};
	static const char *const granted[] = {
		NOTIFICATIONS "61/command/notify/#", NOTIFICATIONS "61/#", NOTIFICATIONS "61/command/notify/6B", NOTIFICATIONS "a/command/notify",
		"$share/g/" NOTIFICATIONS "61/command/notify/#", "clients/a/#", "clients/+/statestore/v1/" SERVICE "/command/invoke", "plant/#", "plant/+/state",
		"+/+/state", "$SYS/broker/uptime", "statestore/v2/#", "",
	};

	for(size_t i = 0; i < sizeof(denied) / sizeof(*denied); i++){
		if(acl("a", "u", MOSQ_ACL_SUBSCRIBE, denied[i]) != MOSQ_ERR_ACL_DENIED){
			failures++;
			fprintf(stderr, "granted: %s\n", denied[i]);
		}
	}
	for(size_t i = 0; i < sizeof(granted) / sizeof(*granted); i++){
		if(acl("a", "u", MOSQ_ACL_SUBSCRIBE, granted[i]) != MOSQ_ERR_PLUGIN_DEFER){
			failures++;
			fprintf(stderr, "denied: %s\n", granted[i]);
		}
	}
	CHECK(acl("n", "holdfast", MOSQ_ACL_SUBSCRIBE, "#") == MOSQ_ERR_PLUGIN_DEFER);
}

static void test_stamps(void)
{
	mosquitto_property *list = NULL;
	char *text = NULL;
	void *data = NULL;
	uint16_t length = 0;
	uint32_t number = 0;
	uint8_t byte = 0;

	mosquitto_property_add_string_pair(&list, MQTT_PROP_USER_PROPERTY, "$holdfast-client-id", "forged");
	mosquitto_property_add_byte(&list, MQTT_PROP_PAYLOAD_FORMAT_INDICATOR, 1);
	mosquitto_property_add_int32(&list, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL, 77);
	mosquitto_property_add_string(&list, MQTT_PROP_RESPONSE_TOPIC, "r");
	mosquitto_property_add_binary(&list, MQTT_PROP_CORRELATION_DATA, "\0\1\2", 3);
	mosquitto_property_add_string_pair(&list, MQTT_PROP_USER_PROPERTY, "__ts", "1");
	mosquitto_property_add_string_pair(&list, MQTT_PROP_USER_PROPERTY, "$holdfast-username", "root");
	mosquitto_property_add_string_pair(&list, MQTT_PROP_USER_PROPERTY, "$holdfast-client-id", "forged again");
	list = publish("a", "u", INVOKE_TOPIC, list);
	CHECK(strcmp(described(list), "$holdfast-client-id=forged;__ts=1;$holdfast-username=root;$holdfast-client-id=forged again;$holdfast-client-id=a;$holdfast-username=u;") == 0);
	CHECK(mosquitto_property_read_byte(list, MQTT_PROP_PAYLOAD_FORMAT_INDICATOR, &byte, false) != NULL && byte == 1);
	CHECK(mosquitto_property_read_int32(list, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL, &number, false) != NULL && number == 77);
	CHECK(mosquitto_property_read_string(list, MQTT_PROP_RESPONSE_TOPIC, &text, false) != NULL && strcmp(text, "r") == 0);
	CHECK(mosquitto_property_read_binary(list, MQTT_PROP_CORRELATION_DATA, &data, &length, false) != NULL && length == 3 && memcmp(data, "\0\1\2", 3) == 0);
	free(text);
	free(data);
	mosquitto_property_free_all(&list);

	/* a will is checked for writing and delivered, without having been shown; what waits in a session that is resumed later is not blocked */
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("n", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_ACL_DENIED);
	CHECK(login("holdfast-n1-in", "holdfast") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("n", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	tick();
	CHECK(acl("n", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	list = publish("a", "u", INVOKE_TOPIC, NULL);
	CHECK(acl("n", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("m", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	mosquitto_property_free_all(&list);

	/* without a login there is no user name, whatever the client says */
	mosquitto_property_add_string_pair(&list, MQTT_PROP_USER_PROPERTY, "$holdfast-username", "root");
	list = publish("a", NULL, INVOKE_TOPIC, list);
	CHECK(strcmp(described(list), "$holdfast-username=root;$holdfast-client-id=a;$holdfast-username=;") == 0);
	mosquitto_property_free_all(&list);

	/* many user properties are denied */
	for(int i = 0; i < 65; i++){
		mosquitto_property_add_string_pair(&list, MQTT_PROP_USER_PROPERTY, "k", "v");
	}
	char invoke[] = INVOKE_TOPIC;
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(shown("a", "u", invoke, "x", &list) == MOSQ_ERR_ACL_DENIED);
	CHECK(acl("n", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_ACL_DENIED);
	mosquitto_property_free_all(&list);

	/* what is no request is left alone */
	mosquitto_property_add_string_pair(&list, MQTT_PROP_USER_PROPERTY, "$holdfast-client-id", "x");
	list = publish("a", NULL, "elsewhere", list);
	CHECK(strcmp(described(list), "$holdfast-client-id=x;") == 0);
	mosquitto_property_free_all(&list);
}

static int notify(char *topic, mosquitto_property **properties)
{
	CHECK(acl("out", "holdfast", MOSQ_ACL_WRITE, topic) == MOSQ_ERR_PLUGIN_DEFER);
	return shown("out", "holdfast", topic, "x", properties);
}

/* A notification that its connected client has not subscribed is delivered by a copy, and what follows for that client in the same round. */
static void test_copies(void)
{
	char first[] = NOTIFICATIONS "61/command/notify/6B", second[] = NOTIFICATIONS "61/command/notify/6B";
	char response[] = "clients/a/statestore/v1/" SERVICE "/command/invoke", brief[] = "clients/a/r";
	mosquitto_property *list = NULL;
	uint32_t expiry = 0;

	CHECK(event_of(MOSQ_EVT_DISCONNECT, "a", "u") == MOSQ_ERR_SUCCESS);
	tick();
	CHECK(notify(first, &list) == MOSQ_ERR_SUCCESS && copy_count == 0); /* who has sent no request is not known */

	CHECK(acl("a", "u", MOSQ_ACL_WRITE, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(notify(first, &list) == MOSQ_ERR_SUCCESS && copy_count == 0); /* that was its will */
	mosquitto_property *stamps = publish("a", "u", INVOKE_TOPIC, NULL);
	mosquitto_property_free_all(&stamps);
	CHECK(notify(first, &list) == MOSQ_ERR_SUCCESS && copy_count == 1 && strcmp(first, INVOKE_TOPIC) == 0);
	CHECK(strcmp(copies[0].client_id, "a") == 0 && strcmp(copies[0].topic, second) == 0);
	CHECK(mosquitto_property_read_int32(copies[0].properties, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL, &expiry, false) != NULL && expiry == 30);
	CHECK(acl("n", "holdfast", MOSQ_ACL_READ, first) == MOSQ_ERR_ACL_DENIED); /* it is no request */

	CHECK(mosquitto_property_read_int32(copies[0].properties, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL, &expiry, true) == NULL); /* once */

	refuse("a"); /* whose login is refused is not the client */

	/* replies stay behind the copy, also on a topic that is too short to be swallowed */
	CHECK(notify(response, &list) == MOSQ_ERR_SUCCESS && copy_count == 2 && strcmp(response, INVOKE_TOPIC) == 0);
	CHECK(notify(brief, &list) == MOSQ_ERR_ACL_DENIED && copy_count == 3);
	drop_copies(copy_count);
	tick();
	CHECK(notify(brief, &list) == MOSQ_ERR_SUCCESS && copy_count == 0);

	CHECK(acl("a", "u", MOSQ_ACL_SUBSCRIBE, second) == MOSQ_ERR_PLUGIN_DEFER); /* a single key */
	CHECK(notify(second, &list) == MOSQ_ERR_SUCCESS && copy_count == 0);
	mosquitto_property_free_all(&list);
}

static void test_options(void)
{
	struct mosquitto_opt good[] = {{(char *)"cluster", (char *)"edge"}, {(char *)"node_username", (char *)"nodes"}, {(char *)"client_id_property", (char *)"c"},
		{(char *)"bind_client_id", (char *)"false"}};
	struct mosquitto_opt neither[] = {{(char *)"bind_client_id", (char *)"yes"}};
	struct mosquitto_opt unknown[] = {{(char *)"clustre", (char *)"edge"}};
	struct mosquitto_opt many[] = {{(char *)"max_user_properties", (char *)"64 or so"}};
	struct mosquitto_opt empty[] = {{(char *)"cluster", (char *)""}};
	void *data = NULL;

	CHECK(mosquitto_plugin_init(NULL, &data, unknown, 1) == MOSQ_ERR_INVAL);
	CHECK(mosquitto_plugin_init(NULL, &data, empty, 1) == MOSQ_ERR_INVAL);
	CHECK(mosquitto_plugin_init(NULL, &data, neither, 1) == MOSQ_ERR_INVAL);
	CHECK(mosquitto_plugin_init(NULL, &data, many, 1) == MOSQ_ERR_INVAL);
	CHECK(mosquitto_plugin_init(NULL, &data, good, 4) == MOSQ_ERR_SUCCESS);
	CHECK(login("edge-n1-in", "press") == MOSQ_ERR_AUTH && login("edge-n1-in", "nodes") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("holdfast-n1-in", "holdfast-n1") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("press", "robot") == MOSQ_ERR_PLUGIN_DEFER);
	mosquitto_property *list = publish("a", NULL, INVOKE_TOPIC, NULL);
	CHECK(strcmp(described(list), "c=a;$holdfast-username=;") == 0);
	mosquitto_property_free_all(&list);
	CHECK(mosquitto_plugin_cleanup(data, NULL, 0) == MOSQ_ERR_SUCCESS);
}

int main(void)
{
	int old[] = {2, 3, 4}, current[] = {2, 3, 4, 5};
	void *data = NULL;

	CHECK(mosquitto_plugin_version(3, old) == -1 && mosquitto_plugin_version(4, current) == 5);
	CHECK(mosquitto_plugin_init(NULL, &data, NULL, 0) == MOSQ_ERR_SUCCESS);
	test_logins();
	test_access();
	test_requests();
	test_go_responses();
	test_filters();
	test_stamps();
	test_copies();
	CHECK(mosquitto_plugin_cleanup(data, NULL, 0) == MOSQ_ERR_SUCCESS);
	test_options();
	if(failures == 0){
		puts("identity: all tests passed");
	}
	return failures != 0;
}
