package mqttconn

import (
	"testing"

	"github.com/eclipse/paho.golang/paho"
)

// A SUBACK must have exactly one reason code for each topic filter. Any other number is an error.
func TestSubackHasOneReasonForEachFilter(t *testing.T) {
	subscriptions := []paho.SubscribeOptions{{Topic: "a", QoS: 1}, {Topic: "b", QoS: 1}}
	for name, reasons := range map[string][]byte{"none": nil, "too few": {1}, "as many": {1, 1}, "too many": {1, 1, 1}} {
		t.Run(name, func(t *testing.T) {
			if err := CheckReasons(&paho.Suback{Reasons: reasons}, subscriptions); (err == nil) != (len(reasons) == 2) {
				t.Errorf("%v", err)
			}
		})
	}
}
