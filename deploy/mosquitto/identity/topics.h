/* Rules about topics and topic filters. All functions are pure. */
#ifndef HOLDFAST_TOPICS_H
#define HOLDFAST_TOPICS_H

#include <stdbool.h>
#include <stddef.h>

#define SERVICE "FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
#define INVOKE_TOPIC "statestore/v1/" SERVICE "/command/invoke"
#define CLIENTS "clients/"
#define NOTIFICATIONS CLIENTS "statestore/v1/" SERVICE "/"
#define NOTIFY_LEVELS "/command/notify/"
#define GO_RESPONSE_LEVELS "/" INVOKE_TOPIC "/response"
#define PROBES "holdfast/"
#define LOG "$SYS/broker/log/"
#define CONNECTIONS "$SYS/broker/connection/client/"

bool has_prefix(const char *text, const char *prefix);
bool has_suffix(const char *text, const char *suffix);

/* topics_overlap reports whether a topic exists that both filters match. Either may be a topic. */
bool topics_overlap(const char *filter, const char *other);

/* without_share returns the filter of a shared subscription, $share/GROUP/FILTER, and other filters as they are. */
const char *without_share(const char *filter);

/* is_own_notification reports whether a topic or filter is below the notification topic of a client: the level after the prefix is its client
 * id in upper-case Base16. */
bool is_own_notification(const char *topic, const char *client_id);

/* is_dotnet_filter reports whether a filter is the one that the .NET library subscribes: the client id as it is, and no level for the key. No
 * message is ever published there. */
bool is_dotnet_filter(const char *filter, const char *client_id);

/* matches_all_notifications reports whether a filter below a client's notification topic matches every notification of the client. */
bool matches_all_notifications(const char *filter);

/* notification_receiver writes the client id of a notification topic into a buffer. It returns false when the topic has no such form, or the
 * client id does not fit. */
bool notification_receiver(const char *topic, char *client_id, size_t size);

/* is_go_response reports whether a topic is the response topic of the Go library: clients/{client id in upper-case Base16}/, the request topic,
 * and /response. */
bool is_go_response(const char *topic);

/* is_own_go_response reports whether a topic is the Go library's response topic of a client. */
bool is_own_go_response(const char *topic, const char *client_id);

/* response_receiver writes the client id of a response topic, of the Go library or clients/{client id}/, into a buffer. It returns false when
 * the topic names no client, or the client id does not fit. */
bool response_receiver(const char *topic, char *client_id, size_t size);

/* is_under reports whether a topic or filter is clients/{client id}, or below it. */
bool is_under(const char *topic, const char *client_id);

#endif
