/* Whole sessions, drawn from seeds, against a small model of a broker: sessions_test [SEEDS [FIRST]]. What must hold:
 *   - A client receives nothing that is another's, and everything in the order in which it was published.
 *   - A notification reaches its connected client once if the client has sent a request or subscribed, and at most once otherwise.
 *   - The nodes' session receives every request, also from a session that is resumed, each with the true client id last, and no will. */
#include "broker_mock.h"

enum { MODEL_CLIENTS = 5, MODEL_FILTERS = 6, STEPS = 300 };

/* "61" is "a" in Base16, "3631" is "61". */
static const char *const ids[MODEL_CLIENTS] = {"a", "61", "3631", "ab", "\xC3\xA4"};
static const char *const keys[] = {"6B", "6B32"};

struct session {
	const char *id;
	bool connected, requested;
	char *filters[MODEL_FILTERS];
	int filter_count, last; /* the latest message that came */
};

static struct session sessions[MODEL_CLIENTS];
static uint64_t state;
static int sequence, waiting; /* requests that wait in the cluster's session while no node leads */
static bool node_away;

static unsigned draw(unsigned below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (unsigned)(state >> 33) % below;
}

/* matches is the broker's own rule, written anew. */
static bool matches(const char *filter, const char *topic)
{
	if(strcmp(filter, "#") == 0 || strcmp(filter, topic) == 0){
		return true;
	}
	size_t a = strcspn(filter, "/"), b = strcspn(topic, "/");
	if(!((a == 1 && *filter == '+') || (a == b && memcmp(filter, topic, a) == 0))){
		return false;
	}
	if(filter[a] == '\0' || topic[b] == '\0'){
		return filter[a] == topic[b] || strcmp(filter + a, "/#") == 0;
	}
	return matches(filter + a + 1, topic + b + 1);
}

static void base16_of(const char *text, char *hex)
{
	for(; *text != '\0'; text++, hex += 2){
		sprintf(hex, "%02X", *(const unsigned char *)text);
	}
}

static bool receives(const struct session *s, const char *topic)
{
	bool subscribed = false;

	for(int i = 0; i < s->filter_count; i++){
		subscribed = subscribed || matches(s->filters[i], topic);
	}
	return s->connected && subscribed && acl(s->id, "u", MOSQ_ACL_READ, topic) == MOSQ_ERR_PLUGIN_DEFER;
}

/* receive lets a session receive a message for a client. */
static void receive(struct session *s, const char *receiver, int number)
{
	CHECK(strcmp(s->id, receiver) == 0);
	CHECK(number > s->last);
	s->last = number;
}

/* drain delivers the copies, as the broker does between two rounds. */
static void drain(void)
{
	for(int i = 0; i < copy_count; i++){
		for(int c = 0; c < MODEL_CLIENTS; c++){
			if(strcmp(ids[c], copies[i].client_id) == 0 && sessions[c].connected){
				receive(&sessions[c], copies[i].client_id, atoi(copies[i].payload));
			}
		}
	}
	drop_copies(copy_count);
}

/* node_publishes publishes for a client, and returns whether it was delivered or will be. */
static bool node_publishes(struct session *to, const char *topic)
{
	char *changed = strdup(topic), payload[16];
	mosquitto_property *properties = NULL;
	int before = copy_count, rc;
	bool delivered = false;

	snprintf(payload, sizeof(payload), "%d", ++sequence);
	CHECK(acl("holdfast-out-0", "holdfast", MOSQ_ACL_WRITE, topic) == MOSQ_ERR_PLUGIN_DEFER);
	rc = shown("holdfast-out-0", "holdfast", changed, payload, &properties);
	delivered = copy_count > before;
	if(rc == MOSQ_ERR_SUCCESS){
		if(strcmp(changed, INVOKE_TOPIC) == 0){
			CHECK(acl("holdfast-ingest", "holdfast", MOSQ_ACL_READ, changed) == MOSQ_ERR_ACL_DENIED);
			CHECK(copy_count == before + 1);
		}
		for(int i = 0; i < MODEL_CLIENTS; i++){
			if(receives(&sessions[i], changed)){
				receive(&sessions[i], to->id, sequence);
				CHECK(!delivered);
				delivered = true;
			}
		}
	}
	mosquitto_property_free_all(&properties);
	free(changed);
	return delivered;
}

static void notify(struct session *to)
{
	char hex[64] = "", topic[256];
	bool delivered, due = to->requested;

	base16_of(to->id, hex);
	snprintf(topic, sizeof(topic), NOTIFICATIONS "%s" NOTIFY_LEVELS "%s", hex, keys[draw(2)]);
	for(int i = 0; i < to->filter_count; i++){
		due = due || matches(to->filters[i], topic);
	}
	delivered = node_publishes(to, topic);
	CHECK(delivered || !due || !to->connected);
}

static void reply(struct session *to)
{
	char hex[64] = "", topic[256];

	base16_of(to->id, hex);
	if(draw(2) == 0){
		snprintf(topic, sizeof(topic), CLIENTS "%s" GO_RESPONSE_LEVELS, hex);
	}else{
		snprintf(topic, sizeof(topic), CLIENTS "%s/r", to->id);
	}
	node_publishes(to, topic);
}

static void subscribe(struct session *s)
{
	char hex[64] = "", filter[256];
	static const char *const forms[] = {NOTIFICATIONS "%s/command/notify/#", NOTIFICATIONS "%s/command/notify/+", NOTIFICATIONS "%s/command/notify/6B", NOTIFICATIONS "%s/command/+/6B32",
		CLIENTS "%s" GO_RESPONSE_LEVELS, CLIENTS "%s/#", "#", "clients/+/+/+/+/+/+/+", "clients/+/r", NOTIFICATIONS "%s/command/notify"};
	const char *form = forms[draw(sizeof(forms) / sizeof(*forms))], *id = ids[draw(3) == 0 ? draw(MODEL_CLIENTS) : (unsigned)(s - sessions)];

	base16_of(id, hex);
	snprintf(filter, sizeof(filter), form, draw(4) == 0 ? id : hex);
	for(int i = 0; i < s->filter_count; i++){
		if(strcmp(s->filters[i], filter) == 0){
			return;
		}
	}
	if(s->filter_count == MODEL_FILTERS || acl(s->id, "u", MOSQ_ACL_SUBSCRIBE, filter) != MOSQ_ERR_PLUGIN_DEFER){
		return;
	}
	s->filters[s->filter_count++] = strdup(filter);
}

static void unsubscribe(struct session *s)
{
	if(s->filter_count > 0){
		int i = (int)draw((unsigned)s->filter_count);
		CHECK(acl(s->id, "u", MOSQ_ACL_UNSUBSCRIBE, s->filters[i]) == MOSQ_ERR_PLUGIN_DEFER);
		free(s->filters[i]);
		s->filters[i] = s->filters[--s->filter_count];
	}
}

static void forget_filters(struct session *s)
{
	while(s->filter_count > 0){
		free(s->filters[--s->filter_count]);
	}
}

static void request(struct session *s)
{
	char topic[] = INVOKE_TOPIC;
	mosquitto_property *properties = NULL;
	unsigned forged = draw(3) == 0 ? draw(100) : draw(4);
	char *name = NULL, *value = NULL;
	const mosquitto_property *found, *stamped = NULL;
	int rc;

	for(unsigned i = 0; i < forged; i++){
		mosquitto_property_add_string_pair(&properties, MQTT_PROP_USER_PROPERTY, "$holdfast-client-id", ids[draw(MODEL_CLIENTS)]);
	}
	CHECK(acl(s->id, "u", MOSQ_ACL_WRITE, topic) == MOSQ_ERR_PLUGIN_DEFER);
	rc = shown(s->id, "u", topic, "x", &properties);
	CHECK(rc == (forged > 64 ? MOSQ_ERR_ACL_DENIED : MOSQ_ERR_SUCCESS));
	if(rc == MOSQ_ERR_SUCCESS){
		s->requested = true;
		CHECK(acl("holdfast-ingest", "holdfast", MOSQ_ACL_READ, topic) == MOSQ_ERR_PLUGIN_DEFER);
		waiting += node_away;
		for(found = properties; found != NULL; found = mosquitto_property_next(found)){
			mosquitto_property_read_string_pair(found, MQTT_PROP_USER_PROPERTY, &name, &value, false);
			if(strcmp(name, "$holdfast-client-id") == 0){
				stamped = found;
			}
			free(name);
			free(value);
		}
		mosquitto_property_read_string_pair(stamped, MQTT_PROP_USER_PROPERTY, &name, &value, false);
		CHECK(strcmp(value, s->id) == 0);
		free(name);
		free(value);
	}
	mosquitto_property_free_all(&properties);
}

static void will(const struct session *s)
{
	CHECK(acl(s->id, "u", MOSQ_ACL_WRITE, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	CHECK(acl("holdfast-ingest", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_ACL_DENIED);
}

static void end(struct session *s)
{
	if(s->connected){
		CHECK(event_of(MOSQ_EVT_DISCONNECT, s->id, "u") == MOSQ_ERR_SUCCESS);
		if(draw(3) == 0){
			will(s);
		}
	}
	s->connected = s->requested = false;
}

static void begin(struct session *s)
{
	end(s);
	CHECK(login(s->id, NULL) == MOSQ_ERR_PLUGIN_DEFER);
	reconnect(s->id);
	if(draw(2) == 0){
		forget_filters(s); /* a clean start */
	}
	s->connected = true;
}

static void node_returns(void)
{
	node_away = false;
	CHECK(login("holdfast-ingest", "holdfast") == MOSQ_ERR_PLUGIN_DEFER);
	for(; waiting > 0; waiting--){ /* the broker checks what waits in a session that is resumed */
		CHECK(acl("holdfast-ingest", "holdfast", MOSQ_ACL_READ, INVOKE_TOPIC) == MOSQ_ERR_PLUGIN_DEFER);
	}
}

static void run(uint64_t seed)
{
	void *data = NULL;

	state = seed * 2654435761u + 1;
	sequence = waiting = 0;
	node_away = false;
	CHECK(mosquitto_plugin_init(NULL, &data, NULL, 0) == MOSQ_ERR_SUCCESS);
	for(int i = 0; i < MODEL_CLIENTS; i++){
		sessions[i] = (struct session){.id = ids[i]};
	}
	for(int step = 0; step < STEPS && failures == 0; step++){
		struct session *s = &sessions[draw(MODEL_CLIENTS)];
		switch(draw(13)){
			case 12: refuse(s->id); break; /* a login under the id of a client, by somebody else */
			case 0: begin(s); break;
			case 1: end(s); break;
			case 2: case 3: if(s->connected){ subscribe(s); } break;
			case 4: if(s->connected){ unsubscribe(s); } break;
			case 5: case 6: if(s->connected){ request(s); } break;
			case 7: case 8: notify(s); break;
			case 9: reply(s); break;
			case 10:
				if(node_away){
					node_returns();
				}else{
					node_away = true;
				}
				break;
			default:
				if(draw(2) == 0){ /* both orders occur: Mosquitto 2.0 ticks before it drains, 2.1 after */
					drain();
					tick();
				}else{
					tick();
					drain();
				}
				break;
		}
		/* A copy for a client that ends before the round does is lost with it; the broker drains before it reads on. */
		if(copy_count > MAX_COPIES / 2){
			drain();
			tick();
		}
	}
	drain();
	for(int i = 0; i < MODEL_CLIENTS; i++){
		forget_filters(&sessions[i]);
	}
	CHECK(mosquitto_plugin_cleanup(data, NULL, 0) == MOSQ_ERR_SUCCESS);
	if(failures > 0){
		fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
	}
}

int main(int argc, char **argv)
{
	unsigned long seeds = argc > 1 ? strtoul(argv[1], NULL, 10) : 3000, first = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;

	for(unsigned long seed = first; seed < first + seeds && failures == 0; seed++){
		run(seed);
	}
	if(failures == 0){
		printf("sessions: %lu drawn, all as they must be\n", seeds);
	}
	return failures != 0;
}
