#include "options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "broker.h"

static const struct {
	const char *name;
	size_t offset; /* in struct options */
	const char *usual;
} known[] = {
	{"cluster", offsetof(struct options, cluster), "holdfast"},
	{"node_username", offsetof(struct options, node_username), "holdfast"},
	{"client_id_property", offsetof(struct options, client_id_property), "$holdfast-client-id"},
	{"username_property", offsetof(struct options, username_property), "$holdfast-username"},
	{"bind_client_id", offsetof(struct options, bind_client_id), "true"},
	{"max_user_properties", offsetof(struct options, max_user_properties), "64"},
	{"notification_expiry", offsetof(struct options, notification_expiry), "30"},
};
#define KNOWN (sizeof(known) / sizeof(*known))

static char **field(struct options *options, size_t i)
{
	return (char **)((char *)options + known[i].offset);
}

/* set sets the option of a name. */
static int set(struct options *options, const char *name, const char *value)
{
	for(size_t i = 0; i < KNOWN; i++){
		char *copy;
		if(strcmp(known[i].name, name) != 0){
			continue;
		}
		if(value[0] == '\0'){
			mosquitto_log_printf(MOSQ_LOG_ERR, "holdfast_identity: %s must not be empty", name);
			return MOSQ_ERR_INVAL;
		}
		if((copy = mosquitto_strdup(value)) == NULL){
			return MOSQ_ERR_NOMEM;
		}
		mosquitto_free(*field(options, i));
		*field(options, i) = copy;
		return MOSQ_ERR_SUCCESS;
	}
	mosquitto_log_printf(MOSQ_LOG_ERR, "holdfast_identity: unknown option %s", name);
	return MOSQ_ERR_INVAL;
}

/* number reads an option from 1 to a limit. It returns -1 and says so when the option is something else. */
static long number(const char *name, const char *text, long limit)
{
	char *end = NULL;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if(errno != 0 || *end != '\0' || value < 1 || value > limit){
		mosquitto_log_printf(MOSQ_LOG_ERR, "holdfast_identity: %s is %s: must be a number from 1 to %ld", name, text, limit);
		return -1;
	}
	return value;
}

int options_read(struct options *options, const struct mosquitto_opt *given, int count)
{
	int rc = MOSQ_ERR_SUCCESS;

	for(size_t i = 0; i < KNOWN && rc == MOSQ_ERR_SUCCESS; i++){
		rc = set(options, known[i].name, known[i].usual);
	}
	for(int i = 0; i < count && rc == MOSQ_ERR_SUCCESS; i++){
		rc = set(options, given[i].key, given[i].value);
	}
	if(rc != MOSQ_ERR_SUCCESS){
		return rc;
	}
	options->bound = strcmp(options->bind_client_id, "true") == 0;
	if(!options->bound && strcmp(options->bind_client_id, "false") != 0){
		mosquitto_log_printf(MOSQ_LOG_ERR, "holdfast_identity: bind_client_id is %s: must be true or false", options->bind_client_id);
		return MOSQ_ERR_INVAL;
	}
	options->property_limit = number("max_user_properties", options->max_user_properties, 10000);
	options->expiry_seconds = number("notification_expiry", options->notification_expiry, INT32_MAX);
	return options->property_limit < 0 || options->expiry_seconds < 0 ? MOSQ_ERR_INVAL : MOSQ_ERR_SUCCESS;
}

void options_free(struct options *options)
{
	for(size_t i = 0; i < KNOWN; i++){
		mosquitto_free(*field(options, i));
		*field(options, i) = NULL;
	}
}
