/* Tests of the plugin without a broker: what the broker would provide is here, but for the lists of properties, which are libmosquitto's. */
#include "holdfast_identity.c"

#include <stdarg.h>

struct mosquitto {
	const char *id, *username;
};

static MOSQ_FUNC_generic_callback callbacks[32];
static void *plugin_data;
static int failures;

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

static int login(const char *client_id, const char *username)
{
	struct mosquitto client = {client_id, username};
	struct mosquitto_evt_basic_auth event = {.client = &client, .username = (char *)username};
	return callbacks[MOSQ_EVT_BASIC_AUTH](MOSQ_EVT_BASIC_AUTH, &event, plugin_data);
}

static int acl(const char *client_id, const char *username, int access, const char *topic)
{
	struct mosquitto client = {client_id, username};
	struct mosquitto_evt_acl_check event = {.client = &client, .topic = topic, .access = access};
	return callbacks[MOSQ_EVT_ACL_CHECK](MOSQ_EVT_ACL_CHECK, &event, plugin_data);
}

static mosquitto_property *publish(const char *client_id, const char *username, const char *topic, mosquitto_property *properties)
{
	struct mosquitto client = {client_id, username};
	struct mosquitto_evt_message event = {.client = &client, .topic = (char *)topic, .properties = properties};
	CHECK(callbacks[MOSQ_EVT_MESSAGE](MOSQ_EVT_MESSAGE, &event, plugin_data) == MOSQ_ERR_SUCCESS);
	return event.properties;
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
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s=%s;", name, value);
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
	CHECK(strcmp(described(list), "__ts=1;$holdfast-client-id=a;$holdfast-username=u;") == 0);
	CHECK(mosquitto_property_read_byte(list, MQTT_PROP_PAYLOAD_FORMAT_INDICATOR, &byte, false) != NULL && byte == 1);
	CHECK(mosquitto_property_read_int32(list, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL, &number, false) != NULL && number == 77);
	CHECK(mosquitto_property_read_string(list, MQTT_PROP_RESPONSE_TOPIC, &text, false) != NULL && strcmp(text, "r") == 0);
	CHECK(mosquitto_property_read_binary(list, MQTT_PROP_CORRELATION_DATA, &data, &length, false) != NULL && length == 3 && memcmp(data, "\0\1\2", 3) == 0);
	free(text);
	free(data);
	mosquitto_property_free_all(&list);

	/* a will is checked for writing and delivered, without having been shown */
	CHECK(acl("a", "u", MOSQ_ACL_WRITE, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("n", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_ACL_DENIED);
	list = publish("a", "u", INVOKE_TOPIC, NULL);
	CHECK(acl("n", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("m", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	mosquitto_property_free_all(&list);

	/* without a login there is no user name, whatever the client says */
	mosquitto_property_add_string_pair(&list, MQTT_PROP_USER_PROPERTY, "$holdfast-username", "root");
	list = publish("a", NULL, INVOKE_TOPIC, list);
	CHECK(strcmp(described(list), "$holdfast-client-id=a;") == 0);
	mosquitto_property_free_all(&list);

	/* what is no request is left alone */
	mosquitto_property_add_string_pair(&list, MQTT_PROP_USER_PROPERTY, "$holdfast-client-id", "x");
	list = publish("a", NULL, "elsewhere", list);
	CHECK(strcmp(described(list), "$holdfast-client-id=x;") == 0);
	mosquitto_property_free_all(&list);
}

static void test_options(void)
{
	struct mosquitto_opt good[] = {{(char *)"cluster", (char *)"edge"}, {(char *)"node_username", (char *)"nodes"}, {(char *)"client_id_property", (char *)"c"},
		{(char *)"bind_client_id", (char *)"false"}};
	struct mosquitto_opt neither[] = {{(char *)"bind_client_id", (char *)"yes"}};
	struct mosquitto_opt unknown[] = {{(char *)"clustre", (char *)"edge"}};
	struct mosquitto_opt empty[] = {{(char *)"cluster", (char *)""}};
	void *data = NULL;

	CHECK(mosquitto_plugin_init(NULL, &data, unknown, 1) == MOSQ_ERR_INVAL);
	CHECK(mosquitto_plugin_init(NULL, &data, empty, 1) == MOSQ_ERR_INVAL);
	CHECK(mosquitto_plugin_init(NULL, &data, neither, 1) == MOSQ_ERR_INVAL);
	CHECK(mosquitto_plugin_init(NULL, &data, good, 4) == MOSQ_ERR_SUCCESS);
	CHECK(login("edge-n1-in", "press") == MOSQ_ERR_AUTH && login("edge-n1-in", "nodes") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("holdfast-n1-in", "holdfast-n1") == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(login("press", "robot") == MOSQ_ERR_PLUGIN_DEFER);
	mosquitto_property *list = publish("a", NULL, INVOKE_TOPIC, NULL);
	CHECK(strcmp(described(list), "c=a;") == 0);
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
	test_stamps();
	CHECK(mosquitto_plugin_cleanup(data, NULL, 0) == MOSQ_ERR_SUCCESS);
	test_options();
	if(failures == 0){
		puts("identity: all tests passed");
	}
	return failures != 0;
}
