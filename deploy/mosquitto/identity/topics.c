#include "topics.h"

#include <string.h>

bool has_prefix(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool has_suffix(const char *text, const char *suffix)
{
	size_t length = strlen(text), end = strlen(suffix);
	return length >= end && strcmp(text + length - end, suffix) == 0;
}

bool topics_overlap(const char *filter, const char *other)
{
	/* Wildcards at the start match no topic that begins with '$'. */
	if((filter[0] == '$') != (other[0] == '$')){
		return false;
	}
	for(;;){
		size_t a = strcspn(filter, "/"), b = strcspn(other, "/");
		bool any = (a == 1 && filter[0] == '+') || (b == 1 && other[0] == '+');

		if((a == 1 && filter[0] == '#') || (b == 1 && other[0] == '#')){
			return true;
		}
		if(!any && (a != b || memcmp(filter, other, a) != 0)){
			return false;
		}
		filter += a;
		other += b;
		if(*filter == '\0' || *other == '\0'){
			/* "a/#" matches "a", too. */
			return strcmp(filter, other) == 0 || strcmp(filter, "/#") == 0 || strcmp(other, "/#") == 0;
		}
		filter++;
		other++;
	}
}

const char *without_share(const char *filter)
{
	const char *group_end;

	if(!has_prefix(filter, "$share/")){
		return filter;
	}
	group_end = strchr(filter + strlen("$share/"), '/');
	return group_end == NULL ? "" : group_end + 1;
}

static const char digits[] = "0123456789ABCDEF";

/* behind_base16 returns what follows a text in upper-case Base16 at the start of a level, or NULL. */
static const char *behind_base16(const char *level, const char *text)
{
	for(const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++){
		if(*level++ != digits[*c >> 4]){
			return NULL;
		}
		if(*level++ != digits[*c & 15]){
			return NULL;
		}
	}
	return level;
}

/* decode_level writes the text of a level in upper-case Base16 into a buffer, and returns what follows the level, or NULL. */
static const char *decode_level(const char *level, char *text, size_t size)
{
	size_t length = 0;

	for(; *level != '/' && *level != '\0'; level += 2){
		const char *high = strchr(digits, level[0]);
		const char *low = level[1] == '\0' ? NULL : strchr(digits, level[1]);
		int value;

		if(high == NULL || low == NULL || length + 1 >= size){
			return NULL;
		}
		value = (int)(high - digits) << 4 | (int)(low - digits);
		if(value == 0){
			return NULL;
		}
		text[length++] = (char)value;
	}
	text[length] = '\0';
	return length == 0 ? NULL : level;
}

bool is_own_notification(const char *topic, const char *client_id)
{
	const char *rest;

	if(!has_prefix(topic, NOTIFICATIONS) || *client_id == '\0'){
		return false;
	}
	rest = behind_base16(topic + strlen(NOTIFICATIONS), client_id);
	return rest != NULL && *rest == '/';
}

bool is_dotnet_filter(const char *filter, const char *client_id)
{
	size_t length = strlen(client_id);
	const char *level = filter + strlen(NOTIFICATIONS);

	return length > 0 && has_prefix(filter, NOTIFICATIONS) && strncmp(level, client_id, length) == 0 && strcmp(level + length, "/command/notify") == 0;
}

bool matches_all_notifications(const char *filter)
{
	const char *levels = strchr(filter + strlen(NOTIFICATIONS), '/');
	static const char *const all[] = {"/#", "/command/#", "/command/notify/#", "/command/notify/+", "/+/#", "/+/+/+", "/command/+/+", "/+/notify/+"};

	for(size_t i = 0; levels != NULL && i < sizeof(all) / sizeof(*all); i++){
		if(strcmp(levels, all[i]) == 0){
			return true;
		}
	}
	return false;
}

bool notification_receiver(const char *topic, char *client_id, size_t size)
{
	const char *rest;

	if(!has_prefix(topic, NOTIFICATIONS)){
		return false;
	}
	rest = decode_level(topic + strlen(NOTIFICATIONS), client_id, size);
	return rest != NULL && has_prefix(rest, NOTIFY_LEVELS);
}

bool is_go_response(const char *topic)
{
	const char *rest;

	if(!has_prefix(topic, CLIENTS)){
		return false;
	}
	rest = strchr(topic + strlen(CLIENTS), '/');
	return rest != NULL && strcmp(rest, GO_RESPONSE_LEVELS) == 0;
}

bool is_own_go_response(const char *topic, const char *client_id)
{
	const char *rest;

	if(!is_go_response(topic) || *client_id == '\0'){
		return false;
	}
	rest = behind_base16(topic + strlen(CLIENTS), client_id);
	return rest != NULL && *rest == '/';
}

bool response_receiver(const char *topic, char *client_id, size_t size)
{
	const char *level = topic + strlen(CLIENTS);
	size_t length;

	if(is_go_response(topic)){
		return decode_level(level, client_id, size) != NULL;
	}
	if(!has_prefix(topic, CLIENTS) || has_prefix(topic, NOTIFICATIONS)){
		return false;
	}
	length = strcspn(level, "/");
	if(length == 0 || length >= size){
		return false;
	}
	memcpy(client_id, level, length);
	client_id[length] = '\0';
	return true;
}

bool is_under(const char *topic, const char *client_id)
{
	size_t length = strlen(client_id);
	const char *level = topic + strlen(CLIENTS);

	return length > 0 && has_prefix(topic, CLIENTS) && strncmp(level, client_id, length) == 0 && (level[length] == '/' || level[length] == '\0');
}
