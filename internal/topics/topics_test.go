package topics

import (
	"fmt"
	"testing"
)

func TestTopicsAreAsInTheProtocol(t *testing.T) {
	const client, key = "press-1", "line/7"
	for name, test := range map[string]struct{ got, want string }{
		"requests": {
			Invoke,
			"statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke",
		},
		"a client": {
			NotificationPrefix(client),
			"clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/70726573732D31/command/notify/",
		},
		"notifications": {
			Notification(client, key),
			"clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/70726573732D31/command/notify/6C696E652F37",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.got != test.want {
				t.Errorf("%s, want %s", test.got, test.want)
			}
		})
	}
	for topic, want := range map[string]bool{
		"a/ä/\u2060": false, "a\n": true, "\x7f": true,
		"\ufffe": true, "\U0001ffff": true, "\ufdd0": true, "\ufdf0": false,
	} {
		t.Run(fmt.Sprintf("%+q", topic), func(t *testing.T) {
			if HasDisallowedCharacters(topic) != want {
				t.Errorf("%q: want %v", topic, want)
			}
		})
	}
	if size := NotificationSize(client, key); size != len(Notification(client, key)) {
		t.Errorf("size %d", size)
	}
}
