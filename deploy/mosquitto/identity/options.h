/* The plugin's options, plugin_opt_NAME in the broker's configuration. */
#ifndef HOLDFAST_OPTIONS_H
#define HOLDFAST_OPTIONS_H

#include <stdbool.h>

struct mosquitto_opt;

struct options {
	char *cluster;
	char *node_username;
	char *client_id_property;
	char *username_property;
	char *bind_client_id;
	char *max_user_properties;
	char *notification_expiry;

	/* The last three, as what they stand for. */
	bool bound;
	long property_limit;
	long expiry_seconds;
};

/* options_read sets the options to their defaults and to what is given. It logs what makes no sense, and returns a MOSQ_ERR. Free them in any
 * case. */
int options_read(struct options *options, const struct mosquitto_opt *given, int count);

void options_free(struct options *options);

#endif
