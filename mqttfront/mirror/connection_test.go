package mirror

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// A version that the broker has refused as too large is not remembered any more when its key is
// deleted.
func TestTooLargeValueIsForgottenWithItsKey(t *testing.T) {
	b := newTestBacklog()
	s := &connection{
		backlog: b, desired: newDesired(nil, math.MaxInt), published: func(string) {},
		onRefused: func(topic) {},
	}
	for i := range 2 * maxTooLarge {
		one := topic{"t/", fmt.Sprint(i)}
		b.push(one)
		s.acknowledged(b.take(time.Now()), &wanted{resultSet, "v", "1"}, reasonPacketTooLarge)
		s.acknowledged(b.take(time.Now()), &wanted{result: resultTooLarge}, 0)
		b.push(one)
		s.acknowledged(b.take(time.Now()), &wanted{result: resultCleared}, 0)
		if b.refusedCount() != 0 { // no room to remember it
			t.Fatalf("the topic after %d others counts as refused", i)
		}
	}
}
